//! Whether a shard takes calls, as operators and reloads want it.

use crate::backend::State;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering::Relaxed};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// What others want of a shard. What it does itself is in [`Published`](super::live::Published).
///
/// `taking calls => drained => taking calls`, by an operator. In a reload `taking calls => replaced`, or, where it has to make
/// room first, `taking calls => leaving => gone`, or back where it takes too long to leave.
#[derive(Debug, Default)]
pub(super) struct Standing {
    drained: AtomicBool,
    /// Another shard publishes under its name.
    replaced: AtomicBool,
    /// One of the three below.
    leaving: AtomicU8,
    gone: AtomicBool,
    /// Whether its thread has ended, and with it everything on the device.
    ended: Mutex<bool>,
    end: Condvar,
}

const STAYS: u8 = 0;
/// It is to leave when there is nothing to do.
const LEAVES: u8 = 1;
/// Its thread is about to end.
const LEFT: u8 = 2;

// === impl Standing ===

impl Standing {
    /// Where it stands because others want it so.
    pub(super) fn state(&self) -> Option<State> {
        match () {
            () if self.gone.load(Relaxed) => Some(State::Loading),
            () if self.leaving.load(Relaxed) != STAYS || self.drained.load(Relaxed) => Some(State::Draining),
            () => None,
        }
    }

    /// Whether an operator has drained it.
    pub(super) fn is_drained(&self) -> bool {
        self.drained.load(Relaxed)
    }

    pub(super) fn drain(&self, drained: bool) {
        self.drained.store(drained, Relaxed);
    }

    /// Whether another shard has its name now.
    pub(super) fn is_replaced(&self) -> bool {
        self.replaced.load(Relaxed)
    }

    pub(super) fn replace(&self) {
        self.replaced.store(true, Relaxed);
    }

    /// Its thread is to end when there is nothing to do.
    pub(super) fn leave(&self) {
        let _ = self.leaving.compare_exchange(STAYS, LEAVES, Relaxed, Relaxed); // it leaves already
    }

    /// Its thread isn't to end after all; false where that comes too late.
    pub(super) fn stay(&self) -> bool {
        self.leaving.compare_exchange(LEAVES, STAYS, Relaxed, Relaxed).is_ok()
    }

    /// For the thread, with nothing to do: whether it ends now.
    pub(super) fn leaves_now(&self) -> bool {
        self.leaving.compare_exchange(LEAVES, LEFT, Relaxed, Relaxed).is_ok()
    }

    /// It has left to make room; for good, where nothing takes its place.
    pub(super) fn go(&self, gone: bool) {
        self.gone.store(gone, Relaxed);
    }

    /// Its thread has ended.
    pub(super) fn end(&self) {
        *self.ended.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.end.notify_all();
    }

    /// Whether its thread has ended, after `patience` at the latest.
    pub(super) fn has_ended(&self, patience: Duration) -> bool {
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        *self.end.wait_timeout_while(ended, patience, |ended| !*ended).unwrap_or_else(PoisonError::into_inner).0
    }
}
