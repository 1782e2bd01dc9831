//! What a shard's thread publishes after each step and everybody may read at any time.

use crate::backend::State;
use crate::engine::Live;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// A shard's published state.
#[derive(Debug)]
pub(super) struct Published {
    lost: AtomicBool,
    /// Prompt tokens sent to the mailbox that the engine has not taken yet.
    mailed_tokens: AtomicU64,
    waiting_tokens: AtomicU64,
    running: AtomicU32,
    waiting: AtomicU32,
    blocks_free: AtomicU32,
    blocks_cached: AtomicU32,
    blocks_total: AtomicU32,
    /// Nanoseconds of device time per token, a moving average over steps.
    token_nanos: AtomicU64,
}

/// A new step's weight in the moving average is 1/8.
const SMOOTHING: u64 = 8;

// === impl Published ===

impl Published {
    pub(super) fn new(blocks_total: u32) -> Self {
        Self {
            lost: AtomicBool::new(false),
            mailed_tokens: AtomicU64::new(0),
            waiting_tokens: AtomicU64::new(0),
            running: AtomicU32::new(0),
            waiting: AtomicU32::new(0),
            blocks_free: AtomicU32::new(blocks_total),
            blocks_cached: AtomicU32::new(0),
            blocks_total: AtomicU32::new(blocks_total),
            token_nanos: AtomicU64::new(0),
        }
    }

    pub(super) fn state(&self) -> State {
        if self.lost.load(Relaxed) { State::Lost } else { State::Ready }
    }

    pub(super) fn lose(&self) {
        self.lost.store(true, Relaxed);
    }

    pub(super) fn mailed(&self, tokens: usize) {
        self.mailed_tokens.fetch_add(tokens as u64, Relaxed);
    }

    pub(super) fn taken(&self, tokens: usize) {
        self.mailed_tokens.fetch_sub(tokens as u64, Relaxed);
    }

    pub(super) fn publish(&self, live: &Live) {
        self.waiting_tokens.store(live.waiting_tokens, Relaxed);
        self.running.store(live.running, Relaxed);
        self.waiting.store(live.waiting, Relaxed);
        self.blocks_free.store(live.blocks_free, Relaxed);
        self.blocks_cached.store(live.blocks_cached, Relaxed);
        self.blocks_total.store(live.blocks_total, Relaxed);
    }

    pub(super) fn observe_step(&self, tokens: u32, device_time: Duration) {
        let nanos = u64::try_from(device_time.as_nanos()).unwrap_or(u64::MAX) / u64::from(tokens);
        let average = self.token_nanos.load(Relaxed);
        let next = if average == 0 { nanos } else { average - average / SMOOTHING + nanos / SMOOTHING };
        self.token_nanos.store(next, Relaxed);
    }

    /// Time to compute `tokens` at the recent pace.
    pub(super) fn time_for(&self, tokens: u64) -> Duration {
        Duration::from_nanos(tokens.saturating_mul(self.token_nanos.load(Relaxed)))
    }

    /// Tokens that come before a new call's: prompts waiting, and one per running sequence.
    pub(super) fn tokens_ahead(&self) -> u64 {
        self.mailed_tokens.load(Relaxed) + self.waiting_tokens.load(Relaxed) + u64::from(self.running.load(Relaxed))
    }

    /// Blocks that no sequence refers to; cached ones count as free.
    pub(super) fn unused_blocks(&self) -> u32 {
        self.blocks_free.load(Relaxed) + self.blocks_cached.load(Relaxed)
    }

    pub(super) fn all_blocks(&self) -> u32 {
        self.blocks_total.load(Relaxed)
    }

    pub(super) fn sequences(&self) -> (u32, u32) {
        (self.running.load(Relaxed), self.waiting.load(Relaxed))
    }
}
