//! Keeps calls from a remote that fails again and again.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A circuit breaker.
///
/// `Closed => Open` after [`FAILURES`] in a row; `Open => HalfOpen` when the next call comes after the wait, which is let
/// through as the probe; `HalfOpen => Closed` when it has content, `=> Open` for twice as long when it fails.
#[derive(Debug, Default)]
pub(super) struct Breaker(Mutex<State>);

#[derive(Clone, Copy, Debug)]
enum State {
    Closed { failures: u32 },
    Open { until: Instant, wait: Duration },
    HalfOpen { wait: Duration },
}

/// How a call is let through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pass {
    /// As all are.
    Free,
    /// To see whether the remote works again.
    Probe,
}

const FAILURES: u32 = 5;
const FIRST_WAIT: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_secs(30);

// === impl State ===

impl Default for State {
    fn default() -> Self {
        State::Closed { failures: 0 }
    }
}

// === impl Breaker ===

impl Breaker {
    /// Whether a call would be let through.
    pub(super) fn admits(&self, now: Instant) -> bool {
        match *self.state() {
            State::Closed { .. } => true,
            State::Open { until, .. } => now >= until,
            State::HalfOpen { .. } => false,
        }
    }

    /// Lets a call through, or doesn't. What comes of it has to be told.
    pub(super) fn enter(&self, now: Instant) -> Option<Pass> {
        let mut state = self.state();
        match *state {
            State::Closed { .. } => Some(Pass::Free),
            State::Open { until, wait } if now >= until => {
                *state = State::HalfOpen { wait };
                Some(Pass::Probe)
            }
            State::Open { .. } | State::HalfOpen { .. } => None,
        }
    }

    /// The call has content. One that works again is trusted on probation: the next failure counts as the last did.
    pub(super) fn began(&self, pass: Pass) {
        if pass == Pass::Probe {
            *self.state() = State::Closed { failures: FAILURES - 1 };
        }
    }

    /// The call was answered to its end, or refused with a reason.
    pub(super) fn worked(&self) {
        *self.state() = State::Closed { failures: 0 };
    }

    /// The remote failed. True where that opened the breaker.
    pub(super) fn failed(&self, now: Instant) -> bool {
        let mut state = self.state();
        let wait = match *state {
            State::Closed { failures } if failures + 1 < FAILURES => {
                *state = State::Closed { failures: failures + 1 };
                return false;
            }
            State::Closed { .. } => FIRST_WAIT,
            State::HalfOpen { wait } => (wait * 2).min(LONGEST_WAIT),
            // Calls from before it opened say nothing new.
            State::Open { .. } => return false,
        };
        *state = State::Open { until: now + wait, wait };
        true
    }

    /// Nobody will know how the call would have ended: its client left.
    pub(super) fn abandoned(&self, pass: Pass, now: Instant) {
        let mut state = self.state();
        if let (Pass::Probe, State::HalfOpen { wait }) = (pass, *state) {
            *state = State::Open { until: now, wait };
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner) // a state is one value, so never half changed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opened(now: Instant) -> Breaker {
        let breaker = Breaker::default();
        let opened: Vec<_> = (0..FAILURES).map(|_| breaker.failed(now)).collect();
        assert_eq!(opened, [false, false, false, false, true]);
        breaker
    }

    #[test]
    fn failures_in_a_row_keep_calls_away_until_a_probe_works() {
        let now = Instant::now();
        let breaker = opened(now);
        assert!(!breaker.admits(now) && breaker.enter(now).is_none());
        let later = now + FIRST_WAIT;
        assert!(breaker.admits(later));
        assert_eq!(breaker.enter(later), Some(Pass::Probe));
        assert_eq!((breaker.admits(later), breaker.enter(later)), (false, None), "one probe at a time");
        breaker.began(Pass::Probe);
        assert_eq!(breaker.enter(later), Some(Pass::Free));
        assert!(breaker.failed(later), "one failure is enough while it is on probation");
    }

    #[test]
    fn a_probe_that_fails_doubles_the_wait_and_one_whose_client_left_does_not() {
        let mut now = Instant::now();
        let breaker = opened(now);
        now += FIRST_WAIT;
        breaker.enter(now);
        breaker.abandoned(Pass::Probe, now);
        assert_eq!(breaker.enter(now), Some(Pass::Probe));
        breaker.failed(now);
        assert!(!breaker.admits(now + FIRST_WAIT) && breaker.admits(now + 2 * FIRST_WAIT));
    }

    #[test]
    fn an_answer_in_between_starts_the_count_anew() {
        let (breaker, now) = (Breaker::default(), Instant::now());
        for _ in 0..FAILURES - 1 {
            breaker.failed(now);
        }
        breaker.worked();
        assert!(!breaker.failed(now) && breaker.admits(now));
    }
}
