//! Tokens per minute with reserve and settle: what is reserved stays whole until it is settled, what was used drains away.

use crate::call::Level;
use std::time::Duration;

/// Nanoseconds in a minute; `used` counts tokens in units this fine, so that draining is exact in integers.
const MINUTE: u128 = 60_000_000_000;

/// How much of one limit per minute is used and reserved. It says nothing about the limit, so it stays right when that
/// changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Bucket {
    /// Tokens × [`MINUTE`] at `at`.
    used: u128,
    /// Tokens held by requests in flight.
    reserved: u64,
    /// Nanoseconds on the caller's monotonic clock.
    at: u64,
}

// === impl Bucket ===

impl Bucket {
    /// Lets time pass.
    fn drain(&mut self, limit: u64, now: u64) {
        let passed = now.saturating_sub(self.at);
        self.used = self.used.saturating_sub(u128::from(limit) * u128::from(passed));
        self.at = self.at.max(now);
    }

    /// Until `tokens` would pass, zero if they do; `None` if they never will.
    pub(super) fn wait(&mut self, limit: u64, tokens: u64, now: u64) -> Option<Duration> {
        self.drain(limit, now);
        if tokens > limit {
            return None;
        }
        // What is reserved may come back at any time; until then nobody knows, and a second is a fair guess.
        let free = u128::from(limit).saturating_sub(u128::from(self.reserved)).saturating_sub(u128::from(tokens)) * MINUTE;
        let over = self.used.saturating_sub(free);
        let short = (u128::from(self.reserved) + u128::from(tokens)).saturating_sub(u128::from(limit));
        let drained = Duration::from_nanos(u64::try_from(over.div_ceil(u128::from(limit.max(1)))).unwrap_or(u64::MAX));
        Some(if short > 0 { drained.max(Duration::from_secs(1)) } else { drained })
    }

    /// Holds tokens for a request in flight.
    pub(super) fn reserve(&mut self, tokens: u64) {
        self.reserved += tokens;
    }

    /// Gives back what a request held and counts what it used.
    pub(super) fn settle(&mut self, limit: u64, reserved: u64, used: u64, now: u64) {
        self.drain(limit, now);
        self.reserved = self.reserved.saturating_sub(reserved);
        self.used += u128::from(used) * MINUTE;
    }

    /// Where it stands.
    pub(super) fn level(&mut self, limit: u64, now: u64) -> Level {
        self.drain(limit, now);
        let used = u64::try_from(self.used.div_ceil(MINUTE)).unwrap_or(u64::MAX);
        let reset = self.used / u128::from(limit.max(1));
        Level {
            limit,
            remaining: limit.saturating_sub(used).saturating_sub(self.reserved),
            reset: Duration::from_nanos(u64::try_from(reset).unwrap_or(u64::MAX)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn what_was_used_drains_and_what_is_reserved_does_not() {
        let mut bucket = Bucket::default();
        assert_eq!(bucket.wait(60, 60, 0), Some(Duration::ZERO));
        bucket.reserve(60);
        assert!(bucket.wait(60, 1, 600 * SECOND).is_some_and(|wait| wait >= Duration::from_secs(1)), "reserved for ten minutes");
        bucket.settle(60, 60, 30, 600 * SECOND);
        assert_eq!(bucket.wait(60, 31, 600 * SECOND), Some(Duration::from_secs(1)));
        assert_eq!(bucket.wait(60, 31, 601 * SECOND), Some(Duration::ZERO));
        assert_eq!(bucket.wait(60, 61, 0), None, "larger than the limit can ever be");
        assert_eq!(bucket.wait(0, 1, 0), None, "zero is zero");
        assert_eq!(bucket.level(60, 601 * SECOND), Level { limit: 60, remaining: 31, reset: Duration::from_secs(29) });
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn no_minute_takes_more_than_the_limit_and_what_drained_before(steps in proptest::collection::vec((0u64..5, 1u64..80, 0u64..100), 1..60)) {
            let (limit, mut now, mut bucket) = (100, 0, Bucket::default());
            let mut used: Vec<(u64, u64)> = Vec::new();
            for (seconds, tokens, part) in steps {
                now += seconds * SECOND;
                if bucket.wait(limit, tokens, now) == Some(Duration::ZERO) {
                    bucket.reserve(tokens);
                    let actual = tokens * part / 100;
                    bucket.settle(limit, tokens, actual, now);
                    used.push((now, actual));
                }
                // Any window of length w holds at most limit × (1 + w / minute).
                for (start, _) in &used {
                    let sum: u64 = used.iter().filter(|(at, _)| at >= start).map(|(_, tokens)| tokens).sum();
                    prop_assert!(sum * 60 * SECOND <= limit * (60 * SECOND + now - start));
                }
            }
        }
    }
}
