//! The engine's loop body: plan, launch, collect, commit.

use super::pool::BlockChange;
use super::scheduler::Scheduler;
use super::sequence::Sequence;
use super::{DeviceError, Executor, Logprob, Plan, Sampled, SeqId, Submission};
use crate::call::{Finish, TokenId};
use std::time::{Duration, Instant};

/// What an engine must know of its model.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Digest of weights, quantization and KV dtype: whatever changes K/V.
    pub model: [u8; 16],
    /// Keys the hashes of cached prefixes; random per process.
    pub hash_key: [u8; 32],
    /// Tokens that end a sequence.
    pub stop_tokens: Box<[TokenId]>,
}

/// Runs sequences on one device.
pub struct Engine {
    executor: Box<dyn Executor>,
    scheduler: Scheduler,
    /// Submissions without room for a single token; they end with the next step.
    no_room: Vec<SeqId>,
    /// Most tokens of one sequence: the context, or the whole pool.
    most_tokens: usize,
    stepped_at: Option<Instant>,
    // Buffers that every step reuses.
    plan: Plan,
    sampled: Sampled,
}

/// What one step did.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stepped {
    /// Sequences that began to run, with their cached prompt tokens; once per sequence, not again after a preemption.
    pub started: Vec<(SeqId, u32)>,
    /// Tokens drawn, without stop tokens.
    pub tokens: Vec<(SeqId, TokenId)>,
    /// Of those of these tokens whose sequence wants it, in the same order.
    pub logprobs: Vec<(SeqId, Logprob)>,
    /// Of the prompt's tokens from the second on, in their order, once for each.
    pub scored: Vec<(SeqId, Logprob)>,
    /// Sequences that ended by themselves.
    pub ended: Vec<Ended>,
    /// Tokens the step computed.
    pub batch_tokens: u32,
    /// How long the device was busy.
    pub device_time: Duration,
    /// `device_time` shared out over the sequences in the step, to the nanosecond.
    pub device_times: Vec<(SeqId, Duration)>,
    /// What became of cached prefixes, in order.
    pub blocks: Vec<BlockChange>,
}

/// The end of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Whose.
    pub seq: SeqId,
    /// Why.
    pub reason: Finish,
}

/// What an engine holds between two steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Live {
    /// Sequences that hold blocks.
    pub running: u32,
    /// Sequences that wait for them.
    pub waiting: u32,
    /// Tokens that are known, not computed and not cached: what a newcomer has before it.
    pub waiting_tokens: u64,
    /// How long the oldest in the queue had been there when the last step began.
    pub oldest_wait: Duration,
    /// KV blocks in total.
    pub blocks_total: u32,
    /// Blocks held by running sequences.
    pub blocks_used: u32,
    /// Blocks with a cached prefix that nobody holds; they count as free.
    pub blocks_cached: u32,
    /// Blocks without content.
    pub blocks_free: u32,
    /// Preemptions since the start.
    pub preemptions: u64,
}

// === impl Engine ===

impl Engine {
    /// An engine with nothing to do.
    pub fn new(executor: Box<dyn Executor>, settings: Settings) -> Engine {
        let limits = executor.limits();
        Engine {
            executor,
            scheduler: Scheduler::new(limits, settings),
            no_room: Vec::new(),
            most_tokens: (limits.max_context as usize).min(limits.blocks as usize * limits.block_tokens as usize),
            stepped_at: None,
            plan: Plan::default(),
            sampled: Sampled::default(),
        }
    }

    /// Queues a sequence.
    ///
    /// The door has checked that prompt and `max_tokens` fit the context and the pool. What doesn't fit ends with
    /// [`Finish::Length`] as soon as it is full; an empty prompt, or one without room for a token, with the next step and
    /// without having started.
    pub fn submit(&mut self, submission: Submission) {
        let seq = submission.seq;
        match Sequence::new(submission, self.most_tokens, self.scheduler.pool_mut()) {
            Some(sequence) => self.scheduler.add(sequence),
            None => self.no_room.push(seq),
        }
    }

    /// Ends a sequence: its blocks are free at once, and nothing is heard of it any more. Does nothing if it is unknown or has
    /// ended.
    pub fn cancel(&mut self, seq: SeqId) {
        self.no_room.retain(|other| *other != seq);
        self.scheduler.cancel(seq);
    }

    /// Runs one step and replaces `out` by what it did. With nothing to do nothing is launched.
    ///
    /// # Errors
    /// The device failed; the engine can't be used any more.
    pub fn step(&mut self, now: Instant, out: &mut Stepped) -> Result<(), DeviceError> {
        out.clear();
        self.stepped_at = Some(now);
        out.ended.extend(self.no_room.drain(..).map(|seq| Ended { seq, reason: Finish::Length }));
        self.scheduler.plan(now, &mut self.plan, &mut out.started);
        if !self.plan.rows.is_empty() {
            let ticket = self.executor.launch(&self.plan)?;
            self.executor.collect(ticket, &mut self.sampled)?;
            self.commit(out)?;
        }
        self.scheduler.pool_mut().changes(&mut out.blocks);
        Ok(())
    }

    /// Whether there is nothing to do.
    pub fn is_idle(&self) -> bool {
        self.no_room.is_empty() && self.scheduler.running().is_empty() && self.scheduler.waiting().is_empty()
    }

    /// What it holds now.
    pub fn live(&self) -> Live {
        let (running, waiting) = (self.scheduler.running(), self.scheduler.waiting());
        let [blocks_total, blocks_used, blocks_cached, blocks_free] = self.scheduler.pool().counts();
        Live {
            running: running.len() as u32,
            waiting: waiting.len() as u32,
            waiting_tokens: running.iter().map(Sequence::missing).chain(waiting.iter().map(|waits| waits.ahead)).sum::<usize>() as u64,
            oldest_wait: match (self.stepped_at, waiting.iter().min_by_key(|sequence| sequence.arrived)) {
                (Some(now), Some(first)) => now.saturating_duration_since(first.arrived),
                _ => Duration::ZERO,
            },
            blocks_total,
            blocks_used,
            blocks_cached,
            blocks_free,
            preemptions: self.scheduler.preemptions(),
        }
    }

    fn commit(&mut self, out: &mut Stepped) -> Result<(), DeviceError> {
        let (drawn, asked) = (self.sampled.ids.len(), self.plan.rows.iter().map(|row| row.sample as usize).sum::<usize>());
        if drawn != asked {
            return Err(DeviceError(format!("the device drew {drawn} tokens where {asked} were asked for")));
        }
        out.batch_tokens = self.plan.rows.iter().map(|row| row.count).sum();
        out.device_time = self.sampled.device_time;
        self.scheduler.commit(&mut self.sampled, out.batch_tokens, out);
        debug_assert_eq!(self.scheduler.check(), Ok(()));
        Ok(())
    }
}

// === impl Stepped ===

impl Stepped {
    fn clear(&mut self) {
        let Self { started, tokens, logprobs, scored, ended, batch_tokens, device_time, device_times, blocks } = self;
        started.clear();
        tokens.clear();
        logprobs.clear();
        scored.clear();
        ended.clear();
        device_times.clear();
        blocks.clear();
        *batch_tokens = 0;
        *device_time = Duration::ZERO;
    }
}
