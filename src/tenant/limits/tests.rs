#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use super::*;
use crate::clock::Hand;
use crate::config::{Config, Key, Limit, Limits, Model, Tenant};
use proptest::prelude::*;
use std::sync::atomic::{AtomicUsize, Ordering};

const MINUTE: Duration = Duration::from_secs(60);

fn per_minute(requests: Option<u32>) -> Limits {
    Limits { all: Limit { requests_per_minute: requests, ..Limit::default() }, ..Limits::default() }
}

/// Limits asked for one model.
struct Asked(RequestLimits);

impl Asked {
    fn take(&self, tenant: &Tenant, key: usize) -> Result<(Taken, Option<Level>), Error> {
        let model = model();
        self.0.take(Asker { tenant, key: &tenant.keys[key], model: &model })
    }

    fn level(&self, tenant: &Tenant, key: usize) -> Option<Level> {
        let model = model();
        self.0.level(Asker { tenant, key: &tenant.keys[key], model: &model })
    }
}

fn model() -> Model {
    Config::default().models.values().next().unwrap().as_ref().clone()
}

/// A tenant whose keys have these limits.
fn tenant(limit: Option<u32>, keys: &[Option<u32>]) -> Tenant {
    let key = |(index, limit): (usize, &Option<u32>)| Key { limits: per_minute(*limit), ..Key::new(format!("k{index}").into(), [0; 32]) };
    Tenant { limits: per_minute(limit), keys: keys.iter().enumerate().map(key).collect(), ..Tenant::new("t".into()) }
}

fn limits() -> (Asked, Hand) {
    let (clock, hand) = Clock::manual(Duration::ZERO);
    (Asked(RequestLimits::new(clock)), hand)
}

fn refuse(taken: Taken) {
    assert!(Box::new(taken).release(Outcome::Refused, &Usage::default()).is_none());
}

fn retry_after(error: &Error) -> Duration {
    let Error::RateLimited { retry_after, .. } = error else { panic!("{error:?}") };
    *retry_after
}

#[test]
fn a_burst_of_the_limit_passes_and_the_next_waits_for_one_to_come_back() {
    let (limits, hand) = limits();
    let tenant = tenant(Some(3), &[None]);
    for remaining in [2, 1, 0] {
        let (_, level) = limits.take(&tenant, 0).unwrap();
        assert_eq!(level.map(|level| (level.limit, level.remaining)), Some((3, remaining)));
    }
    let error = limits.take(&tenant, 0).unwrap_err();
    assert_eq!(retry_after(&error), Duration::from_secs(20));
    assert!(error.to_string().contains("tenant `t`"), "{error}");
    hand.advance(Duration::from_secs(20));
    limits.take(&tenant, 0).unwrap().1.unwrap();
    assert_eq!(limits.level(&tenant, 0), Some(Level { limit: 3, remaining: 0, reset: MINUTE }));
    hand.advance(MINUTE);
    assert_eq!(limits.level(&tenant, 0), Some(Level { limit: 3, remaining: 3, reset: Duration::ZERO }));
}

#[test]
fn zero_is_zero() {
    let (limits, hand) = limits();
    for tenant in [tenant(Some(0), &[None]), tenant(None, &[Some(0)]), tenant(Some(5), &[Some(0)])] {
        for _ in 0..3 {
            assert_eq!(retry_after(&limits.take(&tenant, 0).unwrap_err()), MINUTE);
            assert_eq!(limits.level(&tenant, 0), Some(Level { limit: 0, remaining: 0, reset: MINUTE }));
            hand.advance(MINUTE);
        }
    }
}

#[test]
fn without_a_limit_everything_passes_and_there_is_no_level() {
    let (limits, _) = limits();
    let tenant = tenant(None, &[None]);
    for _ in 0..1000 {
        assert_eq!(limits.take(&tenant, 0).unwrap().1, None);
    }
}

#[test]
fn a_refusal_consumes_nothing_of_either_limit() {
    let (limits, _) = limits();
    let both = tenant(Some(10), &[Some(2), None]);
    let _kept = [limits.take(&both, 0).unwrap(), limits.take(&both, 0).unwrap()];
    for _ in 0..5 {
        assert!(limits.take(&both, 0).unwrap_err().to_string().contains("key `k0` of tenant `t`"));
    }
    assert_eq!(limits.level(&both, 1).map(|level| level.remaining), Some(8), "the key's refusals left the tenant alone");

    let (limits, _) = self::limits();
    let small = tenant(Some(1), &[Some(5), None]);
    let _kept = limits.take(&small, 1).unwrap();
    assert!(limits.take(&small, 0).unwrap_err().to_string().contains("tenant `t`"));
    let unlimited = tenant(None, &[Some(5), None]);
    assert_eq!(limits.level(&unlimited, 0).map(|level| level.remaining), Some(5), "the tenant's refusal gave the key's back");
}

#[test]
fn a_refusal_says_when_both_limits_would_let_the_request_pass() {
    let (limits, hand) = limits();
    let tenant = tenant(Some(1), &[Some(2)]);
    let _one = limits.take(&tenant, 0).unwrap();
    hand.advance(MINUTE / 2);
    let error = limits.take(&tenant, 0).unwrap_err();
    assert_eq!(retry_after(&error), MINUTE / 2);
    hand.advance(retry_after(&error));
    assert!(limits.take(&tenant, 0).is_ok());
}

#[test]
fn only_a_request_refused_before_any_work_is_given_back() {
    let (limits, _) = limits();
    let tenant = tenant(Some(4), &[Some(3)]);
    for end in [Outcome::Done, Outcome::Error, Outcome::ClientGone] {
        let (taken, _) = limits.take(&tenant, 0).unwrap();
        assert!(Box::new(taken).release(end, &Usage::default()).is_none());
    }
    assert_eq!(limits.level(&tenant, 0).map(|level| level.remaining), Some(0));

    let (limits, _) = self::limits();
    for _ in 0..10 {
        refuse(limits.take(&tenant, 0).unwrap().0);
    }
    assert_eq!(limits.level(&tenant, 0).map(|level| level.remaining), Some(3));
}

#[test]
fn what_was_used_survives_a_new_limit() {
    let (limits, hand) = limits();
    let _kept: Vec<_> = (0..10).map(|_| limits.take(&tenant(Some(10), &[None]), 0).unwrap()).collect();
    let raised = tenant(Some(20), &[None]);
    assert!(limits.take(&raised, 0).is_err(), "a fully used minute stays fully used");
    hand.advance(MINUTE / 2);
    assert_eq!(limits.level(&raised, 0).map(|level| level.remaining), Some(10));
    assert_eq!(limits.level(&tenant(Some(2), &[None]), 0).map(|level| level.remaining), Some(1));
}

#[test]
fn parallel_requests_never_exceed_the_limit() {
    let (limits, _) = limits();
    let tenant = tenant(Some(100), &[Some(80), Some(80)]);
    let passed = [AtomicUsize::new(0), AtomicUsize::new(0)];
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let (limits, tenant, passed) = (&limits, &tenant, &passed);
            scope.spawn(move || {
                let key = thread % 2;
                for round in 0..200 {
                    match limits.take(tenant, key) {
                        // Every other one is refused further down and given back.
                        Ok((taken, _)) if round % 2 == 0 => refuse(taken),
                        Ok(_) => drop(passed[key].fetch_add(1, Ordering::Relaxed)),
                        Err(_) => {}
                    }
                }
            });
        }
    });
    let [one, two] = passed.map(AtomicUsize::into_inner);
    assert!(one <= 80 && two <= 80 && one + two <= 100, "{one} {two}");
    // Time stands still, so what is left after all of them is exactly what they left.
    let mut rest = 0;
    for key in [0, 1] {
        while let Ok((_taken, _)) = limits.take(&tenant, key) {
            rest += 1;
        }
    }
    assert_eq!(one + two + rest, 100);
}

/// The same promise, as simply as it can be said: a bucket that time fills.
struct Bucket {
    limit: u32,
    /// Nanoseconds worth of requests used.
    used: u64,
}

impl Bucket {
    fn one(&self) -> u64 {
        60_000_000_000 / u64::from(self.limit.max(1))
    }

    fn pass(&mut self, time: u64) {
        self.used = self.used.saturating_sub(time);
    }

    fn room(&self) -> bool {
        self.limit > 0 && self.used + self.one() <= self.one() * u64::from(self.limit)
    }
}

#[derive(Clone, Debug)]
enum Step {
    Take {
        key: usize,
    },
    /// Refuses one of those taken, whichever.
    Refuse {
        which: usize,
    },
    Pass {
        milliseconds: u64,
    },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        5 => (0..2_usize).prop_map(|key| Step::Take { key }),
        2 => (0..64_usize).prop_map(|which| Step::Refuse { which }),
        2 => (0..30_000_u64).prop_map(|milliseconds| Step::Pass { milliseconds }),
    ];
    prop::collection::vec(step, 1..120)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]
    #[test]
    fn the_limits_behave_like_buckets_that_time_fills(of_tenant in 0..20_u32, of_key in 0..10_u32, steps in steps()) {
        let (limits, hand) = limits();
        let tenant = tenant(Some(of_tenant), &[Some(of_key), None]);
        let mut buckets = [Bucket { limit: of_key, used: 0 }, Bucket { limit: of_tenant, used: 0 }];
        let mut held = Vec::new();
        for step in steps {
            match step {
                Step::Take { key } => {
                    let mine = &mut buckets[key..]; // the second key has no limit of its own
                    let taken = limits.take(&tenant, key);
                    prop_assert_eq!(taken.is_ok(), mine.iter().all(Bucket::room));
                    if let Ok((taken, _)) = taken {
                        mine.iter_mut().for_each(|bucket| bucket.used += bucket.one());
                        held.push((taken, key));
                    }
                }
                Step::Refuse { which } if !held.is_empty() => {
                    let (taken, key) = held.swap_remove(which % held.len());
                    refuse(taken);
                    buckets[key..].iter_mut().for_each(|bucket| bucket.used = bucket.used.saturating_sub(bucket.one()));
                }
                Step::Refuse { .. } => {}
                Step::Pass { milliseconds } => {
                    let time = Duration::from_millis(milliseconds);
                    hand.advance(time);
                    buckets.iter_mut().for_each(|bucket| bucket.pass(milliseconds * 1_000_000));
                }
            }
            let tightest = limits.level(&tenant, 0).unwrap();
            let remaining = |bucket: &Bucket| u64::from(bucket.limit) - bucket.used.div_ceil(bucket.one());
            let expected = buckets.iter().map(remaining).min().unwrap();
            prop_assert_eq!(tightest.remaining, expected);
        }
    }
}
