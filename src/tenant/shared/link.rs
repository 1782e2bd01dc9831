//! The thread that talks to Redis: connects, joins, and answers one command after the other until something is lost.

use super::SharedError;
use super::ask::Terms;
use super::flight::{Flights, Landed, beat, bury, prepare, reserve, settle};
use super::holds::WindowKey;
use super::line::{Line, Parts};
use super::loss::Loss;
use super::own::{self, Held, Mark, Own};
use super::scripts::{Identity, Scripts};
use crate::call::Error;
use crate::config::Name;
use crate::tenant::asked::Asked;
use crate::tenant::ledger::Inquiry;
use crate::tenant::local::Levels;
use futures_util::StreamExt;
use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::time::MissedTickBehavior;

/// How long connecting may take.
const CONNECT: Duration = Duration::from_millis(500);
/// How long an answer may take before Redis is lost.
const PATIENCE: Duration = Duration::from_millis(500);
/// Between tries to reach Redis.
const RETRY: Duration = Duration::from_millis(100);
/// Between signs of life.
const BEAT: Duration = Duration::from_millis(500);
/// A replica silent for so long is asked after.
pub(super) const SILENT: Duration = Duration::from_secs(2);
/// How long a Redis without data waits for replicas to come again: they notice within a beat and a connection's time.
const GATHER: Duration = Duration::from_secs(2);
/// Seconds without a sign of life after which Redis forgets what a replica holds, where there is no ledger. With a ledger
/// its settling decides, and this is for Redis's memory only.
const LEASE: u64 = 5;
const LEASE_WITH_LEDGER: u64 = 3600;

/// Where limits stand, and what a call holds or why it doesn't.
pub(super) type Verdict = (Levels, Result<Held, Error>);

/// What the thread is told.
pub(super) enum Command {
    /// A call wants to pass. Without an answer Redis is lost.
    Reserve { asked: Asked, answer: oneshot::Sender<Verdict> },
    /// A call ended; `known` hears that Redis knows, or that there is no waiting for it.
    Settle { settled: Box<own::Ended>, known: Option<oneshot::Sender<()>> },
    /// These windows will be met.
    Prepare { windows: Vec<WindowKey>, done: Sender<Result<(), SharedError>> },
}

/// Everything on the thread.
pub(super) struct Link {
    client: redis::Client,
    commands: mpsc::UnboundedReceiver<Command>,
    identity: Identity,
    parts: Arc<Parts>,
    /// What Redis knows since this process joined last.
    marks: HashMap<Name, Mark>,
    /// Questions that this process has to join again for.
    again: Vec<Command>,
}

/// Why a line isn't served any more.
enum End {
    Closed,
    Stranger,
    Lost(SharedError),
}

// === impl Link ===

impl Link {
    pub(super) fn new(
        client: redis::Client,
        commands: mpsc::UnboundedReceiver<Command>,
        own: Arc<Own>,
        loss: Arc<Loss>,
        inquiry: Option<Inquiry>,
        replica: i64,
        replicas: Option<NonZeroU32>,
    ) -> Self {
        let lease = if inquiry.is_some() { LEASE_WITH_LEDGER } else { LEASE };
        let identity = Identity { replica: replica.to_string().into(), generation: 0, lease };
        let terms = Terms { gather: GATHER.as_micros() as u64, replicas };
        let parts = Parts { scripts: Scripts::new(), own, loss, terms, inquiry, seeding: tokio::sync::Mutex::default() };
        Self { client, commands, identity, parts: Arc::new(parts), marks: HashMap::new(), again: Vec::new() }
    }

    /// Works until every handle is gone. `opened` hears of the first joining.
    pub(super) async fn run(mut self, opened: Sender<Result<(), SharedError>>) {
        let mut line = match self.enter().await {
            Ok(line) => line,
            Err(error) => return drop(opened.send(Err(error))),
        };
        drop(opened.send(Ok(())));
        loop {
            match self.serve(line.clone()).await {
                End::Closed => {
                    if let Err(error) = line.leave().await {
                        tracing::warn!("shared limits hear of this replica's end only by its silence: {error}");
                    }
                    return;
                }
                End::Stranger => {}
                End::Lost(error) => {
                    self.parts.loss.lost(&error.to_string());
                    // Those who wait for an answer hear that there is none.
                    self.again.clear();
                }
            }
            line = loop {
                match self.enter().await {
                    Ok(line) => break line,
                    Err(error) => self.parts.loss.lost(&error.to_string()),
                }
                self.again.clear();
                if self.idle(RETRY).await {
                    return tracing::error!("this replica ends while the store of limits is lost");
                }
            };
            self.parts.loss.back();
        }
    }

    /// Connects, joins, and waits until requests may be granted.
    async fn enter(&mut self) -> Result<Line, SharedError> {
        let config = redis::AsyncConnectionConfig::new().set_connection_timeout(Some(CONNECT)).set_response_timeout(Some(PATIENCE));
        let connection = self.client.get_multiplexed_async_connection_with_config(&config).await?;
        self.identity.generation += 1;
        let mut line = Line { connection, identity: self.identity.clone(), parts: self.parts.clone() };
        let (marks, mut wait) = line.join().await?;
        self.marks = marks;
        if !wait.is_zero() && self.identity.generation > 1 {
            self.parts.loss.lost("it began anew, and first hears of all replicas what they hold");
        }
        while !wait.is_zero() {
            if self.idle(wait.min(RETRY)).await {
                return Err(SharedError::Closed);
            }
            let around = line.beat(SILENT).await?;
            wait = around.wait.ok_or(SharedError::Closed)?;
        }
        // Whoever died before, nobody may have asked after.
        for gone in line.beat(Duration::ZERO).await?.silent {
            line.bury(gone).await?;
        }
        Ok(line)
    }

    /// Waits while there is nobody to ask; true where every handle is gone.
    async fn idle(&mut self, time: Duration) -> bool {
        let sleep = tokio::time::sleep(time);
        tokio::pin!(sleep);
        loop {
            tokio::select! {
                () = &mut sleep => return false,
                // Dropped, a question says that Redis is lost; what was settled is told when this process joins.
                command = self.commands.recv() => if command.is_none() { return true },
            }
        }
    }

    async fn serve(&mut self, line: Line) -> End {
        let mut flights = Flights::new();
        let mut ticks = tokio::time::interval(BEAT);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut stranger, mut ended) = (false, false);
        for command in std::mem::take(&mut self.again) {
            self.take(command, &line, &flights);
        }
        loop {
            if flights.is_empty() && (ended || stranger) {
                return if stranger { End::Stranger } else { End::Closed };
            }
            tokio::select! {
                biased;
                Some(landed) = flights.next(), if !flights.is_empty() => match landed {
                    Landed::Done => {}
                    Landed::Unwanted(settled) => self.take(Command::Settle { settled, known: None }, &line, &flights),
                    Landed::Stranger(command) => {
                        stranger = true;
                        self.again.extend(command);
                    }
                    Landed::Around(around) => {
                        stranger |= around.wait.is_none();
                        for gone in around.silent {
                            flights.push(bury(line.clone(), gone));
                        }
                    }
                    Landed::Lost(error) => return End::Lost(error),
                },
                // What was asked before this process joins again has to be answered first.
                command = self.commands.recv(), if !ended && !stranger => match command {
                    Some(command) => self.take(command, &line, &flights),
                    None => ended = true,
                },
                _ = ticks.tick(), if !ended && !stranger => {
                    self.parts.loss.sweep();
                    flights.push(beat(line.clone()));
                }
            }
        }
    }

    fn take(&self, command: Command, line: &Line, flights: &Flights) {
        match command {
            Command::Reserve { asked, answer } => flights.push(reserve(line.clone(), asked, answer)),
            Command::Settle { mut settled, known } => {
                let mark = self.marks.get(&settled.tenant).copied().unwrap_or_default();
                if settled.settled <= mark.settled {
                    // Redis heard of it when this process joined.
                    return;
                }
                if !settled.granted && settled.number >= mark.next {
                    settled.ask.forget_holds();
                }
                flights.push(settle(line.clone(), settled, known));
            }
            Command::Prepare { windows, done } => flights.push(prepare(line.clone(), windows, done)),
        }
    }
}
