//! The ledger's own thread: it gathers rows into groups and commits one group at a time, beside the async threads.

use super::database::{Database, Group, Kind, Place};
use super::question::Question;
use super::row::{Open, Row};
use super::state::State;
use crate::tenant::usage::{UsageQuery, UsageRow};
use futures_util::future::BoxFuture;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::oneshot;

/// How often progress is journaled.
const JOURNAL: Duration = Duration::from_millis(200);
/// How long a commit may take before nobody waits for it any more.
const PATIENCE: Duration = Duration::from_secs(2);
/// Between tries to reach a store that was lost.
const RETRY: Duration = Duration::from_millis(250);
/// A group of so many rows means that more will come within a millisecond: then one commit serves all of it.
const BUSY: usize = 4;
/// Rows of one commit.
const MOST: usize = 4096;

/// What the thread is told.
pub(super) enum Command {
    /// A request began.
    Open(Arc<Open>),
    /// A request ended; `durable` hears of the commit, or that there is no waiting for it.
    Close { row: Box<Row>, durable: oneshot::Sender<()> },
    /// A request ended without using anything.
    Forget(u64),
    /// Somebody wants to know.
    Ask(Box<Question>),
    /// What all committed rows come to.
    Sums(Box<Sums>),
}

/// A question for all sums. It's asked over a connection of its own, so that no commit waits for it.
pub(super) struct Sums {
    pub(super) query: UsageQuery,
    pub(super) answer: oneshot::Sender<Result<Vec<UsageRow>, super::LedgerError>>,
}

/// Everything on the thread.
pub(super) struct Writer {
    commands: UnboundedReceiver<Command>,
    place: Place,
    state: Arc<State>,
    /// `None` while a flight has it, or while there is no connection.
    database: Option<Database>,
    group: Group,
    waiting: Vec<oneshot::Sender<()>>,
    questions: Vec<Question>,
    open: HashMap<u64, Journaled>,
    /// Whether a journal entry is due with the next commit.
    journal_due: bool,
    last_group: usize,
    retry_at: Option<Instant>,
}

/// A request in flight and what the journal knows of it.
struct Journaled {
    open: Arc<Open>,
    /// The row as last written.
    written: Option<Row>,
}

/// What comes back from work on the database.
struct Landed {
    database: Option<Database>,
    group: Group,
    questions: Vec<Question>,
    result: Result<(), sqlx::Error>,
}

// === impl Writer ===

impl Writer {
    pub(super) fn new(commands: UnboundedReceiver<Command>, place: Place, state: Arc<State>, database: Database) -> Self {
        Self {
            commands,
            place,
            state,
            database: Some(database),
            group: Group::default(),
            waiting: Vec::new(),
            questions: Vec::new(),
            open: HashMap::new(),
            journal_due: false,
            last_group: 0,
            retry_at: None,
        }
    }

    /// Works until every handle is gone and everything is committed, or the store is lost then.
    pub(super) async fn run(mut self) {
        let mut ticks = tokio::time::interval(JOURNAL);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut flight: Option<BoxFuture<'static, Landed>> = None;
        let (mut departed, mut ended) = (Instant::now(), false);
        loop {
            tokio::select! {
                biased;
                landed = async { flight.as_mut().expect("invariant: polled only with a flight").await }, if flight.is_some() => {
                    flight = None;
                    self.landed(landed);
                    if ended && self.state.is_lost() {
                        self.state.report_unwritten();
                        return;
                    }
                }
                command = self.commands.recv(), if !ended => match command {
                    Some(command) => self.take(command),
                    None => ended = true,
                },
                _ = ticks.tick() => {
                    self.journal_due = true;
                    self.state.tick();
                    if flight.is_some() && departed.elapsed() > PATIENCE {
                        self.state.lost("a commit takes too long");
                        self.waiting.clear();
                    }
                }
            }
            self.drain();
            if self.state.is_lost() {
                // Whoever waits would wait for long; the rows stay here.
                self.waiting.clear();
            }
            if flight.is_none() && self.has_work() {
                if self.last_group >= BUSY {
                    // Nothing else runs on this thread now.
                    std::thread::sleep(Duration::from_millis(1));
                    self.drain();
                }
                departed = Instant::now();
                flight = Some(self.depart());
            } else if flight.is_none() && ended && self.group.rows.is_empty() && self.group.closed.is_empty() {
                return;
            }
        }
    }

    fn drain(&mut self) {
        while self.group.rows.len() < MOST {
            match self.commands.try_recv() {
                Ok(command) => self.take(command),
                Err(_) => return,
            }
        }
    }

    fn take(&mut self, command: Command) {
        match command {
            Command::Open(open) => drop(self.open.insert(open.seq, Journaled { open, written: None })),
            Command::Forget(seq) => {
                if self.open.remove(&seq).is_some_and(|open| open.written.is_some()) {
                    self.group.closed.push(seq);
                }
            }
            Command::Close { row, durable } => {
                if self.open.remove(&row.seq).is_some_and(|open| open.written.is_some()) {
                    self.group.closed.push(row.seq);
                }
                self.group.rows.push(*row);
                self.waiting.push(durable);
            }
            Command::Ask(question) => self.questions.push(*question),
            Command::Sums(question) => {
                let place = self.place.clone();
                tokio::spawn(async move {
                    let Sums { query, answer } = *question;
                    let sums = async { Database::open(&place).await?.sums(&query).await };
                    // Whoever asked may be gone.
                    let _ = answer.send(sums.await.map_err(super::LedgerError::from));
                });
            }
        }
    }

    fn has_work(&self) -> bool {
        if self.retry_at.is_some_and(|at| Instant::now() < at) {
            return false;
        }
        // A file's owner needs no sign of life.
        let journal = self.journal_due && (!self.open.is_empty() || self.place.kind == Kind::Postgres);
        journal || !self.group.rows.is_empty() || !self.group.closed.is_empty() || !self.questions.is_empty()
    }

    /// Sets out to write what has gathered.
    fn depart(&mut self) -> BoxFuture<'static, Landed> {
        let mut group = std::mem::take(&mut self.group);
        let beat = std::mem::take(&mut self.journal_due);
        if beat {
            for journaled in self.open.values_mut() {
                let row = journaled.open.row("cut");
                // What nothing is known of yet isn't worth a write.
                if row.usage.prompt_tokens > 0 && journaled.written.as_ref() != Some(&row) {
                    group.open.push(row.clone());
                    journaled.written = Some(row);
                }
            }
        }
        self.last_group = group.rows.len();
        let (questions, database, place) = (std::mem::take(&mut self.questions), self.database.take(), self.place.clone());
        let state = self.state.clone();
        Box::pin(async move {
            let mut database = match database {
                Some(database) => database,
                None => match Database::open(&place).await {
                    Ok(database) => database,
                    Err(error) => return Landed { database: None, group, questions, result: Err(error) },
                },
            };
            let result = write(&mut database, &group, beat && place.kind == Kind::Postgres, &state).await;
            if result.is_err() {
                // Whatever state it is in, a new connection has none.
                return Landed { database: None, group, questions, result };
            }
            for question in questions {
                question.answer(&mut database).await;
            }
            Landed { database: Some(database), group, questions: Vec::new(), result: Ok(()) }
        })
    }

    fn landed(&mut self, landed: Landed) {
        self.database = landed.database;
        match landed.result {
            Ok(()) => {
                self.state.committed(landed.group.rows.len());
                self.retry_at = None;
                let done = landed.group.rows.len().min(self.waiting.len());
                for durable in self.waiting.drain(..done) {
                    // A client that is gone waits no more.
                    let _ = durable.send(());
                }
            }
            Err(error) => {
                self.state.lost(&error.to_string());
                self.retry_at = Some(Instant::now() + RETRY);
                // The group goes first again; rows that came meanwhile follow.
                let mut group = landed.group;
                group.open.clear();
                group.rows.append(&mut self.group.rows);
                group.closed.append(&mut self.group.closed);
                self.group = group;
                self.questions.splice(0..0, landed.questions);
                for journaled in self.open.values_mut() {
                    // It may not have been written: the next journal entry is, and it is deleted at its end either way.
                    if let Some(written) = &mut journaled.written {
                        written.outcome = "unknown";
                    }
                }
            }
        }
    }
}

async fn write(database: &mut Database, group: &Group, beat: bool, state: &State) -> Result<(), sqlx::Error> {
    if !group.rows.is_empty() || !group.open.is_empty() || !group.closed.is_empty() {
        database.commit(group).await?;
    }
    if beat && state.beat_due() {
        state.settled(&database.beat(false).await?);
    }
    Ok(())
}
