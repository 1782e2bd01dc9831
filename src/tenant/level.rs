//! One level of one limit: governor's cell rate algorithm over a counter of our own, which can take a cell back.

use crate::call::Level;
use governor::clock::Clock;
use governor::middleware::NoOpMiddleware;
use governor::nanos::Nanos;
use governor::state::{NotKeyed, StateStore};
use governor::{Quota, RateLimiter};
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);

/// When everything taken so far will have been given back by time alone, in nanoseconds since the limits were made: the
/// algorithm's "theoretical arrival time". It says nothing about the limit, so it stays right when that changes: half
/// used stays half used.
#[derive(Debug, Default)]
pub(super) struct Arrival(AtomicU64);

/// A limit that applies to a moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct PerMinute {
    /// How many; zero is zero.
    pub(super) limit: u32,
    /// Now, in nanoseconds since the limits were made.
    pub(super) now: u64,
}

/// Governor's view of an [`Arrival`] at one moment: it counts time from the limiter's making, which is that moment.
struct At<'a> {
    arrival: &'a AtomicU64,
    now: u64,
}

/// Stands still: a decision is about one moment.
#[derive(Clone, Copy)]
struct Now(Nanos);

// === impl PerMinute ===

impl PerMinute {
    /// Takes one; refused, it says when one could be taken.
    pub(super) fn take(self, arrival: &Arrival) -> Result<(), Duration> {
        let Some(limit) = NonZeroU32::new(self.limit) else { return Err(MINUTE) };
        let clock = Now(self.now.into());
        let store = At { arrival: &arrival.0, now: self.now };
        let limiter: RateLimiter<NotKeyed, _, _, NoOpMiddleware<Nanos>> = RateLimiter::new(Quota::per_minute(limit), store, clock);
        limiter.check().map_err(|refused| refused.wait_time_from(clock.now()))
    }

    /// Gives one back that was taken under this limit. Like time, that never fills it above its top.
    pub(super) fn give_back(self, arrival: &Arrival) {
        let one = self.one();
        // `fetch_update` fails only if the closure declines, which it doesn't.
        let _ = arrival.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, |at| Some(at.saturating_sub(one)));
    }

    /// Until one could be taken; zero if one can be.
    pub(super) fn wait(self, arrival: &Arrival) -> Duration {
        if self.limit == 0 {
            return MINUTE;
        }
        let full = self.one() * u64::from(self.limit - 1);
        Duration::from_nanos(arrival.0.load(Ordering::Acquire).saturating_sub(self.now).saturating_sub(full))
    }

    /// Where it stands.
    pub(super) fn level(self, arrival: &Arrival) -> Level {
        let limit = u64::from(self.limit);
        if limit == 0 {
            return Level { limit, remaining: 0, reset: MINUTE };
        }
        let used = arrival.0.load(Ordering::Acquire).saturating_sub(self.now);
        Level { limit, remaining: limit.saturating_sub(used.div_ceil(self.one())), reset: Duration::from_nanos(used) }
    }

    /// The time in which one comes back, as governor computes it.
    fn one(self) -> u64 {
        let one = MINUTE / self.limit.max(1);
        u64::try_from(one.as_nanos()).unwrap_or(u64::MAX).max(1)
    }
}

// === impl governor ===

impl StateStore for At<'_> {
    type Key = NotKeyed;

    fn measure_and_replace<T, F, E>(&self, _: &NotKeyed, decide: F) -> Result<T, E>
    where
        F: Fn(Option<Nanos>) -> Result<(T, Nanos), E>,
    {
        let mut at = self.arrival.load(Ordering::Acquire);
        loop {
            let (granted, next) = decide(Some(at.saturating_sub(self.now).into()))?;
            let next = self.now.saturating_add(next.as_u64());
            match self.arrival.compare_exchange_weak(at, next, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Ok(granted),
                Err(changed) => at = changed,
            }
        }
    }
}

impl Clock for Now {
    type Instant = Nanos;

    fn now(&self) -> Nanos {
        self.0
    }
}
