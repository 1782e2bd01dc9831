#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use super::*;
use crate::clock::Hand;
use crate::config::{Amount, Config, Key, Limit, Limits, Model, Money, Per, Prices, Tenant, Zone};
use crate::tenant::subject::Asker;
use proptest::prelude::*;

fn quota(amount: Amount) -> Quota {
    Quota { amount, per: Per::Day, zone: Zone::default(), hard: true, model: None }
}

fn tenant(quotas: Vec<Quota>, limit: Limit) -> Tenant {
    let limits = Limits { all: limit, ..Limits::default() };
    Tenant { quotas, limits, keys: vec![Key::new("k".into(), [0; 32])], ..Tenant::new("t".into()) }
}

fn model() -> Model {
    let prices = Prices { input: Money::from_nanos(10), cached_input: Money::from_nanos(1), output: Money::from_nanos(20) };
    Model { prices: Some(prices), ..Config::default().models.values().next().unwrap().as_ref().clone() }
}

fn need<'a>(tenant: &'a Tenant, model: &'a Model, prompt: u64, choices: u64, max_tokens: u32) -> Need<'a> {
    Need { asker: Asker { tenant, key: &tenant.keys[0], model }, prompt, choices, max_tokens }
}

fn local() -> (Local, Hand) {
    let (clock, hand) = Clock::manual(Duration::from_secs(1_000_000_000));
    (Local::new(clock), hand)
}

fn tokens(tokens: u64) -> Worth {
    Worth { tokens, cost: Money::default() }
}

fn settle(local: &Local, need: &Need<'_>, held: Held, used: u64) {
    local.settle(need, held, tokens(used), Outcome::Done, || {});
}

#[test]
fn the_last_tokens_of_a_quota_shorten_an_answer_and_then_it_is_spent() {
    let (local, hand) = local();
    let (tenant, model) = (tenant(vec![quota(Amount::Tokens(100))], Limit::default()), model());
    let need = need(&tenant, &model, 10, 2, 40);
    let (held, _) = local.reserve(&need).unwrap();
    assert_eq!((held.max_tokens, held.reserved.tokens), (40, 90));
    assert!(matches!(local.reserve(&need), Err(Error::QuotaReserved { .. })), "what is left is held by a request in flight");
    settle(&local, &need, held, 70);
    let (held, _) = local.reserve(&need).unwrap();
    assert_eq!(held.max_tokens, 10, "(100 - 70 - 10) / 2");
    settle(&local, &need, held, 30);
    let Err(Error::QuotaSpent { resets_in, .. }) = local.reserve(&need) else { panic!("spent") };
    hand.advance(resets_in);
    assert_eq!(local.reserve(&need).unwrap().0.max_tokens, 40, "a new day");
}

#[test]
fn money_is_reserved_by_what_it_could_cost_at_most() {
    let (local, _) = local();
    let (tenant, model) = (tenant(vec![quota(Amount::Cost(Money::from_nanos(1000)))], Limit::default()), model());
    let need = need(&tenant, &model, 10, 1, 40);
    let (held, _) = local.reserve(&need).unwrap();
    assert_eq!(held.reserved.cost.nanos(), 10 * 10 + 40 * 20);
    let used = need.counted(&Usage { prompt_tokens: 10, cached_tokens: 8, completion_tokens: 5, ..Usage::default() });
    assert_eq!(used.cost.nanos(), 2 * 10 + 8 + 5 * 20);
    local.settle(&need, held, used, Outcome::Done, || {});
    let (held, _) = local.reserve(&need).unwrap();
    assert_eq!(held.max_tokens, 38, "(1000 - 128 - 100) / 20");
}

#[test]
fn a_refusal_in_any_dimension_takes_nothing_in_the_others() {
    let (local, _) = local();
    let limit = Limit { requests_per_minute: Some(2), tokens_per_minute: Some(100), concurrent: Some(1), tokens_per_request: Some(60) };
    let (tenant, model) = (tenant(vec![quota(Amount::Tokens(1000))], limit), model());
    let small = need(&tenant, &model, 10, 1, 10);
    assert!(matches!(local.reserve(&need(&tenant, &model, 50, 1, 20)), Err(Error::TooLargeForLimit { limited: Limited::Request, .. })));
    let (held, levels) = local.reserve(&small).unwrap();
    assert_eq!(levels.tokens.map(|level| level.remaining), Some(80));
    let refused = local.reserve(&small).unwrap_err();
    assert!(matches!(refused, Error::RateLimited { limited: Limited::Concurrency, .. }), "{refused}");
    let levels = local.levels(&small);
    assert_eq!((levels.tokens.unwrap().remaining, levels.requests.unwrap().remaining), (80, 1));
    local.settle(&small, held, Worth::default(), Outcome::Refused, || {});
    let levels = local.levels(&small);
    assert_eq!((levels.tokens.unwrap().remaining, levels.requests.unwrap().remaining), (100, 2), "refused further down: all of it is back");
    let (held, _) = local.reserve(&need(&tenant, &model, 50, 1, 10)).unwrap();
    settle(&local, &small, held, 60);
    assert!(matches!(local.reserve(&need(&tenant, &model, 50, 1, 10)), Err(Error::RateLimited { limited: Limited::Tokens, .. })));
}

#[test]
fn a_soft_quota_lets_pass_and_tells() {
    let (local, _) = local();
    let (tenant, model) = (tenant(vec![Quota { hard: false, ..quota(Amount::Tokens(15)) }], Limit::default()), model());
    let need = need(&tenant, &model, 10, 1, 5);
    assert_eq!(local.reserve(&need).unwrap().1.passed, Vec::<String>::new());
    assert_eq!(local.reserve(&need).unwrap().1.passed, ["15 tokens per day"]);
}

#[test]
fn a_request_that_ends_in_the_next_window_counts_in_its_own() {
    let (local, hand) = local();
    let (tenant, model) = (tenant(vec![quota(Amount::Tokens(100))], Limit::default()), model());
    let need = need(&tenant, &model, 10, 1, 90);
    let (old, _) = local.reserve(&need).unwrap();
    hand.advance(Duration::from_secs(86_400));
    let (new, _) = local.reserve(&need).unwrap();
    settle(&local, &need, old, 100);
    assert!(matches!(local.reserve(&need), Err(Error::QuotaReserved { .. })), "the new one still holds what it holds");
    settle(&local, &need, new, 0);
    assert_eq!(local.reserve(&need).unwrap().0.max_tokens, 90);
}

#[test]
fn n_threads_together_never_pass_a_quota() {
    let (local, _) = local();
    let (tenant, model) = (tenant(vec![quota(Amount::Tokens(10_000))], Limit::default()), model());
    let used: u64 = std::thread::scope(|scope| {
        let work = |seed: u64| {
            let (local, tenant, model) = (&local, &tenant, &model);
            move || {
                let (mut used, mut draw) = (0, seed);
                loop {
                    draw = draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    let need = need(tenant, model, 5, 1 + (draw >> 60) % 2, 40);
                    match local.reserve(&need) {
                        Ok((held, _)) => {
                            let tokens = 5 + need.choices * ((draw >> 33) % u64::from(held.max_tokens + 1));
                            settle(local, &need, held, tokens);
                            used += tokens;
                        }
                        Err(Error::QuotaReserved { .. }) => std::thread::yield_now(),
                        Err(Error::QuotaSpent { .. }) => return used,
                        Err(other) => panic!("{other}"),
                    }
                }
            }
        };
        let threads: Vec<_> = (0..8).map(|seed| scope.spawn(work(seed))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert!((9_990..=10_000).contains(&used), "{used}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn whatever_the_order_used_and_held_stay_within_the_quota(steps in proptest::collection::vec((1u64..30, 1u64..3, 1u32..50, 0u64..101, any::<bool>()), 1..80)) {
        let (local, _) = local();
        let (tenant, model) = (tenant(vec![quota(Amount::Tokens(500))], Limit::default()), model());
        let (mut open, mut used) = (Vec::new(), 0);
        for (prompt, choices, max_tokens, part, ends) in steps {
            if ends && !open.is_empty() {
                let (held, need): (Held, Need<'_>) = open.remove(0);
                let tokens = held.reserved.tokens * part / 100;
                settle(&local, &need, held, tokens);
                used += tokens;
            }
            let need = need(&tenant, &model, prompt, choices, max_tokens);
            if let Ok((held, _)) = local.reserve(&need) {
                open.push((held, need));
            }
            let held: u64 = open.iter().map(|(held, _)| held.reserved.tokens).sum();
            prop_assert!(used + held <= 500);
        }
    }
}
