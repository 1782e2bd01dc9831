//! One connection to Redis and what is asked over it.

use super::SharedError;
use super::answer::{Answer, moment};
use super::ask::{Beat, Bury, InWindow, Join, Reserve, Seed, Settle, Terms};
use super::holds::{Holds, WindowKey};
use super::loss::Loss;
use super::own::{Held, Mark, Own};
use super::scripts::{Identity, Scripts, run};
use crate::config::Name;
use crate::tenant::asked::Asked;
use crate::tenant::ledger::{Inquiry, LedgerError, Question};
use crate::tenant::local::Levels;
use crate::tenant::window::Worth;
use redis::AsyncCommands;
use redis::aio::MultiplexedConnection;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

/// How often a reservation is tried; a window's end takes a second try, and so does each window that Redis doesn't know.
const TRIES: usize = 32;
/// How long a question to the ledger may take.
const LEDGER: Duration = Duration::from_secs(2);

/// A connection, cheap to clone.
#[derive(Clone)]
pub(super) struct Line {
    pub(super) connection: MultiplexedConnection,
    pub(super) identity: Identity,
    pub(super) parts: Arc<Parts>,
}

/// What all connections of this process share.
pub(super) struct Parts {
    pub(super) scripts: Scripts,
    pub(super) own: Arc<Own>,
    pub(super) loss: Arc<Loss>,
    pub(super) terms: Terms,
    /// Asks the ledger, where there is one.
    pub(super) inquiry: Option<Inquiry>,
    /// Whoever asks the ledger for a counter goes alone: those behind find it there.
    pub(super) seeding: tokio::sync::Mutex<()>,
}

/// What becomes of a question for a reservation.
pub(super) enum Reserved {
    /// An answer, which may be a refusal.
    Answered(Levels, Result<Held, crate::call::Error>),
    /// This Redis doesn't know this process as it is now; nothing was reserved.
    Stranger,
}

/// Until requests may be granted, and who gave no sign of life for a while.
pub(super) struct Around {
    /// `None` where Redis doesn't know this process.
    pub(super) wait: Option<Duration>,
    pub(super) silent: Vec<String>,
}

/// A window of which isn't known yet what was used before; forgotten if that stays so.
struct Beginning<'a> {
    own: &'a Own,
    window: Option<&'a WindowKey>,
}

// === impl Beginning ===

impl Drop for Beginning<'_> {
    fn drop(&mut self) {
        if let Some(window) = self.window {
            self.own.forget(window);
        }
    }
}

// === impl Line ===

impl Line {
    /// Tells Redis everything; returns up to where, and how long to wait until requests may be granted.
    pub(super) async fn join(&mut self) -> Result<(HashMap<Name, Mark>, Duration), SharedError> {
        let (join, marks) = Join::of(&self.parts.own, self.parts.terms);
        let (now, wait): (u64, u64) = run(&self.parts.scripts.join, &mut self.connection, &self.identity, &join).await?;
        self.parts.loss.set(moment(now));
        Ok((marks, Duration::from_micros(wait)))
    }

    /// Reserves what a call could use at most.
    pub(super) async fn reserve(&mut self, asked: &Asked) -> Result<Reserved, SharedError> {
        let need = asked.need();
        for _ in 0..TRIES {
            let at = self.parts.loss.now();
            let holds = Holds::of(&need, at);
            for window in &holds.windows {
                self.begin(window).await?;
            }
            let ask = Reserve::new(&need, &holds, at);
            let answer: Answer = run(&self.parts.scripts.reserve, &mut self.connection, &self.identity, &ask).await?;
            self.parts.loss.set(answer.now);
            match answer.verdict.as_str() {
                "stranger" => return Ok(Reserved::Stranger),
                // This clock is off by more than the time to the window's border; now it knows better.
                "time" => continue,
                "unseeded" => {
                    if let Some(window) = holds.windows.get(answer.index) {
                        self.seed(window).await?;
                    }
                    continue;
                }
                _ => {}
            }
            self.parts.loss.see(&need, answer.now, &answer.quotas);
            let levels = answer.levels(&need);
            let result = match answer.refusal(&need) {
                Some(error) => Err(error),
                None => Ok(self.parts.own.open(&need, Arc::new(holds), answer.max_tokens, answer.now, true)),
            };
            return Ok(Reserved::Answered(levels, result));
        }
        Err(SharedError::Closed)
    }

    /// Tells what became of a call; false where Redis doesn't know this process as it is now.
    pub(super) async fn settle(&mut self, ask: &Settle) -> Result<bool, SharedError> {
        let result: String = run(&self.parts.scripts.settle, &mut self.connection, &self.identity, ask).await?;
        Ok(result == "settled")
    }

    /// Gives a sign of life, and hears of those that gave none for so long.
    pub(super) async fn beat(&mut self, silent: Duration) -> Result<Around, SharedError> {
        let ask = Beat { terms: self.parts.terms, silent: u64::try_from(silent.as_micros()).unwrap_or(u64::MAX) };
        let (now, wait, silent): (u64, i64, Vec<String>) =
            run(&self.parts.scripts.beat, &mut self.connection, &self.identity, &ask).await?;
        self.parts.loss.set(moment(now));
        Ok(Around { wait: u64::try_from(wait).ok().map(Duration::from_micros), silent })
    }

    /// Makes sure that what this process uses of a window is counted, with what it used before.
    pub(super) async fn begin(&mut self, window: &WindowKey) -> Result<(), SharedError> {
        let asked = self.parts.own.begin(window, || self.parts.inquiry.as_ref().map(|inquiry| ask(inquiry, window)));
        let Some(Some(answer)) = asked else { return Ok(()) };
        let mut beginning = Beginning { own: &self.parts.own, window: Some(window) };
        let shares = hear(answer).await?;
        beginning.window = None;
        let mine = shares.iter().find(|(replica, _)| replica.to_string() == *self.identity.replica);
        self.parts.own.found(window, mine.map(|(_, used)| *used).unwrap_or_default());
        Ok(())
    }

    /// Makes a window's counter known to Redis by what the ledger says.
    pub(super) async fn seed(&mut self, window: &WindowKey) -> Result<(), SharedError> {
        let parts = self.parts.clone();
        let alone = tokio::time::timeout(LEDGER, parts.seeding.lock()).await;
        let _alone = alone.map_err(|_| LedgerError::Closed)?;
        let name = ["roundhouse:used:", &window.name()].concat();
        if self.connection.hexists(&name, "seeded").await? {
            return Ok(());
        }
        let shares = match &parts.inquiry {
            Some(inquiry) => hear(ask(inquiry, window)).await?,
            None => Vec::new(),
        };
        run(&parts.scripts.seed, &mut self.connection, &self.identity, &Seed::new(window, &shares)).await.map_err(SharedError::from)
    }

    /// Ends what a silent replica holds, if the ledger has settled its requests: it used what the ledger says.
    pub(super) async fn bury(&mut self, gone: String) -> Result<(), SharedError> {
        let Some(inquiry) = self.parts.inquiry.clone() else { return Ok(()) };
        let held: HashMap<String, String> = self.connection.hgetall(["roundhouse:held:", &gone].concat()).await?;
        let (tell, alive) = oneshot::channel();
        inquiry.ask(Question::Alive(tell));
        if hear(alive).await?.iter().any(|replica| replica.to_string() == gone) {
            return Ok(());
        }
        // What it told Redis of last it no longer held: only what it still holds may have been settled without Redis.
        let windows = held.keys().filter_map(|field| WindowKey::parse(field.strip_prefix("tokens|")?));
        let mut used = Vec::new();
        for window in windows {
            let shares = hear(ask(&inquiry, &window)).await?;
            let share = shares.iter().find(|(replica, _)| replica.to_string() == gone);
            used.push(InWindow::new(&window, share.map(|(_, worth)| *worth).unwrap_or_default()));
        }
        let generation = held.get("generation").cloned().unwrap_or_default();
        let buried: String =
            run(&self.parts.scripts.bury, &mut self.connection, &self.identity, &Bury { gone: gone.clone(), generation, used }).await?;
        if buried == "buried" {
            tracing::warn!(replica = gone, "gave back what a dead replica held of shared limits");
        }
        Ok(())
    }

    /// Takes leave: this process holds nothing any more.
    pub(super) async fn leave(&mut self) -> Result<(), SharedError> {
        let bury = Bury { gone: self.identity.replica.to_string(), generation: self.identity.generation.to_string(), used: Vec::new() };
        run(&self.parts.scripts.bury, &mut self.connection, &self.identity, &bury).await.map_err(SharedError::from)
    }
}

type Shares = Result<Vec<(i64, Worth)>, LedgerError>;

fn ask(inquiry: &Inquiry, window: &WindowKey) -> oneshot::Receiver<Shares> {
    let (tell, answer) = oneshot::channel();
    inquiry.ask(Question::Shares(window.used(), tell));
    answer
}

async fn hear<T>(answer: oneshot::Receiver<Result<T, LedgerError>>) -> Result<T, LedgerError> {
    // An answer that comes too late is none: the ledger says itself that it is slow.
    tokio::time::timeout(LEDGER, answer).await.ok().and_then(Result::ok).ok_or(LedgerError::Closed)?
}
