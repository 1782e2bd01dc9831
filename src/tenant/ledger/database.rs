//! The ledger's tables. SQLite and Postgres share every statement but a few.

use super::question::Used;
use super::row::Row;
use super::schema;
use crate::config::{Durability, Ledger, Money, Name, Store};
use crate::tenant::usage::{By, UsageQuery, UsageRow};
use crate::tenant::window::Worth;
use sqlx::any::{AnyArguments, AnyRow};
use sqlx::query::Query;
use sqlx::{Any, AnyConnection, Connection, Row as _, Transaction};
use std::sync::Once;
use std::time::Duration;

/// Seconds without a beat before another replica is looked at more closely.
const QUIET: i64 = 3;
/// Seconds without a beat after which it is taken to be dead, even where the server still waits for its connection.
const SILENT: i64 = 10;

/// Where the tables are, and how to open them.
#[derive(Clone)]
pub(in crate::tenant) struct Place {
    /// A URL as sqlx reads it; it may hold a password.
    pub(super) url: String,
    pub(super) durability: Durability,
    pub(super) kind: Kind,
    /// Tells this process's rows from those of others and of its own earlier lives.
    pub(super) replica: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Sqlite,
    Postgres,
}

/// An open connection.
pub(super) struct Database {
    connection: AnyConnection,
    place: Place,
}

/// What one commit writes.
#[derive(Debug, Default)]
pub(super) struct Group {
    /// Requests that ended.
    pub(super) rows: Vec<Row>,
    /// Requests in flight as they are now.
    pub(super) open: Vec<Row>,
    /// Numbers among `rows` that were journaled while in flight.
    pub(super) closed: Vec<u64>,
}

/// Connects to a store.
pub(in crate::tenant) async fn connect(place: &Place) -> Result<AnyConnection, sqlx::Error> {
    static DRIVERS: Once = Once::new();
    DRIVERS.call_once(sqlx::any::install_default_drivers);
    let mut connection = AnyConnection::connect(&place.url).await?;
    let durable = place.durability == Durability::Fsync;
    let settings: &[&'static str] = match (place.kind, durable) {
        (Kind::Sqlite, true) => &["PRAGMA busy_timeout = 5000", "PRAGMA journal_mode = WAL", "PRAGMA synchronous = FULL"],
        (Kind::Sqlite, false) => &["PRAGMA busy_timeout = 5000", "PRAGMA journal_mode = WAL", "PRAGMA synchronous = NORMAL"],
        (Kind::Postgres, true) => &["SET synchronous_commit = on"],
        (Kind::Postgres, false) => &["SET synchronous_commit = off"],
    };
    for setting in settings {
        sqlx::query(*setting).execute(&mut connection).await?;
    }
    Ok(connection)
}

/// What a dead process's request used up to its last progress.
#[derive(Debug)]
pub(in crate::tenant) struct Settled {
    pub(in crate::tenant) tenant: Name,
    pub(in crate::tenant) key: Name,
    pub(in crate::tenant) model: Name,
    /// Unix time of its admission.
    pub(in crate::tenant) at: Duration,
    /// Of the prompt and generated.
    pub(in crate::tenant) tokens: u64,
    /// Those of the prompt that came from the prefix cache.
    pub(in crate::tenant) cached: u64,
    pub(in crate::tenant) cost: Money,
}

// === impl Place ===

impl Place {
    /// The place that a configuration means; `None` where nothing is stored. It gets a number of its own.
    ///
    /// # Errors
    /// The system has no randomness to give.
    pub(in crate::tenant) fn of(store: &Store) -> Result<Option<Self>, getrandom::Error> {
        let (url, kind) = match &store.ledger {
            Ledger::Off => return Ok(None),
            Ledger::Sqlite(path) => (format!("sqlite:{}?mode=rwc", path.display()), Kind::Sqlite),
            Ledger::Postgres(url) => (url.expose().to_owned(), Kind::Postgres),
        };
        let mut random = [0; 8];
        getrandom::fill(&mut random)?;
        Ok(Some(Self { url, kind, durability: store.durability, replica: i64::from_le_bytes(random) >> 1 }))
    }

    /// The same, where what is committed outlives a loss of power too, whatever bills do.
    pub(in crate::tenant) fn durable(self) -> Self {
        Self { durability: Durability::Fsync, ..self }
    }

    /// Replicas that start together make their tables one after the other.
    pub(in crate::tenant) async fn take_turns(&self, transaction: &mut Transaction<'_, Any>) -> Result<(), sqlx::Error> {
        if self.kind == Kind::Postgres {
            sqlx::query("SELECT CAST(pg_advisory_xact_lock(7203694) AS TEXT)").execute(&mut **transaction).await?;
        }
        Ok(())
    }
}

// === impl Database ===

impl Database {
    /// Connects, and makes what is missing.
    pub(super) async fn open(place: &Place) -> Result<Self, sqlx::Error> {
        let mut connection = connect(place).await?;
        if place.kind == Kind::Postgres {
            // Where an earlier connection of this process still has it, that is as good.
            sqlx::query(schema::LOCK).bind(place.replica).execute(&mut connection).await?;
        }
        Ok(Self { connection, place: place.clone() })
    }

    /// Makes the tables that are missing.
    pub(super) async fn prepare(&mut self) -> Result<(), sqlx::Error> {
        let mut transaction = self.connection.begin().await?;
        self.place.take_turns(&mut transaction).await?;
        for statement in schema::TABLES {
            sqlx::query(*statement).execute(&mut *transaction).await?;
        }
        let missing = match self.place.kind {
            Kind::Postgres => &schema::ADD_RULE_POSTGRES[..],
            Kind::Sqlite => {
                let has: i64 = sqlx::query_scalar(schema::HAS_RULE_SQLITE).fetch_one(&mut *transaction).await?;
                if has == 0 { &schema::ADD_RULE_SQLITE[..] } else { &[] }
            }
        };
        for statement in missing {
            sqlx::query(*statement).execute(&mut *transaction).await?;
        }
        transaction.commit().await
    }

    /// Writes all of a group or nothing. Writing a row again changes nothing, so a commit whose answer was lost is repeated.
    pub(super) async fn commit(&mut self, group: &Group) -> Result<(), sqlx::Error> {
        let replica = self.place.replica;
        let mut transaction = self.connection.begin().await?;
        for (rows, sql) in pieces(&group.rows, schema::INSERT_ROWS.of(self.place.kind)) {
            bind_all(sqlx::query(sql), replica, rows).execute(&mut *transaction).await?;
        }
        for (rows, sql) in pieces(&group.open, schema::UPSERT_OPEN.of(self.place.kind)) {
            bind_all(sqlx::query(sql), replica, rows).execute(&mut *transaction).await?;
        }
        for seq in &group.closed {
            sqlx::query("DELETE FROM in_flight WHERE replica = $1 AND seq = $2")
                .bind(replica)
                .bind(seq.cast_signed())
                .execute(&mut *transaction)
                .await?;
        }
        transaction.commit().await
    }

    /// Says that this process lives, and settles what dead ones left in flight at its last progress. A file has one owner:
    /// whatever another has left there is dead. `starting`, nobody waits for a second sign that another is dead. Returns
    /// what was settled.
    pub(super) async fn beat(&mut self, starting: bool) -> Result<Vec<Settled>, sqlx::Error> {
        let (beat, others) = match self.place.kind {
            Kind::Sqlite => (schema::BEAT_SQLITE, schema::OTHERS_SQLITE),
            Kind::Postgres => (schema::BEAT_POSTGRES, schema::OTHERS_POSTGRES),
        };
        sqlx::query(beat).bind(self.place.replica).execute(&mut self.connection).await?;
        let others: Vec<(i64, i64)> = sqlx::query_as(others).bind(self.place.replica).fetch_all(&mut self.connection).await?;
        let mut settled = Vec::new();
        for (replica, silent) in others {
            match self.place.kind {
                Kind::Sqlite => settled.append(&mut self.bury(replica).await?),
                Kind::Postgres if starting || silent > QUIET => {
                    // Who connects again after the server was away has no lock for a moment, but has beaten lately.
                    let gone: i64 = sqlx::query_scalar(schema::LOCK).bind(replica).fetch_one(&mut self.connection).await?;
                    if gone == 1 || silent > SILENT {
                        settled.append(&mut self.bury(replica).await?);
                    }
                    if gone == 1 {
                        sqlx::query(schema::UNLOCK).bind(replica).execute(&mut self.connection).await?;
                    }
                }
                Kind::Postgres => {}
            }
        }
        Ok(settled)
    }

    /// What ended requests used.
    pub(super) async fn sums(&mut self, query: &UsageQuery) -> Result<Vec<UsageRow>, sqlx::Error> {
        let by = query.by;
        let statement = match by {
            By::Model => &schema::SUMS[0],
            By::Key => &schema::SUMS[1],
            By::Day => &schema::SUMS[2],
            By::Variant => &schema::SUMS[3],
        };
        let rows = sqlx::query(statement.as_str())
            .bind(query.tenant.as_ref().map_or(String::new(), ToString::to_string))
            .bind(micros(query.span.start))
            .bind(micros(query.span.end))
            .fetch_all(&mut self.connection)
            .await?;
        let row = |row: &sqlx::any::AnyRow| {
            let count = |index: usize| row.try_get::<i64, _>(index).map(i64::unsigned_abs);
            Ok(UsageRow {
                tenant: row.try_get(0)?,
                by,
                of: by.shown(row.try_get(1)?),
                requests: count(2)?,
                prompt_tokens: count(3)?,
                cached_tokens: count(4)?,
                completion_tokens: count(5)?,
                device_time: Duration::from_nanos(count(6)?),
                cost: Money::from_nanos(count(7)?),
            })
        };
        rows.iter().map(row).collect()
    }

    /// Settles what a dead process left in flight.
    async fn bury(&mut self, replica: i64) -> Result<Vec<Settled>, sqlx::Error> {
        let mut transaction = self.connection.begin().await?;
        let rows = sqlx::query(schema::SETTLE.as_str()).bind(replica).fetch_all(&mut *transaction).await?;
        sqlx::query("DELETE FROM in_flight WHERE replica = $1").bind(replica).execute(&mut *transaction).await?;
        sqlx::query("DELETE FROM replicas WHERE replica = $1").bind(replica).execute(&mut *transaction).await?;
        transaction.commit().await?;
        rows.iter().map(Settled::read).collect()
    }

    /// What the requests used that a question is about, by replica.
    pub(super) async fn shares(&mut self, used: &Used, sql: &'static str) -> Result<Vec<(i64, Worth)>, sqlx::Error> {
        let name = |name: &Option<Name>| name.as_ref().map_or(String::new(), |name| name.to_string());
        let query = sqlx::query_as(sql)
            .bind(used.tenant.clone())
            .bind(micros(used.span.start))
            .bind(micros(used.span.end))
            .bind(name(&used.subject.key))
            .bind(name(&used.subject.model))
            .bind(i64::from(!used.cached));
        let sums: Vec<(i64, i64, i64)> = query.fetch_all(&mut self.connection).await?;
        let worth = |tokens: i64, cost: i64| Worth { tokens: tokens.unsigned_abs(), cost: Money::from_nanos(cost.unsigned_abs()) };
        Ok(sums.into_iter().map(|(tokens, cost, replica)| (replica, worth(tokens, cost))).collect())
    }

    /// The replicas that are taken to live.
    pub(super) async fn alive(&mut self) -> Result<Vec<i64>, sqlx::Error> {
        sqlx::query_scalar(schema::ALIVE).fetch_all(&mut self.connection).await
    }
}

// === impl Settled ===

impl Settled {
    fn read(row: &AnyRow) -> Result<Self, sqlx::Error> {
        let count = |column: usize| row.try_get::<i64, _>(column).map(i64::unsigned_abs);
        let name = |column: usize| row.try_get::<String, _>(column).map(|name| Name::from(name.as_str()));
        Ok(Self {
            tenant: name(0)?,
            key: name(1)?,
            model: name(2)?,
            at: Duration::from_micros(count(3)?),
            tokens: count(4)? + count(6)?,
            cached: count(5)?,
            cost: Money::from_nanos(count(7)?),
        })
    }
}

/// Unix time in whole microseconds, as tables hold it.
pub(super) fn micros(unix: Duration) -> i64 {
    i64::try_from(unix.as_micros()).unwrap_or(i64::MAX)
}

/// Rows in pieces that there is a prepared statement for.
fn pieces<'r>(mut rows: &'r [Row], statements: &'static [(usize, String)]) -> impl Iterator<Item = (&'r [Row], &'static str)> {
    std::iter::from_fn(move || {
        let (count, sql) = statements.iter().find(|(count, _)| *count <= rows.len())?;
        let (piece, rest) = rows.split_at(*count);
        rows = rest;
        Some((piece, sql.as_str()))
    })
}

fn bind_all<'q>(query: Query<'q, Any, AnyArguments>, replica: i64, rows: &[Row]) -> Query<'q, Any, AnyArguments> {
    let name = |name: &Option<crate::config::Name>| name.as_ref().map_or(String::new(), |name| name.to_string());
    rows.iter().fold(query, |query, row| {
        query
            .bind(replica)
            .bind(row.seq.cast_signed())
            .bind(micros(row.at))
            .bind(row.request.clone())
            .bind(row.tenant.to_string())
            .bind(name(&row.key))
            .bind(row.model.to_string())
            .bind(name(&row.rule))
            .bind(name(&row.variant))
            .bind(name(&row.backend))
            .bind(i64::from(row.usage.prompt_tokens))
            .bind(i64::from(row.usage.cached_tokens))
            .bind(i64::from(row.usage.completion_tokens))
            .bind(i64::try_from(row.usage.device_time.as_nanos()).unwrap_or(i64::MAX))
            .bind(row.cost.nanos().cast_signed())
            .bind(row.outcome)
            .bind(row.config.cast_signed())
    })
}
