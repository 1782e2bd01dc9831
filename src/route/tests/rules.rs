use crate::config::{Between, Class, Config, Endpoint, Experiment, Guardrails, Model, Name, Rule, Share, Sticky, When};
use crate::route::rules::{Request, Unmet, find, pick, subject, unmet};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

const REQUEST: Request<'static> = Request {
    tenant: "acme",
    key: "ci",
    endpoint: Endpoint::Chat,
    class: Class::Interactive,
    prompt_tokens: 100,
    user: None,
    headers: &[],
};

fn rule(to: &[(&str, f64)], sticky: Option<Sticky>) -> Rule {
    let to = to.iter().map(|(variant, weight)| Share { variant: Name::from(*variant), weight: *weight });
    Rule { name: "all".into(), when: When::default(), to: to.collect(), sticky, experiment: None, fallback: [].into() }
}

fn experiment(name: &str) -> Option<Experiment> {
    Some(Experiment { name: name.into(), control: "a".into(), guardrails: Guardrails::default(), shadow: Vec::new() })
}

fn model() -> Arc<Model> {
    Config::default().models.values().next().unwrap().clone()
}

/// The variant of each of so many users.
fn assigned(rule: &Rule, users: usize) -> Vec<Name> {
    let model = model();
    let of = |user: usize| {
        let user = format!("user-{user}");
        let subject = subject(rule, &Request { user: Some(&user), ..REQUEST });
        pick(&model, rule, &subject, |_, weight| weight).unwrap().clone()
    };
    (0..users).map(of).collect()
}

fn count(assigned: &[Name], variant: &str) -> usize {
    assigned.iter().filter(|name| name.as_str() == variant).count()
}

#[test]
fn from_90_10_to_80_20_a_tenth_of_ten_thousand_users_moves_and_none_back() {
    let of = |a, b| assigned(&rule(&[("a", a), ("b", b)], Some(Sticky::User)), 10_000);
    let (before, after) = (of(90.0, 10.0), of(80.0, 20.0));
    let moved = before.iter().zip(&after).filter(|(before, after)| before != after).count();
    assert!((900..=1100).contains(&moved), "{moved}");
    assert!(before.iter().zip(&after).all(|(before, after)| before == after || after.as_str() == "b"));
    assert!((900..=1100).contains(&count(&before, "b")) && (1850..=2150).contains(&count(&after, "b")));
    assert_eq!(after, of(8.0, 2.0), "weights are relative");
}

#[test]
fn a_variant_that_leaves_moves_nobody_among_the_others() {
    let of = |a, b, c| assigned(&rule(&[("a", a), ("b", b), ("c", c)], Some(Sticky::User)), 3000);
    let (before, after) = (of(50.0, 30.0, 20.0), of(50.0, 30.0, 0.0));
    assert!(before.iter().zip(&after).all(|(before, after)| before == after || before.as_str() == "c"));
    assert_eq!(count(&after, "c"), 0);
    let moved: Vec<_> = before.iter().zip(&after).filter(|(before, _)| before.as_str() == "c").map(|(_, after)| after.clone()).collect();
    let share = count(&moved, "a") as f64 / moved.len() as f64;
    assert!((0.55..0.70).contains(&share), "5 of 8 go to a: {share}");
}

#[test]
fn an_assignment_is_the_same_in_every_process() {
    let rule = Rule { experiment: experiment("q4-vs-q8"), ..rule(&[("q4", 50.0), ("q8", 50.0)], Some(Sticky::User)) };
    let letters: String = assigned(&rule, 16).iter().map(|name| name.as_str().chars().last().unwrap()).collect();
    assert_eq!(letters, "8488444884888488", "what other replicas and later versions compute");
}

#[test]
fn two_experiments_divide_users_independently() {
    let of = |name: &str| assigned(&Rule { experiment: experiment(name), ..rule(&[("a", 1.0), ("b", 1.0)], Some(Sticky::User)) }, 4000);
    let (one, other) = (of("one"), of("other"));
    let both = one.iter().zip(&other).filter(|(one, other)| one.as_str() == "a" && other.as_str() == "a").count();
    assert!((900..1100).contains(&both), "{both}");
}

#[test]
fn whoever_has_no_user_or_header_sticks_by_key() {
    let header = [(Name::from("x-session-id"), "s1".to_owned())];
    let by = |sticky: Sticky, request: &Request<'_>| subject(&rule(&[("a", 1.0)], Some(sticky)), request);
    let session = || Sticky::Header("x-session-id".into());
    let key = by(Sticky::Key, &REQUEST);
    assert_eq!(key.kind, "key");
    assert_eq!(by(Sticky::User, &REQUEST), key);
    assert_eq!(by(session(), &REQUEST), key);
    let with_header = Request { headers: &header, ..REQUEST };
    assert_eq!(by(session(), &with_header).kind, "header");
    let user = Request { user: Some("s1"), ..REQUEST };
    assert_ne!(by(Sticky::User, &user), by(session(), &with_header), "a user isn't a header of the same text");
    let other = Request { tenant: "other", ..user.clone() };
    assert_ne!(by(Sticky::User, &user), by(Sticky::User, &other), "users of two tenants are two");
    assert_ne!(by(Sticky::Key, &REQUEST), by(Sticky::Key, &Request { tenant: "acm", key: "eci", ..REQUEST }));
    assert_eq!(by(Sticky::Tenant, &REQUEST), by(Sticky::Tenant, &Request { key: "other", ..REQUEST }));
}

#[test]
fn without_sticky_each_request_is_drawn_by_the_weights_and_zero_is_never() {
    let drawn = assigned(&rule(&[("a", 3.0), ("b", 1.0), ("c", 0.0)], None), 4000);
    // Expected 1000, with a standard deviation of 27.
    assert!((840..1160).contains(&count(&drawn, "b")), "{}", count(&drawn, "b"));
    assert_eq!(count(&drawn, "c"), 0);
}

#[test]
fn every_condition_has_to_be_met_and_the_first_that_is_not_is_named() {
    let when = When {
        tenant: Some(vec!["acme".into(), "beta".into()]),
        key: Some(vec!["ci".into()]),
        prompt_tokens: Between { above: Some(99), below: Some(101) },
        endpoint: Some(vec![Endpoint::Chat]),
        header: vec![crate::config::Header { name: "x-beta".into(), values: vec!["yes".into(), "on".into()] }],
        class: Some(Class::Interactive),
    };
    let headers = [("x-beta".into(), "no".to_owned()), ("x-beta".into(), "on".to_owned())];
    let good = Request { headers: &headers, ..REQUEST };
    assert_eq!(unmet(&when, &good), None);
    let name = Name::from("x-beta");
    for (request, expected) in [
        (Request { tenant: "acm", ..good.clone() }, Unmet::Tenant),
        (Request { key: "", ..good.clone() }, Unmet::Key),
        (Request { prompt_tokens: 99, ..good.clone() }, Unmet::PromptTokens),
        (Request { prompt_tokens: 101, ..good.clone() }, Unmet::PromptTokens),
        (Request { endpoint: Endpoint::Completions, ..good.clone() }, Unmet::Endpoint),
        (Request { class: Class::Batch, ..good.clone() }, Unmet::Class),
        (Request { headers: &headers[..1], ..good.clone() }, Unmet::Header(&name)),
        (Request { headers: &[], tenant: "x", ..good }, Unmet::Tenant),
    ] {
        assert_eq!(unmet(&when, &request), Some(expected));
    }
}

#[test]
fn the_first_rule_that_matches_decides() {
    let text = r#"
shards.a = { weights = "file:a.gguf", kv_cache = { memory = "1MiB" } }
models.m.variants = { x = { backends = ["a"] }, y = { backends = ["a"] } }
[[models.m.rules]]
name = "long"
when.prompt_tokens.above = 1500
to.y = 1
[[models.m.rules]]
name = "rest"
to = { x = 1 }
"#;
    let config = Config::parse(text, Path::new("r.toml")).unwrap();
    let model = &config.models["m"];
    let of = |prompt_tokens| find(model, &Request { prompt_tokens, ..REQUEST }).unwrap().name.to_string();
    assert_eq!((of(1500), of(1501)), ("rest".to_owned(), "long".to_owned()));
    let counts: BTreeMap<_, _> = model.rules.iter().map(|rule| (rule.name.as_str(), rule.to.len())).collect();
    assert_eq!(counts, BTreeMap::from([("long", 1), ("rest", 1)]));
}
