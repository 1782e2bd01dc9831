//! The ledger: one durable row for every request, written by a thread of its own.

mod database;
mod question;
mod row;
mod schema;
mod state;
mod writer;

use super::usage::{UsageQuery, UsageRow};
use super::window::Worth;
use crate::config;
use database::Database;
use futures_util::future::BoxFuture;
use metrics::Gauge;
use state::State;
use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use tokio::sync::{mpsc, oneshot};
use writer::{Command, Sums, Writer};

pub(in crate::tenant) use database::{Place, Settled, connect};
pub(in crate::tenant) use question::{Question, Used};
pub(in crate::tenant) use row::{Open, Row, outcome};
pub(in crate::tenant) use state::OnSettled;

/// The ledger's handle.
pub(super) struct Ledger {
    /// Tells this process's rows from those of others.
    pub(super) replica: i64,
    commands: mpsc::UnboundedSender<Command>,
    state: Arc<State>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// Asks the ledger.
#[derive(Clone)]
pub(super) struct Inquiry(mpsc::WeakUnboundedSender<Command>);

/// Why a ledger can't be opened or read.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    /// The database says no.
    #[error("the ledger's database: {0}")]
    Database(#[from] sqlx::Error),
    /// The file's lock can't be had.
    #[error("{}: {source}", file.display())]
    File {
        /// The lock's file.
        file: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Another process has the file.
    #[error("another process uses the ledger {}; several replicas share a Postgres database instead", file.display())]
    Taken {
        /// The ledger's file.
        file: PathBuf,
    },
    /// The thread can't be started.
    #[error("the ledger's thread: {0}")]
    Thread(std::io::Error),
    /// The system has no randomness to give.
    #[error("no randomness: {0}")]
    Random(#[from] getrandom::Error),
    /// The ledger's thread has ended.
    #[error("the ledger is closed")]
    Closed,
}

// === impl Ledger ===

impl Ledger {
    /// Opens the ledger, makes its tables and settles what a dead process has left in flight there. Blocks until done.
    ///
    /// # Errors
    /// It can't be opened, or another process has the file. `None` is a ledger that is off.
    pub(super) fn open(store: &config::Store, shown: Gauge, on_settled: OnSettled) -> Result<Option<Self>, LedgerError> {
        let Some(place) = Place::of(store)? else { return Ok(None) };
        let lock = match &store.ledger {
            config::Ledger::Sqlite(path) => Some(lock(path)?),
            config::Ledger::Off | config::Ledger::Postgres(_) => None,
        };
        let replica = place.replica;
        let (commands, receiver) = mpsc::unbounded_channel();
        let state = Arc::new(State::new(shown, on_settled));
        let (opened, wait) = channel();
        let thread = std::thread::Builder::new().name("ledger".to_owned()).spawn({
            let state = state.clone();
            move || {
                let _lock = lock; // until the thread ends
                let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
                    Ok(runtime) => runtime,
                    Err(error) => return drop(opened.send(Err(LedgerError::Thread(error)))),
                };
                runtime.block_on(async {
                    match start(&place, &state).await {
                        Ok(database) => {
                            drop(opened.send(Ok(())));
                            Writer::new(receiver, place, state, database).run().await;
                        }
                        Err(error) => drop(opened.send(Err(error.into()))),
                    }
                });
            }
        });
        let thread = thread.map_err(LedgerError::Thread)?;
        wait.recv().map_err(|_| LedgerError::Closed)??;
        Ok(Some(Self { replica, commands, state, thread: Mutex::new(Some(thread)) }))
    }

    /// Whether its store doesn't do its work.
    pub(super) fn is_lost(&self) -> bool {
        self.state.is_lost()
    }

    /// Whether no more rows may wait in memory.
    pub(super) fn is_full(&self) -> bool {
        self.state.is_full()
    }

    /// A request began: from now on its progress is journaled.
    pub(super) fn begin(&self, open: Arc<Open>) {
        self.tell(Command::Open(open));
    }

    /// A request ended without using anything: there is no row of it.
    pub(super) fn forget(&self, seq: u64) {
        self.tell(Command::Forget(seq));
    }

    /// A request ended. The future is ready when its row is committed, or when the store is lost.
    pub(super) fn close(&self, row: Row) -> BoxFuture<'static, ()> {
        let (durable, committed) = oneshot::channel();
        if self.state.comes() {
            self.tell(Command::Close { row: Box::new(row), durable });
        }
        // A sender that is gone means that there is no waiting for this commit.
        Box::pin(async move { drop(committed.await) })
    }

    /// Asks what the rows handed over before this used.
    pub(super) fn used(&self, used: Used) -> Receiver<Result<Worth, LedgerError>> {
        let (answer, sum) = channel();
        self.tell(Command::Ask(Box::new(Question::Used(used, answer))));
        sum
    }

    /// Lets others ask without keeping the ledger open.
    pub(super) fn inquiry(&self) -> Inquiry {
        Inquiry(self.commands.downgrade())
    }

    /// What ended requests used. Those whose last byte has been sent are among them.
    pub(super) async fn sums(&self, query: UsageQuery) -> Result<Vec<UsageRow>, LedgerError> {
        let (answer, sums) = oneshot::channel();
        self.tell(Command::Sums(Box::new(Sums { query, answer })));
        sums.await.map_err(|_| LedgerError::Closed)?
    }

    /// The thread ends only with its handle.
    fn tell(&self, command: Command) {
        if self.commands.send(command).is_err() {
            self.state.lost("its thread has ended");
        }
    }
}

// === impl Inquiry ===

impl Inquiry {
    /// Asks; nobody answers where the ledger is closed.
    pub(super) fn ask(&self, question: Question) {
        if let Some(commands) = self.0.upgrade() {
            // Who waits hears that there is no answer.
            let _ = commands.send(Command::Ask(Box::new(question)));
        }
    }
}

impl Drop for Ledger {
    /// Waits until everything is committed.
    fn drop(&mut self) {
        self.commands = mpsc::unbounded_channel().0;
        let thread = self.thread.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
        if thread.is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the ledger's thread panicked");
        }
    }
}

async fn start(place: &Place, state: &State) -> Result<Database, sqlx::Error> {
    let mut database = Database::open(place).await?;
    database.prepare().await?;
    if state.beat_due() {
        state.settled(&database.beat(true).await?);
    }
    Ok(database)
}

/// Takes the file for this process; the system gives it back when the process ends, however that happens.
fn lock(path: &Path) -> Result<File, LedgerError> {
    let mut file = path.as_os_str().to_owned();
    file.push(".lock");
    let file = PathBuf::from(file);
    let failed = |source| LedgerError::File { file: file.clone(), source };
    let lock = File::options().create(true).truncate(false).write(true).open(&file).map_err(failed)?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(TryLockError::WouldBlock) => Err(LedgerError::Taken { file: path.to_owned() }),
        Err(TryLockError::Error(source)) => Err(failed(source)),
    }
}

#[cfg(test)]
mod tests;
