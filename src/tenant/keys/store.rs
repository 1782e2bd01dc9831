//! The store's keys at hand: a copy in memory that requests look into, kept up to date by a thread of its own.

use super::KeyError;
use super::entry::Entry;
use super::table::{Change, Named, Table};
use crate::clock::Clock;
use crate::config::{self, Moment};
use crate::tenant::ledger::{LedgerError, Place};
use arc_swap::ArcSwap;
use std::collections::HashMap;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::time::MissedTickBehavior;

/// How often changes by other processes are looked for; a revocation counts everywhere within a second.
const LOOK: Duration = Duration::from_millis(400);
/// How long a look or a change may take before the connection is given up.
const PATIENCE: Duration = Duration::from_secs(5);

/// Entries by the hash of their secret.
pub(super) type Entries = HashMap<[u8; 32], Arc<Entry>>;

/// The store's keys.
pub(super) struct KeyStore {
    entries: Arc<ArcSwap<Entries>>,
    commands: mpsc::UnboundedSender<Command>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct Command {
    named: Named,
    change: Change,
    answer: oneshot::Sender<Result<(), KeyError>>,
}

/// What the thread has.
struct Keeper {
    place: Place,
    clock: Clock,
    entries: Arc<ArcSwap<Entries>>,
    /// `None` while the store is lost.
    table: Option<Table>,
    version: i64,
}

// === impl KeyStore ===

impl KeyStore {
    /// Opens the table and reads it. Blocks until done. `None` where nothing is stored.
    ///
    /// # Errors
    /// It can't be opened.
    pub(super) fn open(store: &config::Store, clock: Clock) -> Result<Option<Self>, LedgerError> {
        let Some(place) = Place::of(store)?.map(Place::durable) else { return Ok(None) };
        let entries = Arc::new(ArcSwap::from_pointee(Entries::new()));
        let (commands, receiver) = mpsc::unbounded_channel();
        let (opened, wait) = channel();
        let mut keeper = Keeper { place, clock, entries: entries.clone(), table: None, version: -1 };
        let thread = std::thread::Builder::new().name("keys".to_owned()).spawn(move || {
            let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
                Ok(runtime) => runtime,
                Err(error) => return drop(opened.send(Err(LedgerError::Thread(error)))),
            };
            runtime.block_on(async {
                let first = keeper.look().await.map_err(LedgerError::from);
                let is_open = first.is_ok();
                drop(opened.send(first));
                if is_open {
                    keeper.keep(receiver).await;
                }
            });
        });
        let thread = thread.map_err(LedgerError::Thread)?;
        wait.recv().map_err(|_| LedgerError::Closed)??;
        Ok(Some(Self { entries, commands, thread: Mutex::new(Some(thread)) }))
    }

    /// All entries as of now.
    pub(super) fn entries(&self) -> arc_swap::Guard<Arc<Entries>> {
        self.entries.load()
    }

    /// Makes a change; when it returns, this process's next request knows it.
    pub(super) async fn change(&self, named: Named, change: Change) -> Result<(), KeyError> {
        let (answer, answered) = oneshot::channel();
        self.commands.send(Command { named, change, answer }).map_err(|_| KeyError::Closed)?;
        answered.await.map_err(|_| KeyError::Closed)?
    }
}

impl Drop for KeyStore {
    /// Waits until the thread has ended.
    fn drop(&mut self) {
        self.commands = mpsc::unbounded_channel().0;
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if thread.is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread of the store's keys panicked");
        }
    }
}

// === impl Keeper ===

impl Keeper {
    async fn keep(&mut self, mut commands: mpsc::UnboundedReceiver<Command>) {
        let mut tick = tokio::time::interval(LOOK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut lost = false;
        loop {
            tokio::select! {
                command = commands.recv() => match command {
                    Some(Command { named, change, answer }) => {
                        let changed = self.change(&named, change).await;
                        drop(answer.send(changed)); // whoever asked may be gone
                    }
                    None => return,
                },
                _ = tick.tick() => match self.look().await {
                    Ok(()) if lost => {
                        lost = false;
                        tracing::warn!("the store's keys answer again");
                    }
                    Err(error) if !lost => {
                        lost = true;
                        tracing::error!(%error, "the store's keys are lost: the last ones known are taken, and revocations elsewhere don't arrive");
                    }
                    _ => {}
                }
            }
        }
    }

    async fn change(&mut self, named: &Named, change: Change) -> Result<(), KeyError> {
        self.look().await?;
        let Some(table) = &mut self.table else { return Err(KeyError::Closed) };
        let now = Moment::from_unix(self.clock.unix());
        let changed = tokio::time::timeout(PATIENCE, table.change(named, change, now)).await.unwrap_or(Err(KeyError::Late));
        if let Err(KeyError::Store(_) | KeyError::Late) = changed {
            self.table = None; // whatever state it is in, a new connection has none
        }
        // Even a change whose answer was lost may have happened.
        let looked = self.look().await;
        changed?;
        Ok(looked?)
    }

    /// Takes up what has changed.
    async fn look(&mut self) -> Result<(), sqlx::Error> {
        let looked = tokio::time::timeout(PATIENCE, self.read()).await;
        let looked = looked.unwrap_or_else(|_| Err(sqlx::Error::Io(std::io::ErrorKind::TimedOut.into())));
        if looked.is_err() {
            self.table = None;
        }
        looked
    }

    async fn read(&mut self) -> Result<(), sqlx::Error> {
        let mut table = match self.table.take() {
            Some(table) => table,
            None => Table::open(&self.place).await?,
        };
        let version = table.version().await?;
        if version != self.version {
            let entries = table.all().await?.into_iter().map(|entry| (entry.hash, Arc::new(entry)));
            self.entries.store(Arc::new(entries.collect()));
            // Read before the entries: a change in between is read twice rather than never.
            self.version = version;
        }
        self.table = Some(table);
        Ok(())
    }
}
