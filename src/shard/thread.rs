//! The shard's own thread: take, step, tell, publish.

use super::door::Place;
use super::live::Published;
use super::prefixes::Prefixes;
use crate::call::{Finish, TokenId};
use crate::clock::Clock;
use crate::config::Name;
use crate::engine::{DeviceError, Engine, Logprob, SeqId, Stepped, Submission};
use crate::metrics::{ShardLoad, ShardMetrics};
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};
use tokio::sync::mpsc::UnboundedSender;

/// What is sent to a shard.
pub(super) enum Command {
    /// Work on a sequence.
    Submit(Submit),
    /// Nobody wants it any more.
    Cancel(SeqId),
    /// Give back the calls that have not begun: another shard has taken this one's place.
    GiveBack,
    /// Look up: what is wanted of the shard has changed.
    Wake,
}

/// A sequence to work on and who wants to hear of it.
pub(super) struct Submit {
    pub(super) submission: Submission,
    /// Tokens of its prompt that weren't cached when it was sent.
    pub(super) uncached: usize,
    /// Given up when it begins.
    pub(super) place: Place,
    /// How many sequences its call has.
    pub(super) together: usize,
    pub(super) events: UnboundedSender<Said>,
}

/// What a shard says of a sequence. The channel closes without `Ended` when the shard is lost. `device_time` is the
/// sequence's share of the device's time since the last word about it.
pub(super) enum Said {
    /// Its first step is planned.
    Started { seq: SeqId, cached_tokens: u32 },
    /// A part of its prompt is computed.
    Computed { device_time: Duration },
    /// How likely a token of its prompt was, from the second on.
    Scored { seq: SeqId, logprob: Logprob },
    /// It has drawn a token.
    Token { seq: SeqId, id: TokenId, logprob: Option<Logprob>, device_time: Duration },
    /// It is complete.
    Ended { seq: SeqId, reason: Finish, device_time: Duration },
    /// It was cancelled, and this is the last of it.
    Cancelled { seq: SeqId, device_time: Duration },
}

/// The thread's state: `waiting for commands => stepping => waiting …`, until its mailbox closes or the device is lost.
pub(super) struct Loop {
    name: Name,
    engine: Engine,
    inbox: Receiver<Command>,
    live: Arc<Published>,
    prefixes: Arc<Prefixes>,
    metrics: ShardMetrics,
    clock: Clock,
    listeners: HashMap<SeqId, Listener>,
    stepped: Stepped,
}

/// Who hears of a sequence, and since when it is here.
struct Listener {
    events: UnboundedSender<Said>,
    arrived: Instant,
    /// How many sequences its call has.
    together: usize,
    /// Until it begins.
    place: Option<Place>,
    /// Its share of the device's time that wasn't told yet.
    untold: Duration,
    /// Tokens it has drawn.
    drawn: u32,
}

/// Why the loop goes on or ends.
enum Inbox {
    Open,
    Closed,
}

// === impl Said ===

impl Said {
    /// The device time it reports.
    pub(super) fn device_time(&self) -> Duration {
        match self {
            Said::Started { .. } | Said::Scored { .. } => Duration::ZERO,
            Said::Computed { device_time }
            | Said::Token { device_time, .. }
            | Said::Ended { device_time, .. }
            | Said::Cancelled { device_time, .. } => *device_time,
        }
    }
}

// === impl Loop ===

impl Loop {
    pub(super) fn new(
        name: Name,
        engine: Engine,
        inbox: Receiver<Command>,
        (live, prefixes): (Arc<Published>, Arc<Prefixes>),
        metrics: ShardMetrics,
        clock: Clock,
    ) -> Self {
        Self { name, engine, inbox, live, prefixes, metrics, clock, listeners: HashMap::new(), stepped: Stepped::default() }
    }

    /// Runs until every handle is gone. A device's failure or a panic ends this shard only: its listeners are dropped,
    /// which their answers take as the loss it is.
    pub(super) fn run(mut self) {
        crate::cpu::be_nice();
        match catch_unwind(AssertUnwindSafe(|| self.serve())) {
            Ok(Ok(())) => return self.show(&ShardLoad::default()),
            Ok(Err(error)) => tracing::error!(shard = %self.name, %error, "the shard is lost: its device failed"),
            Err(_) => tracing::error!(shard = %self.name, "the shard is lost: its thread panicked"),
        }
        self.live.lose();
        self.prefixes.clear();
        self.show(&ShardLoad::default());
    }

    fn serve(&mut self) -> Result<(), DeviceError> {
        while let Inbox::Open = self.take_commands() {
            self.engine.step(self.clock.now(), &mut self.stepped)?;
            self.prefixes.change(&self.stepped.blocks);
            self.tell();
            self.observe();
            self.publish();
        }
        Ok(())
    }

    /// Takes all that is there; waits only where the engine has nothing to do.
    fn take_commands(&mut self) -> Inbox {
        loop {
            match self.inbox.try_recv() {
                Ok(command) => self.take(command),
                Err(TryRecvError::Disconnected) if self.engine.is_idle() => return Inbox::Closed,
                Err(TryRecvError::Empty) if self.engine.is_idle() => {
                    if self.live.standing.leaves_now() {
                        return Inbox::Closed;
                    }
                    self.publish(); // a cancellation may be what made it idle
                    self.live.works(false);
                    match self.inbox.recv() {
                        Ok(command) => self.take(command),
                        Err(_) => return Inbox::Closed,
                    }
                }
                Err(_) => return Inbox::Open,
            }
        }
    }

    fn take(&mut self, command: Command) {
        match command {
            Command::Submit(Submit { submission, uncached, place, together, events }) => {
                self.live.works(true);
                self.live.taken(uncached);
                let (arrived, place) = (submission.arrived, Some(place));
                self.listeners.insert(submission.seq, Listener { events, arrived, together, place, untold: Duration::ZERO, drawn: 0 });
                self.engine.submit(submission);
            }
            Command::GiveBack => self.give_back(),
            Command::Wake => {}
            Command::Cancel(seq) => {
                self.engine.cancel(seq);
                if let Some(listener) = self.listeners.remove(&seq) {
                    self.live.pace.ended(listener.drawn);
                    listener.say(Said::Cancelled { seq, device_time: listener.untold });
                }
            }
        }
    }

    /// Forgets every call that has not begun: its channel closes, and its answer begins anew elsewhere.
    fn give_back(&mut self) {
        let waits = |listener: &Listener| listener.place.is_some();
        let all_wait = |listener: &Listener| {
            let together = self.listeners.values().filter(|other| waits(other) && other.events.same_channel(&listener.events));
            together.count() == listener.together
        };
        let waiting = self.listeners.iter().filter(|(_, listener)| waits(listener) && all_wait(listener));
        let waiting: Vec<SeqId> = waiting.map(|(seq, _)| *seq).collect();
        for seq in waiting {
            self.engine.cancel(seq);
            self.listeners.remove(&seq);
        }
    }

    /// Passes on what the step brought. A listener that is gone has a `Cancel` on its way here.
    fn tell(&mut self) {
        let now = self.clock.now();
        for &(seq, share) in &self.stepped.device_times {
            if let Some(listener) = self.listeners.get_mut(&seq) {
                listener.untold += share;
            }
        }
        for &(seq, cached_tokens) in &self.stepped.started {
            if let Some(listener) = self.listeners.get_mut(&seq) {
                listener.place = None;
                self.metrics.queued(now.saturating_duration_since(listener.arrived));
                listener.say(Said::Started { seq, cached_tokens });
            }
        }
        for (seq, logprob) in std::mem::take(&mut self.stepped.scored) {
            if let Some(listener) = self.listeners.get(&seq) {
                listener.say(Said::Scored { seq, logprob });
            }
        }
        let mut logprobs = std::mem::take(&mut self.stepped.logprobs).into_iter().peekable();
        for &(seq, id) in &self.stepped.tokens {
            let logprob = logprobs.next_if(|(of, _)| *of == seq).map(|(_, logprob)| logprob);
            if let Some(listener) = self.listeners.get_mut(&seq) {
                listener.drawn += 1;
                let device_time = std::mem::take(&mut listener.untold);
                listener.say(Said::Token { seq, id, logprob, device_time });
            }
        }
        for ended in &self.stepped.ended {
            let (seq, reason) = (ended.seq, ended.reason);
            if let Some(listener) = self.listeners.remove(&seq) {
                self.live.pace.ended(listener.drawn);
                listener.say(Said::Ended { seq, reason, device_time: listener.untold });
            }
        }
        for (seq, _) in &self.stepped.device_times {
            if let Some(listener) = self.listeners.get_mut(seq).filter(|listener| !listener.untold.is_zero()) {
                let device_time = std::mem::take(&mut listener.untold);
                listener.say(Said::Computed { device_time });
            }
        }
    }

    fn publish(&self) {
        let live = self.engine.live();
        self.live.publish(&live);
        self.show(&ShardLoad {
            running: live.running as usize,
            waiting: live.waiting as usize,
            blocks_used: live.blocks_used as usize,
            blocks_cached: live.blocks_cached as usize,
            blocks_free: live.blocks_free as usize,
            preemptions: live.preemptions,
        });
    }

    /// To the metrics, unless another shard has this one's series now.
    fn show(&self, load: &ShardLoad) {
        if !self.live.standing.is_replaced() {
            self.metrics.load(load);
        }
    }

    fn observe(&self) {
        let Stepped { batch_tokens, device_time, .. } = self.stepped;
        if batch_tokens > 0 {
            self.live.progressed(self.clock.now());
            self.live.pace.stepped(batch_tokens, device_time);
            self.metrics.step(batch_tokens, device_time);
        }
    }
}

// === impl Listener ===

impl Listener {
    /// Nobody may be listening any more: then a `Cancel` is on its way here.
    fn say(&self, said: Said) {
        let _ = self.events.send(said);
    }
}
