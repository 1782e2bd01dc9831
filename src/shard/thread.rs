//! The shard's own thread: take, step, tell, publish.

use super::live::Published;
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
}

/// A sequence to work on and who wants to hear of it.
pub(super) struct Submit {
    pub(super) submission: Submission,
    pub(super) events: UnboundedSender<Said>,
}

/// What a shard says of a sequence. The channel closes without `Ended` when the shard is lost.
pub(super) enum Said {
    /// Its first step is planned.
    Started { seq: SeqId, cached_tokens: u32 },
    /// How likely a token of its prompt was, from the second on.
    Scored { seq: SeqId, logprob: Logprob },
    /// It has drawn a token.
    Token { seq: SeqId, id: TokenId, logprob: Option<Logprob> },
    /// It is complete.
    Ended { seq: SeqId, reason: Finish, device_time: Duration },
}

/// The thread's state: `waiting for commands => stepping => waiting …`, until its mailbox closes or the device is lost.
pub(super) struct Loop {
    name: Name,
    engine: Engine,
    inbox: Receiver<Command>,
    live: Arc<Published>,
    metrics: ShardMetrics,
    clock: Clock,
    listeners: HashMap<SeqId, Listener>,
    stepped: Stepped,
}

/// Who hears of a sequence, and since when it is here.
struct Listener {
    events: UnboundedSender<Said>,
    arrived: Instant,
}

/// Why the loop goes on or ends.
enum Inbox {
    Open,
    Closed,
}

// === impl Loop ===

impl Loop {
    pub(super) fn new(
        name: Name,
        engine: Engine,
        inbox: Receiver<Command>,
        live: Arc<Published>,
        metrics: ShardMetrics,
        clock: Clock,
    ) -> Self {
        Self { name, engine, inbox, live, metrics, clock, listeners: HashMap::new(), stepped: Stepped::default() }
    }

    /// Runs until every handle is gone. A device's failure or a panic ends this shard only: its listeners are dropped,
    /// which their answers take as the loss it is.
    pub(super) fn run(mut self) {
        crate::cpu::be_nice();
        match catch_unwind(AssertUnwindSafe(|| self.serve())) {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                self.live.lose();
                tracing::error!(shard = %self.name, %error, "the shard is lost: its device failed");
            }
            Err(_) => {
                self.live.lose();
                tracing::error!(shard = %self.name, "the shard is lost: its thread panicked");
            }
        }
    }

    fn serve(&mut self) -> Result<(), DeviceError> {
        while let Inbox::Open = self.take_commands() {
            self.engine.step(self.clock.now(), &mut self.stepped)?;
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
                    self.publish(); // a cancellation may be what made it idle
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
            Command::Submit(Submit { submission, events }) => {
                self.live.taken(submission.prompt.len());
                self.listeners.insert(submission.seq, Listener { events, arrived: submission.arrived });
                self.engine.submit(submission);
            }
            Command::Cancel(seq) => {
                self.listeners.remove(&seq);
                self.engine.cancel(seq);
            }
        }
    }

    /// Passes on what the step brought. A listener that is gone has a `Cancel` on its way here.
    fn tell(&mut self) {
        for &(seq, cached_tokens) in &self.stepped.started {
            if let Some(listener) = self.listeners.get(&seq) {
                self.metrics.queued(self.clock.now().saturating_duration_since(listener.arrived));
            }
            self.say(seq, Said::Started { seq, cached_tokens });
        }
        for (seq, logprob) in std::mem::take(&mut self.stepped.scored) {
            self.say(seq, Said::Scored { seq, logprob });
        }
        let mut logprobs = std::mem::take(&mut self.stepped.logprobs).into_iter().peekable();
        for &(seq, id) in &self.stepped.tokens {
            let logprob = logprobs.next_if(|(of, _)| *of == seq).map(|(_, logprob)| logprob);
            self.say(seq, Said::Token { seq, id, logprob });
        }
        for ended in &self.stepped.ended {
            let (seq, reason, device_time) = (ended.seq, ended.reason, ended.device_time);
            self.say(seq, Said::Ended { seq, reason, device_time });
            self.listeners.remove(&seq);
        }
    }

    fn say(&self, seq: SeqId, said: Said) {
        if let Some(listener) = self.listeners.get(&seq) {
            let _ = listener.events.send(said);
        }
    }

    fn publish(&self) {
        let live = self.engine.live();
        self.live.publish(&live);
        self.metrics.load(&ShardLoad {
            running: live.running as usize,
            waiting: live.waiting as usize,
            blocks_used: live.blocks_used as usize,
            blocks_cached: live.blocks_cached as usize,
            blocks_free: live.blocks_free as usize,
            preemptions: live.preemptions,
        });
    }

    fn observe(&self) {
        let Stepped { batch_tokens, device_time, .. } = self.stepped;
        if batch_tokens > 0 {
            self.live.observe_step(batch_tokens, device_time);
            self.metrics.step(batch_tokens, device_time);
        }
    }
}
