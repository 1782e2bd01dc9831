//! How the ledger is: read by every request, written by its thread.

use super::database::Settled;
use metrics::Gauge;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Bills that wait in memory while the store is lost, about 50 MB.
const MOST_WAITING: u64 = 100_000;
/// Between two mentions of the same trouble.
const AGAIN: Duration = Duration::from_secs(10);
/// Between two signs of life.
const BEAT: Duration = Duration::from_secs(1);

/// Hears what dead processes' requests used.
pub(in crate::tenant) type OnSettled = Box<dyn Fn(&Settled) + Send + Sync>;

/// How the ledger is.
pub(super) struct State {
    on_settled: OnSettled,
    /// 1 while it is lost.
    shown: Gauge,
    lost: AtomicBool,
    /// Rows handed over and not committed.
    waiting: AtomicU64,
    /// Rows that found no room.
    dropped: AtomicU64,
    said: Mutex<Said>,
}

#[derive(Debug)]
struct Said {
    trouble: Option<Instant>,
    beat: Option<Instant>,
    last: String,
}

// === impl State ===

impl State {
    pub(super) fn new(shown: Gauge, on_settled: OnSettled) -> Self {
        shown.set(0.0);
        Self {
            on_settled,
            shown,
            lost: AtomicBool::new(false),
            waiting: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            said: Mutex::new(Said { trouble: None, beat: None, last: String::new() }),
        }
    }

    pub(super) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    /// What dead processes left in flight was settled.
    pub(super) fn settled(&self, requests: &[Settled]) {
        if !requests.is_empty() {
            tracing::warn!(requests = requests.len(), "settled requests that a dead process left in flight, each at its last progress");
            requests.iter().for_each(&self.on_settled);
        }
    }

    /// Whether no more rows may wait in memory.
    pub(super) fn is_full(&self) -> bool {
        self.waiting.load(Ordering::Acquire) >= MOST_WAITING
    }

    /// A row comes; false where it finds no room.
    pub(super) fn comes(&self) -> bool {
        let before = self.waiting.fetch_add(1, Ordering::AcqRel);
        if self.is_lost() && before >= MOST_WAITING {
            self.waiting.fetch_sub(1, Ordering::AcqRel);
            self.dropped.fetch_add(1, Ordering::AcqRel);
            return false;
        }
        true
    }

    /// So many rows are safe.
    pub(super) fn committed(&self, rows: usize) {
        self.waiting.fetch_sub(rows as u64, Ordering::AcqRel);
        if self.lost.swap(false, Ordering::AcqRel) {
            let dropped = self.dropped.swap(0, Ordering::AcqRel);
            self.shown.set(0.0);
            tracing::warn!(dropped, "the ledger's store answers again");
        }
    }

    /// The store doesn't do its work. Said at once, and again while it lasts.
    pub(super) fn lost(&self, why: &str) {
        self.lost.store(true, Ordering::Release);
        self.shown.set(1.0);
        let mut said = self.said.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        why.clone_into(&mut said.last);
        if said.trouble.is_none_or(|at| at.elapsed() >= AGAIN) {
            said.trouble = Some(Instant::now());
            let (waiting, dropped) = (self.waiting.load(Ordering::Acquire), self.dropped.load(Ordering::Acquire));
            tracing::error!(waiting, dropped, "the ledger's store is lost: {why}");
        }
    }

    pub(super) fn tick(&self) {
        if self.is_lost() {
            let why = self.said.lock().unwrap_or_else(std::sync::PoisonError::into_inner).last.clone();
            self.lost(&why);
        } else {
            self.said.lock().unwrap_or_else(std::sync::PoisonError::into_inner).trouble = None;
        }
    }

    pub(super) fn beat_due(&self) -> bool {
        let mut said = self.said.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let due = said.beat.is_none_or(|at| at.elapsed() >= BEAT);
        if due {
            said.beat = Some(Instant::now());
        }
        due
    }

    pub(super) fn report_unwritten(&self) {
        let rows = self.waiting.load(Ordering::Acquire);
        if rows > 0 {
            tracing::error!(rows, "the process ends with bills that its store didn't take");
        }
    }
}
