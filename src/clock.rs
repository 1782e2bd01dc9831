//! The one clock: everything that asks for the time asks here, so tests can stop it and turn it by hand.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A source of time, cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Clock(Source);

#[derive(Clone, Debug, Default)]
enum Source {
    #[default]
    System,
    Manual(Arc<Mutex<Manual>>),
}

#[derive(Debug)]
struct Manual {
    now: Instant,
    unix: Duration,
}

/// Turns a manual clock forward.
#[derive(Clone, Debug)]
pub struct Hand(Arc<Mutex<Manual>>);

// === impl Clock ===

impl Clock {
    /// The machine's own clock.
    pub fn system() -> Self {
        Self(Source::System)
    }

    /// A clock that stands still until its hand is turned; it starts at `unix` since the epoch.
    pub fn manual(unix: Duration) -> (Self, Hand) {
        let manual = Arc::new(Mutex::new(Manual { now: Instant::now(), unix }));
        (Self(Source::Manual(manual.clone())), Hand(manual))
    }

    /// Monotonic time, for durations and deadlines.
    pub fn now(&self) -> Instant {
        match &self.0 {
            Source::System => Instant::now(),
            Source::Manual(manual) => manual.lock().unwrap_or_else(PoisonError::into_inner).now,
        }
    }

    /// Wall-clock time since the Unix epoch, for what people and bills read.
    pub fn unix(&self) -> Duration {
        match &self.0 {
            // A clock set before 1970 reads as the epoch itself.
            Source::System => SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default(),
            Source::Manual(manual) => manual.lock().unwrap_or_else(PoisonError::into_inner).unix,
        }
    }
}

// === impl Hand ===

impl Hand {
    /// Moves both monotonic and wall-clock time forward by `by`.
    pub fn advance(&self, by: Duration) {
        let mut manual = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        manual.now += by;
        manual.unix += by;
    }
}
