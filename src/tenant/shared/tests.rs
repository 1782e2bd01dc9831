#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use super::*;
use crate::call::{Level, Limited};
use crate::config::{Amount, Config, Key, Limit, Limits, Model, Money, Per, Prices, Quota, Tenant, Zone};
use crate::services::Redis;
use proptest::prelude::*;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicI64, Ordering};

/// One process on a Redis.
struct Replica {
    shared: Shared,
    runtime: tokio::runtime::Runtime,
}

static NEXT: AtomicI64 = AtomicI64::new(1);

// === impl Replica ===

impl Replica {
    /// One of so many on this Redis.
    fn of(replicas: u32, redis: &Redis, on_store_loss: OnStoreLoss) -> Self {
        let store = Store { replicas: NonZeroU32::new(replicas), on_store_loss, ..Store::default() };
        let replica = NEXT.fetch_add(1, Ordering::Relaxed);
        let shared = Shared::open(&Secret::new(redis.url()), &store, Clock::system(), replica, None, Gauge::noop()).unwrap();
        Self { shared, runtime: tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap() }
    }

    fn reserve(&self, asked: &Asked) -> (Levels, Result<Held, Error>) {
        self.runtime.block_on(self.shared.reserve(asked))
    }

    fn held(&self, asked: &Asked) -> Held {
        self.reserve(asked).1.unwrap()
    }

    fn settle(&self, asked: &Asked, held: Held, tokens: u64, end: Outcome) {
        self.runtime.block_on(self.shared.settle(&asked.need(), held, worth(tokens), end, || {}));
    }

    /// Waits until this process takes Redis to be there or lost.
    fn wait(&self, lost: bool) {
        while self.shared.loss.is_lost() != lost {
            std::thread::yield_now();
        }
    }
}

fn worth(tokens: u64) -> Worth {
    Worth { tokens, cost: Money::from_nanos(tokens * 10) }
}

fn model() -> Arc<Model> {
    static MODEL: LazyLock<Arc<Model>> = LazyLock::new(|| {
        let prices = Prices { input: Money::from_nanos(10), cached_input: Money::from_nanos(1), output: Money::from_nanos(10) };
        Arc::new(Model { prices: Some(prices), ..Config::default().models.values().next().unwrap().as_ref().clone() })
    });
    MODEL.clone()
}

fn quota(amount: Amount) -> Quota {
    // A day that ends while a test runs would be another quota; this zone's next midnight is far.
    Quota { amount, per: Per::Month, zone: Zone::default(), hard: true, model: None }
}

fn asked(name: &str, quotas: Vec<Quota>, limit: Limit, of_key: Limit) -> Asked {
    let limits = |all| Limits { all, ..Limits::default() };
    let key = Key { limits: limits(of_key), ..Key::new("k".into(), [0; 32]) };
    let tenant = Tenant { quotas, limits: limits(limit), ..Tenant::new(name.into()) };
    Asked::parts(tenant, key, model(), 10, 1, 40)
}

fn tokens_of_ten_prompts(tokens: u64) -> Asked {
    asked("t", vec![quota(Amount::Tokens(tokens))], Limit::default(), Limit::default())
}

#[test]
fn two_replicas_share_one_quota_to_its_last_token() {
    let redis = Redis::start();
    let (one, two) = std::thread::scope(|scope| {
        let one = scope.spawn(|| Replica::of(2, &redis, OnStoreLoss::Deny));
        (one.join(), Replica::of(2, &redis, OnStoreLoss::Deny))
    });
    let one = one.unwrap();
    let call = tokens_of_ten_prompts(100);
    let first = one.held(&call);
    assert_eq!(first.max_tokens(), 40);
    let second = two.held(&call);
    assert!(matches!(one.reserve(&call).1, Err(Error::QuotaReserved { .. })), "two hold fifty each");
    one.settle(&call, first, 50, Outcome::Done);
    two.settle(&call, second, 15, Outcome::Done);
    let last = one.held(&call);
    assert_eq!(last.max_tokens(), 25, "100 - 65 - 10");
    one.settle(&call, last, 35, Outcome::Done);
    assert!(matches!(two.reserve(&call).1, Err(Error::QuotaSpent { .. })));
}

#[test]
fn requests_tokens_and_slots_are_shared_and_what_is_refused_comes_back() {
    let redis = Redis::start();
    let one = Replica::of(1, &redis, OnStoreLoss::Deny);
    let two = Replica::of(1, &redis, OnStoreLoss::Deny);
    let limit = Limit { requests_per_minute: Some(3), tokens_per_minute: Some(150), concurrent: Some(2), tokens_per_request: None };
    let call = asked("t", Vec::new(), limit, Limit::default());
    let (first, second) = (one.held(&call), two.held(&call));
    let (levels, refused) = one.reserve(&call);
    assert!(matches!(refused, Err(Error::RateLimited { limited: Limited::Concurrency, limit: 2, .. })), "{refused:?}");
    let remaining = |level: Option<Level>| level.unwrap().remaining;
    assert_eq!((remaining(levels.requests), remaining(levels.tokens)), (1, 50), "the refusal took nothing");
    one.settle(&call, first, 0, Outcome::Refused);
    let (levels, third) = two.reserve(&call);
    assert_eq!((remaining(levels.requests), remaining(levels.tokens)), (1, 50), "what was refused further down is back");
    two.settle(&call, second, 50, Outcome::Done);
    two.settle(&call, third.unwrap(), 50, Outcome::Done);
    let fourth = one.held(&call);
    one.settle(&call, fourth, 10, Outcome::Done);
    let (_, refused) = one.reserve(&call);
    assert!(matches!(refused, Err(Error::RateLimited { limited: Limited::Tokens, .. })), "{refused:?}");
    let small = asked("t", Vec::new(), Limit { tokens_per_minute: None, ..limit }, Limit::default());
    let Err(Error::RateLimited { limited: Limited::Requests, retry_after, .. }) = two.reserve(&small).1 else { panic!("three were taken") };
    assert!(retry_after > Duration::ZERO && retry_after <= Duration::from_secs(20), "{retry_after:?}");
}

#[test]
fn what_was_used_and_is_held_survives_a_redis_that_forgot_everything() {
    let mut redis = Redis::start();
    let one = Replica::of(1, &redis, OnStoreLoss::Deny);
    let call = tokens_of_ten_prompts(200);
    let done = one.held(&call);
    one.settle(&call, done, 50, Outcome::Done);
    let (cut, open) = (one.held(&call), one.held(&call));
    redis.stop();
    one.settle(&call, cut, 35, Outcome::Done);
    one.wait(true);
    assert!(matches!(one.reserve(&call).1, Err(Error::StoreLost { .. })));
    redis.start_again();
    one.wait(false);
    // 50 + 35 are used and 50 held: one more passes, and what is left is too little for a second one.
    let last = one.held(&call);
    assert!(matches!(one.reserve(&call).1, Err(Error::QuotaReserved { .. })));
    one.settle(&call, open, 50, Outcome::Done);
    one.settle(&call, last, 50, Outcome::Done);
    assert_eq!(one.held(&call).max_tokens(), 5, "200 - 185 - 10");
}

#[test]
fn nothing_is_counted_twice_by_a_redis_that_remembers() {
    let mut redis = Redis::keeping();
    let one = Replica::of(1, &redis, OnStoreLoss::Allow);
    let call = tokens_of_ten_prompts(200);
    let open: Vec<_> = (0..3).map(|_| one.held(&call)).collect();
    redis.stop();
    one.wait(true);
    for held in open {
        one.settle(&call, held, 30, Outcome::Done);
    }
    let beyond = one.held(&call);
    assert_eq!(beyond.max_tokens(), 40, "let pass, and counted");
    redis.start_again();
    one.wait(false);
    let next = one.held(&call);
    assert!(matches!(one.reserve(&call).1, Err(Error::QuotaReserved { .. })), "90 used, 100 held");
    one.settle(&call, beyond, 50, Outcome::Done);
    one.settle(&call, next, 50, Outcome::Done);
    assert!(matches!(one.reserve(&call).1, Err(Error::QuotaSpent { .. })), "190 used");
}

#[test]
fn while_redis_is_lost_each_replica_grants_its_share() {
    let mut redis = Redis::start();
    let (one, two) = std::thread::scope(|scope| {
        let one = scope.spawn(|| Replica::of(2, &redis, OnStoreLoss::Local));
        let two = Replica::of(2, &redis, OnStoreLoss::Local);
        (one.join().unwrap(), two)
    });
    let limit = Limit { requests_per_minute: Some(100), concurrent: Some(5), ..Limit::default() };
    let call = asked("t", vec![quota(Amount::Tokens(1000))], limit, Limit::default());
    let before = one.held(&call);
    one.settle(&call, before, 50, Outcome::Done);
    let known = two.held(&call);
    two.settle(&call, known, 50, Outcome::Done);
    redis.stop();
    one.wait(true);
    two.wait(true);
    let open = [one.held(&call), one.held(&call)];
    let refused = one.reserve(&call).1;
    assert!(matches!(refused, Err(Error::RateLimited { limited: Limited::Concurrency, limit: 2, .. })), "{refused:?}");
    for held in open {
        one.settle(&call, held, 50, Outcome::Done);
    }
    let mut used = 0;
    let refused = loop {
        match one.reserve(&call).1 {
            Ok(held) => {
                let tokens = 10 + u64::from(held.max_tokens());
                one.settle(&call, held, tokens, Outcome::Done);
                used += tokens;
            }
            Err(refused) => break refused,
        }
    };
    assert!(matches!(refused, Error::StoreLost { .. }), "the share is spent, not the quota: {refused}");
    // What this replica last heard: 50 used by itself and 50 held by nobody or by the other; a half of the rest.
    assert!((375..=475).contains(&(used + 100)), "{used}");
    redis.start_again();
    one.wait(false);
    two.wait(false);
    assert!(two.reserve(&call).1.is_ok(), "and now the rest is there for both");
}

#[test]
fn a_redis_that_answers_nobody_is_lost_and_no_call_waits_for_it() {
    let redis = Redis::start();
    let one = Replica::of(1, &redis, OnStoreLoss::Deny);
    let call = tokens_of_ten_prompts(1000);
    let held = one.held(&call);
    redis.hold(true);
    assert!(matches!(one.reserve(&call).1, Err(Error::StoreLost { .. })), "an answer, though Redis gives none");
    one.settle(&call, held, 20, Outcome::Done);
    redis.hold(false);
    one.wait(false);
    // The question that Redis did answer after all holds nothing: all but what was used is there.
    let rest = asked("t", vec![quota(Amount::Tokens(60))], Limit::default(), Limit::default());
    assert_eq!(one.held(&rest).max_tokens(), 30, "60 - 20 - 10, and nothing is held");
}

#[test]
fn a_call_that_nobody_waits_for_any_more_holds_nothing() {
    let redis = Redis::start();
    let one = Replica::of(1, &redis, OnStoreLoss::Deny);
    let call = asked("t", Vec::new(), Limit { concurrent: Some(1), ..Limit::default() }, Limit::default());
    for polls in 0..20 {
        one.runtime.block_on(async {
            let mut asking = Box::pin(one.shared.reserve(&call));
            for _ in 0..polls {
                tokio::select! {
                    biased;
                    (_, held) = &mut asking => return one.shared.settle(&call.need(), held.unwrap(), worth(0), Outcome::Done, || {}).await,
                    () = tokio::task::yield_now() => {}
                }
            }
        });
        // The slot comes back as soon as the thread has heard of it, if not at once.
        while let Err(error) = one.reserve(&call).1.map(|held| one.settle(&call, held, 0, Outcome::Done)) {
            assert!(matches!(error, Error::RateLimited { .. }), "{error}");
        }
    }
}

#[derive(Clone, Debug)]
struct Turn {
    prompt: u64,
    choices: u64,
    max_tokens: u32,
    /// What a call that ends used of what it held, in hundredths.
    part: u64,
    ends: bool,
    refused: bool,
}

fn turns() -> impl Strategy<Value = Vec<Turn>> {
    let turn = (1u64..30, 1u64..3, 1u32..50, 0u64..101, any::<bool>(), any::<bool>())
        .prop_map(|(prompt, choices, max_tokens, part, ends, refused)| Turn { prompt, choices, max_tokens, part, ends, refused });
    proptest::collection::vec(turn, 1..25)
}

fn limit() -> impl Strategy<Value = Limit> {
    let any = |range: std::ops::Range<u32>| proptest::option::of(range);
    (any(0..12), any(0..400), any(0..4), any(20..120)).prop_map(|(requests, tokens, concurrent, largest)| Limit {
        requests_per_minute: requests,
        tokens_per_minute: tokens.map(u64::from),
        concurrent,
        tokens_per_request: largest.map(u64::from),
    })
}

/// An error without how long to wait, which passes while it is compared.
fn kind(error: &Error) -> String {
    let text = error.to_string();
    let end = text.find("Try again in").or_else(|| text.find("It begins anew")).unwrap_or(text.len());
    text[..end].to_owned()
}

/// A limit, and what is left of it.
type Left = Option<(u64, u64)>;

fn standing(levels: &Levels) -> (Left, Left, Vec<String>) {
    let level = |level: Option<Level>| level.map(|level| (level.limit, level.remaining));
    (level(levels.requests), level(levels.tokens), levels.passed.clone())
}

#[test]
fn redis_counts_as_a_process_does() {
    let redis = Redis::start();
    let one = Replica::of(1, &redis, OnStoreLoss::Deny);
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig::with_cases(48));
    let quotas = (100u64..800, 1000u64..8000, any::<bool>());
    let case = AtomicI64::new(0);
    runner
        .run(&(turns(), limit(), limit(), quotas), |(turns, limit, of_key, (tokens, cost, hard))| {
            let name = format!("t{}", case.fetch_add(1, Ordering::Relaxed));
            let local = Local::new(Clock::system());
            let quotas = vec![quota(Amount::Tokens(tokens)), Quota { hard, ..quota(Amount::Cost(Money::from_nanos(cost))) }];
            let base = asked(&name, quotas, limit, of_key);
            let mut open: Vec<(Asked, Held, crate::tenant::local::Held)> = Vec::new();
            for turn in turns {
                if turn.ends && !open.is_empty() {
                    let (asked, there, here) = open.remove(0);
                    let used = if turn.refused { 0 } else { here.reserved.tokens * turn.part / 100 };
                    let end = if turn.refused { Outcome::Refused } else { Outcome::Done };
                    one.settle(&asked, there, used, end);
                    local.settle(&asked.need(), here, worth(used), end, || {});
                }
                let asked = Asked::parts(
                    Tenant::clone(&base.tenant),
                    Key::clone(&base.key),
                    base.model.clone(),
                    turn.prompt,
                    turn.choices,
                    turn.max_tokens,
                );
                let (levels, there) = one.reserve(&asked);
                match (there, local.reserve(&asked.need())) {
                    (Ok(there), Ok((here, expected))) => {
                        prop_assert_eq!(there.max_tokens(), here.max_tokens);
                        prop_assert_eq!(standing(&levels), standing(&expected));
                        open.push((asked, there, here));
                    }
                    (Err(there), Err(here)) => {
                        prop_assert_eq!(kind(&there), kind(&here));
                        prop_assert_eq!(standing(&levels), standing(&local.levels(&asked.need())));
                    }
                    (there, here) => prop_assert!(false, "{there:?} and {here:?}"),
                }
            }
            for (asked, there, _) in open {
                one.settle(&asked, there, 0, Outcome::Done);
            }
            Ok(())
        })
        .unwrap();
}
