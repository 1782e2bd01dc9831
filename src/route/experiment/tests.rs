#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use super::*;
use crate::call::Usage;
use crate::config::{Class, Endpoint};
use crate::route::rules::{Request, pick, subject};
use std::path::Path;

/// Seeded, so that a test does the same each time (splitmix64).
struct Random(u64);

impl Random {
    fn unit(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }
}

fn config(name: &str, weights: &str, more: &str) -> Config {
    let text = format!(
        "shards.a = {{ weights = \"file:a.gguf\", kv_cache = {{ memory = \"1MiB\" }} }}\n\
         models.m.variants = {{ x = {{ backends = [\"a\"] }}, y = {{ backends = [\"a\"] }} }}\n\
         [[models.m.rules]]\nname = \"all\"\nto = {{ {weights} }}\nexperiment = \"{name}\"\ncontrol = \"x\"\n{more}\n"
    );
    Config::parse(&text, Path::new("r.toml")).unwrap()
}

fn experiments() -> Experiments {
    Experiments::new(Metrics::new(), Clock::manual(Duration::from_secs(1000)).0)
}

/// Sends one request of a user; what came of it is up to `outcome`, which gets the variant. Returns the variant.
fn send(config: &Config, experiment: &Experiment, user: &str, outcome: impl FnOnce(&str) -> (End, f64)) -> Name {
    let model = &config.models["m"];
    let rule = &model.rules[0];
    let request = Request {
        tenant: "t",
        key: "k",
        endpoint: Endpoint::Chat,
        class: Class::Interactive,
        prompt_tokens: 1,
        user: Some(user),
        headers: &[],
    };
    let subject = subject(rule, &request);
    let variant = pick(model, rule, &subject, |name, weight| experiment.weight(name, weight)).unwrap().clone();
    let (end, seconds) = outcome(variant.as_str());
    let (time, usage) = (Duration::from_secs_f64(seconds), Usage { completion_tokens: 1, ..Usage::default() });
    let ended = Ended { unit: subject.number(), end, ttft: Some(time), tpot: None, latency: time, usage, cost: 0 };
    experiment.count(&variant, &ended, Duration::from_secs(1234));
    variant
}

fn failing(random: &mut Random, rate: f64) -> End {
    if random.unit() < rate { End::Failed } else { End::Answered }
}

const BOTH: &str = "sticky = \"user\"\nguardrails = { error_rate = 1.0, ttft_p95 = 1.0 }";

/// Of a thousand experiments of 400 requests the number whose variant y is out at their end.
fn trips(weights: &str, requests_of_a_user: usize, outcome: impl Fn(&mut Random, &str, f64) -> (End, f64)) -> usize {
    let mut random = Random(7);
    let out = (0..1000).filter(|round| {
        let config = config(&format!("e{round}"), weights, BOTH);
        let experiments = experiments();
        experiments.configure(&config);
        let experiment = experiments.find(&format!("e{round}")).unwrap();
        for request in 0..400 {
            let user = request / requests_of_a_user;
            // Each user has a way of asking: the first draw is the same for all of its requests.
            let own = Random(round << 32 | user as u64).unit();
            send(&config, &experiment, &format!("{round}-{user}"), |variant| outcome(&mut random, variant, own));
            if !experiment.out.load().is_empty() {
                return true;
            }
        }
        false
    });
    out.count()
}

#[test]
fn of_a_thousand_experiments_with_equal_variants_at_most_fifty_trip_though_each_request_is_a_look() {
    for (weights, requests_of_a_user) in [("x = 50, y = 50", 1), ("x = 90, y = 10", 1), ("x = 50, y = 50", 8), ("x = 80, y = 20", 8)] {
        // Users differ: some fail often and wait long, whatever their variant.
        let out = trips(weights, requests_of_a_user, |random, _, own| (failing(random, 0.2 * own), 0.1 + own + 0.1 * random.unit()));
        eprintln!("{weights}, {requests_of_a_user} requests a user: {out} of 1000 equal ones trip");
        assert!(out <= 50, "{weights}, {requests_of_a_user}: {out}");
    }
}

#[test]
fn a_variant_with_three_times_the_errors_is_found_within_four_hundred_requests() {
    let found = |control: f64| {
        trips("x = 50, y = 50", 1, |random, variant, _| (failing(random, if variant == "y" { 3.0 * control } else { control }), 0.1))
    };
    let (often, seldom) = (found(0.10), found(0.05));
    eprintln!("10 % against 30 %: {often} of 1000 found; 5 % against 15 %: {seldom}");
    assert!(often >= 950, "{often}");
    assert!(seldom >= 500, "{seldom}");
}

#[test]
fn a_variant_that_is_twice_as_slow_is_found_and_one_within_its_tolerance_isn_t() {
    let twice =
        trips("x = 50, y = 50", 1, |random, variant, _| (End::Answered, (0.1 + random.unit()) * if variant == "y" { 2.0 } else { 1.0 }));
    eprintln!("twice the time to the first token: {twice} of 1000 found");
    assert!(twice >= 950, "{twice}");
}

#[test]
fn who_is_worse_gets_no_more_requests_its_users_go_elsewhere_and_the_report_says_why() {
    let config = config("e", "x = 50, y = 50", "sticky = \"user\"\nguardrails.error_rate = 1.0");
    let experiments = experiments();
    experiments.configure(&config);
    let experiment = experiments.find("e").unwrap();
    let fine = |_: &str| (End::Answered, 0.1);
    let before: Vec<_> = (0..200).map(|user| send(&config, &experiment, &user.to_string(), fine)).collect();
    for user in 0..200 {
        send(&config, &experiment, &user.to_string(), |variant| (if variant == "y" { End::Elsewhere } else { End::Answered }, 0.1));
    }
    let after: Vec<_> = (0..200).map(|user| send(&config, &experiment, &user.to_string(), fine)).collect();
    assert!(before.iter().any(|name| name.as_str() == "y") && after.iter().all(|name| name.as_str() == "x"));
    let report = experiment.report();
    let y = &report.variants[&Name::from("y")];
    let out = y.out.as_ref().unwrap();
    assert_eq!((out.guardrail, out.since, y.weight), (Guardrail::ErrorRate, 1234, 0.0));
    assert!(out.why.contains("units by user that failed") && out.why.contains("0 of the control x"), "{}", out.why);
    assert!(y.fallback >= 5 && y.errors == 0, "answers by another variant are counted apart");
    assert!(y.guardrails[0].evidence >= y.guardrails[0].needed);
    let page = experiments.metrics.render();
    assert!(page.contains("roundhouse_experiment_out{experiment=\"e\",variant=\"y\"} 1"), "{page}");

    experiment.resume();
    let resumed: Vec<_> = (0..200).map(|user| send(&config, &experiment, &user.to_string(), fine)).collect();
    assert_eq!(resumed, before);
    assert!(experiments.metrics.render().contains("roundhouse_experiment_out{experiment=\"e\",variant=\"y\"} 0"));
    assert!(experiment.report().variants[&Name::from("y")].n > y.n, "what was counted stays");
}

#[test]
fn a_reload_keeps_what_was_counted_and_only_another_rule_lifts_what_tripped() {
    let guard = "guardrails.error_rate = 1.0";
    let one = config("e", "x = 50, y = 50", guard);
    let experiments = experiments();
    experiments.configure(&one);
    let experiment = experiments.find("e").unwrap();
    for user in 0..100 {
        send(&one, &experiment, &user.to_string(), |variant| (if variant == "y" { End::Failed } else { End::Answered }, 0.1));
    }
    let counted = experiment.report().variants[&Name::from("x")].n;
    experiments.configure(&one);
    assert!(experiments.find("e").unwrap().report().variants[&Name::from("y")].out.is_some());
    experiments.configure(&config("e", "x = 60, y = 40", guard));
    let report = experiments.find("e").unwrap().report();
    assert!(report.variants[&Name::from("y")].out.is_none());
    assert_eq!(report.variants[&Name::from("x")].n, counted);
    experiments.reset(&experiments.find("e").unwrap());
    let report = experiment.report();
    assert_eq!((report.variants[&Name::from("x")].n, report.since), (0, 1000));
    experiments.configure(&Config::default());
    assert!(experiments.find("e").is_none() && experiments.reports().is_empty());
}
