//! What a shard's thread publishes after each step and everybody may read at any time.

use super::pace::{Ahead, Pace};
use super::standing::Standing;
use crate::backend::State;
use crate::engine::{Limits, Live};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use Ordering::Relaxed;

/// A shard's published state.
#[derive(Debug)]
pub(super) struct Published {
    limits: Limits,
    lost: AtomicBool,
    pub(super) standing: Standing,
    /// Whether the engine has something to do.
    working: AtomicBool,
    /// When something was done last, or there was something to do again; in nanoseconds since `made`.
    progress: AtomicU64,
    made: Instant,
    /// Prompt tokens sent to the mailbox that the engine has not taken yet.
    mailed_tokens: AtomicU64,
    waiting_tokens: AtomicU64,
    running: AtomicU32,
    waiting: AtomicU32,
    blocks_free: AtomicU32,
    blocks_cached: AtomicU32,
    pub(super) pace: Pace,
}

// === impl Published ===

impl Published {
    pub(super) fn new(limits: Limits, now: Instant) -> Self {
        Self {
            limits,
            lost: AtomicBool::new(false),
            standing: Standing::default(),
            working: AtomicBool::new(false),
            progress: AtomicU64::new(0),
            made: now,
            mailed_tokens: AtomicU64::new(0),
            waiting_tokens: AtomicU64::new(0),
            running: AtomicU32::new(0),
            waiting: AtomicU32::new(0),
            blocks_free: AtomicU32::new(limits.blocks),
            blocks_cached: AtomicU32::new(0),
            pace: Pace::default(),
        }
    }

    /// Where the shard stands. It is stuck where it has had work for `patience` and got nowhere: one that waits for its
    /// device counts as one that finds nothing to run.
    pub(super) fn state(&self, now: Instant, patience: Duration) -> State {
        match self.standing.state() {
            Some(State::Loading) => return State::Loading, // whatever became of the one that left
            _ if self.lost.load(Relaxed) => return State::Lost,
            Some(state) => return state,
            None => {}
        }
        // Whoever gives it work says so after the time is set.
        let has_work = self.working.load(Ordering::Acquire) || self.mailed_tokens.load(Ordering::Acquire) > 0;
        let progress = self.made + Duration::from_nanos(self.progress.load(Relaxed));
        if has_work && now.saturating_duration_since(progress) >= patience { State::Stuck } else { State::Ready }
    }

    /// The shard is gone, and everything in it.
    pub(super) fn lose(&self) {
        self.lost.store(true, Relaxed);
        self.publish(&Live { blocks_free: self.limits.blocks, ..Live::default() });
    }

    /// Work of this many prompt tokens is about to be sent to the mailbox.
    pub(super) fn mailed(&self, tokens: usize, now: Instant) {
        if !self.working.load(Relaxed) {
            self.progressed(now);
        }
        self.mailed_tokens.fetch_add(tokens as u64, Ordering::Release);
    }

    /// The engine has taken it.
    pub(super) fn taken(&self, tokens: usize) {
        self.mailed_tokens.fetch_sub(tokens as u64, Relaxed);
    }

    /// Something was done.
    pub(super) fn progressed(&self, now: Instant) {
        let nanos = now.saturating_duration_since(self.made).as_nanos();
        self.progress.store(u64::try_from(nanos).unwrap_or(u64::MAX), Relaxed);
    }

    /// Whether the engine has something to do from now on.
    pub(super) fn works(&self, working: bool) {
        self.working.store(working, Ordering::Release);
    }

    pub(super) fn publish(&self, live: &Live) {
        self.waiting_tokens.store(live.waiting_tokens, Relaxed);
        self.running.store(live.running, Relaxed);
        self.waiting.store(live.waiting, Relaxed);
        self.blocks_free.store(live.blocks_free, Relaxed);
        self.blocks_cached.store(live.blocks_cached, Relaxed);
    }

    /// What comes before a call of `prompt_tokens`, where `waiting` sequences wait.
    pub(super) fn ahead(&self, prompt_tokens: u64, waiting: u32) -> Ahead {
        let Limits { max_batch_tokens, max_sequences, block_tokens, .. } = self.limits;
        let tokens = self.mailed_tokens.load(Relaxed) + self.waiting_tokens.load(Relaxed);
        let unused = u64::from(self.unused_blocks()) * u64::from(block_tokens);
        let used = u64::from(self.all_blocks().saturating_sub(self.unused_blocks())) * u64::from(block_tokens);
        let running = self.running.load(Relaxed);
        Ahead {
            tokens,
            waiting,
            running,
            slots: (max_batch_tokens / 2).min(max_sequences),
            homeless: (tokens + prompt_tokens).saturating_sub(unused),
            housed: used,
            budget: max_batch_tokens.saturating_sub(running).max(max_batch_tokens / 2),
        }
    }

    /// Blocks that no sequence refers to; cached ones count as free.
    pub(super) fn unused_blocks(&self) -> u32 {
        self.blocks_free.load(Relaxed) + self.blocks_cached.load(Relaxed)
    }

    pub(super) fn all_blocks(&self) -> u32 {
        self.limits.blocks
    }

    pub(super) fn sequences(&self) -> (u32, u32) {
        (self.running.load(Relaxed), self.waiting.load(Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { blocks: 8, block_tokens: 16, max_batch_tokens: 64, max_sequences: 4, max_context: 128 };
    const PATIENCE: Duration = Duration::from_secs(30);

    #[test]
    fn a_shard_is_stuck_where_it_has_work_and_gets_nowhere_and_only_then() {
        let made = Instant::now();
        let at = |seconds| made + Duration::from_secs(seconds);
        let live = Published::new(LIMITS, made);
        assert_eq!(live.state(at(1000), PATIENCE), State::Ready, "idle for as long as you like");
        live.mailed(5, at(1000));
        assert_eq!(live.state(at(1001), PATIENCE), State::Ready, "its time begins when it has something to do");
        assert_eq!(live.state(at(1030), PATIENCE), State::Stuck, "nobody takes what was mailed");
        live.works(true);
        live.taken(5);
        assert_eq!(live.state(at(1030), PATIENCE), State::Stuck, "taken and not done");
        live.mailed(5, at(1040));
        assert_eq!(live.state(at(1040), PATIENCE), State::Stuck, "more work is no progress");
        live.progressed(at(1041));
        assert_eq!(live.state(at(1042), PATIENCE), State::Ready);
        live.taken(5);
        live.works(false);
        assert_eq!(live.state(at(2000), PATIENCE), State::Ready);
        live.lose();
        assert_eq!(live.state(at(2000), PATIENCE), State::Lost);
    }
}
