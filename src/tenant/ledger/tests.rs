#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use super::*;
use crate::call::{Record, Usage};
use crate::config::{Money, Prices};
use crate::tenant::subject::Subject;
use std::time::{Duration, Instant};

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn store(&self) -> config::Store {
        config::Store { ledger: config::Ledger::Sqlite(self.0.path().join("ledger.db")), ..config::Store::default() }
    }
}

fn open_ledger(folder: &Folder) -> Result<Option<Ledger>, LedgerError> {
    Ledger::open(&folder.store(), Gauge::noop(), Box::new(|_| ()))
}

fn open(seq: u64, usage: Usage) -> Arc<Open> {
    let record = Record::new(format!("request-{seq}"), Instant::now(), 1);
    record.lock().usage = usage;
    let prices = Prices { input: Money::from_nanos(1), cached_input: Money::from_nanos(1), output: Money::from_nanos(2) };
    Arc::new(Open { seq, at: Duration::from_secs(100), tenant: "acme".into(), key: Some("ci".into()), model: "m".into(), prices, record })
}

fn usage(prompt: u32, output: u32) -> Usage {
    Usage { prompt_tokens: prompt, completion_tokens: output, ..Usage::default() }
}

fn used(ledger: &Ledger, key: Option<&str>) -> Worth {
    let subject = Subject { key: key.map(config::Name::from), model: None };
    ledger
        .used(Used { tenant: "acme".to_owned(), subject, cached: true, span: Duration::ZERO..Duration::from_secs(86_400) })
        .recv()
        .unwrap()
        .unwrap()
}

fn close(ledger: &Ledger, open: &Open) -> BoxFuture<'static, ()> {
    ledger.close(open.row("done"))
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

#[test]
fn a_row_whose_commit_was_awaited_is_there_when_the_ledger_opens_again() {
    let folder = Folder::new();
    let ledger = open_ledger(&folder).unwrap().unwrap();
    let commits: Vec<_> = (0..1000).map(|seq| close(&ledger, &open(seq, usage(3, 4)))).collect();
    block_on(async {
        for commit in commits {
            commit.await;
        }
    });
    assert_eq!(used(&ledger, None), Worth { tokens: 7000, cost: Money::from_nanos(11_000) });
    assert!(matches!(open_ledger(&folder), Err(LedgerError::Taken { .. })), "one process at a time");
    drop(ledger);
    let again = open_ledger(&folder).unwrap().unwrap();
    assert_eq!(used(&again, Some("ci")).tokens, 7000);
    assert_eq!(used(&again, Some("other")).tokens, 0);
}

#[test]
fn a_ledger_of_an_earlier_version_gets_its_missing_columns_and_keeps_its_rows() {
    let folder = Folder::new();
    let ledger = open_ledger(&folder).unwrap().unwrap();
    block_on(close(&ledger, &open(0, usage(3, 4))));
    drop(ledger);
    let database = folder.0.path().join("ledger.db");
    for sql in ["ALTER TABLE requests DROP COLUMN rule", "ALTER TABLE in_flight DROP COLUMN rule"] {
        sqlite(&database, sql);
    }
    let again = open_ledger(&folder).unwrap().unwrap();
    block_on(close(&again, &open(1, usage(1, 1))));
    assert_eq!(used(&again, None).tokens, 9);
}

#[test]
fn what_was_in_flight_settles_at_its_last_progress_when_the_ledger_opens_again() {
    let folder = Folder::new();
    let ledger = open_ledger(&folder).unwrap().unwrap();
    for seq in 0..100 {
        ledger.begin(open(seq, usage(10, 5)));
    }
    ledger.begin(open(200, Usage::default()));
    // Closing without ends: the thread ends as if the process had been killed between two journal entries.
    let database = folder.0.path().join("ledger.db");
    let journaled = || block_on_sqlite(&database, "SELECT COUNT(*) FROM in_flight");
    while journaled() < 100 {
        std::thread::yield_now();
    }
    drop(ledger);
    let again = open_ledger(&folder).unwrap().unwrap();
    assert_eq!(used(&again, None).tokens, 1500);
    drop(again);
    assert_eq!(journaled(), 0, "no reservation is left");
}

fn sqlite(file: &Path, sql: &'static str) {
    use sqlx::Connection;
    let url = format!("sqlite:{}", file.display());
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
        let mut connection = sqlx::SqliteConnection::connect(&url).await.unwrap();
        sqlx::query(sql).execute(&mut connection).await.unwrap();
    });
}

fn block_on_sqlite(file: &Path, sql: &'static str) -> i64 {
    use sqlx::{Connection, Row as _};
    let url = format!("sqlite:{}", file.display());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut connection = sqlx::SqliteConnection::connect(&url).await.unwrap();
        sqlx::query(sql).fetch_one(&mut connection).await.unwrap().get(0)
    })
}

#[test]
fn a_store_that_fails_keeps_bills_waiting_and_takes_them_when_it_is_back() {
    let folder = Folder::new();
    let ledger = open_ledger(&folder).unwrap().unwrap();
    let file = folder.0.path().join("ledger.db");
    block_on_sqlite(&file, "SELECT COUNT(*) FROM requests");
    rename(&file, "ALTER TABLE requests RENAME TO gone");
    block_on(close(&ledger, &open(1, usage(1, 1))));
    assert!(ledger.is_lost(), "nobody waits for a lost store");
    rename(&file, "ALTER TABLE gone RENAME TO requests");
    while ledger.is_lost() {
        std::thread::yield_now();
    }
    assert_eq!(used(&ledger, None).tokens, 2);
}

fn rename(file: &Path, sql: &'static str) {
    use sqlx::Connection;
    let url = format!("sqlite:{}", file.display());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut connection = sqlx::SqliteConnection::connect(&url).await.unwrap();
        sqlx::query("PRAGMA busy_timeout = 5000").execute(&mut connection).await.unwrap();
        sqlx::query(sql).execute(&mut connection).await.unwrap();
    });
}
