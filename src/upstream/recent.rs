//! How fast a remote has been lately.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// An exponentially weighted mean of the time to the first token. It fades, so that a remote that was slow is tried
/// again.
#[derive(Debug, Default)]
pub(super) struct Recent(Mutex<Option<(Duration, Instant)>>);

/// The weight of the newest sample.
const WEIGHT: f64 = 0.2;
/// In so long without a call what is remembered halves.
const HALF_LIFE: Duration = Duration::from_secs(10);

// === impl Recent ===

impl Recent {
    /// A call took so long.
    pub(super) fn note(&self, sample: Duration, now: Instant) {
        let mut mean = self.mean();
        let next = match *mean {
            Some((mean, _)) => mean.mul_f64(1.0 - WEIGHT) + sample.mul_f64(WEIGHT),
            None => sample,
        };
        *mean = Some((next, now));
    }

    /// What a call would take; nothing is known of a remote that was never called.
    pub(super) fn expected(&self, now: Instant) -> Duration {
        let Some((mean, at)) = *self.mean() else { return Duration::ZERO };
        let age = now.saturating_duration_since(at).as_secs_f64() / HALF_LIFE.as_secs_f64();
        mean.mul_f64(0.5_f64.powf(age))
    }

    fn mean(&self) -> MutexGuard<'_, Option<(Duration, Instant)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mean_follows_its_samples_and_fades_without_any() {
        let (recent, now) = (Recent::default(), Instant::now());
        assert_eq!(recent.expected(now), Duration::ZERO);
        recent.note(Duration::from_millis(100), now);
        recent.note(Duration::from_millis(200), now);
        assert_eq!(recent.expected(now), Duration::from_millis(120));
        assert_eq!(recent.expected(now + HALF_LIFE), Duration::from_millis(60));
    }
}
