//! Experiments over the real server: what is counted, what is compared, and what a guardrail does.

mod support;

use roundhouse::config::Config;
use roundhouse::engine::fake::Fake;
use serde_json::{Value, json};
use std::path::Path;
use support::client::{Answer, Client};
use support::fake::Fakes;
use support::server::{self, KEY, Server};

const CONFIG: &str = r#"
server = { listen = "127.0.0.1:0", threads = 1 }
admin.listen = "127.0.0.1:0"
store.ledger = "off"
[shards.s1]
weights = "file:none.gguf"
kv_cache = { memory = "1MiB" }
[shards.s2]
weights = "file:none.gguf"
kv_cache = { memory = "1MiB" }
[upstreams.gone]
url = "http://127.0.0.1:1/v1"
retries = { attempts = 1 }
[models.m]
prices = { input = 1.0, output = 2.0 }
variants.plain  = { backends = ["s1"] }
variants.other  = { backends = ["s2"] }
variants.remote = { backends = ["gone"] }
[[models.m.rules]]
name = "doomed"
when.header.x-doomed = "yes"
experiment = "doomed"
control = "plain"
to = { plain = 50, remote = 50 }
sticky = "user"
fallback = ["other"]
guardrails = { error_rate = 1.0 }
[[models.m.rules]]
name = "mirrored"
when.header.x-doomed = "mirror"
experiment = "mirrored"
to = { plain = 1 }
shadow = { other = 1.0 }
[[models.m.rules]]
name = "mirrored-far"
when.header.x-doomed = "mirror-far"
experiment = "mirrored-far"
to = { plain = 1 }
shadow = { remote = 1.0 }
[[models.m.rules]]
name = "everyone"
experiment = "plain-vs-other"
to = { plain = 50, other = 50 }
sticky = "user"
[tenants.acme]
keys = [{ name = "ci", hash = "KEY_HASH" }]
"#;

fn config() -> Config {
    Config::parse(&CONFIG.replace("KEY_HASH", &blake3::hash(KEY.as_bytes()).to_hex()), Path::new("r.toml")).expect("it is valid")
}

fn start() -> (Server, Client, Client) {
    let server = server::with(config(), Fakes(Fake::new));
    let (client, admin) = (Client::new(server.address(), Some(KEY)), Client::new(server.admin_address(), None));
    (server, client, admin)
}

async fn chat(client: &Client, user: &str, doomed: &str) -> Answer {
    let body =
        json!({ "model": "m", "messages": [{ "role": "user", "content": "the hand" }], "max_tokens": 3, "user": user, "temperature": 0 });
    let headers = [("content-type", "application/json"), ("x-doomed", doomed)];
    let answer = client.send(http::Method::POST, "/v1/chat/completions", &headers, body.to_string()).await.whole().await;
    assert_eq!(answer.status, 200, "{answer:?}");
    answer
}

async fn report(admin: &Client, name: &str) -> Value {
    let answer = admin.get(&format!("/admin/v1/experiments/{name}")).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()
}

async fn act(admin: &Client, path: &str) -> Value {
    let answer = admin.post(path, &json!({})).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()
}

#[tokio::test]
async fn an_experiment_counts_its_variants_and_compares_them_with_the_control() {
    let (server, client, admin) = start();
    for user in 0..30 {
        chat(&client, &format!("user-{user}"), "no").await;
    }
    let found = report(&admin, "plain-vs-other").await;
    assert_eq!((&found["control"], &found["rule"], &found["sticky"]), (&json!("other"), &json!("everyone"), &json!("user")));
    let (plain, other) = (&found["variants"]["plain"], &found["variants"]["other"]);
    let number = |value: &Value| value.as_f64().unwrap_or_else(|| panic!("a number is missing in {found}"));
    assert_eq!(number(&plain["n"]) + number(&other["n"]), 30.0);
    assert!(number(&plain["n"]) > 3.0 && number(&other["n"]) > 3.0, "{found}");
    for variant in [plain, other] {
        assert_eq!((&variant["errors"], &variant["fallback"], &variant["error_rate"]), (&json!(0), &json!(0), &json!(0.0)));
        let (tokens, n) = (number(&variant["tokens"]["completion"]), number(&variant["n"]));
        assert_eq!(tokens, 3.0 * n, "{found}");
        for percentile in ["p50", "p95", "p99"] {
            assert!(number(&variant["ttft"][percentile]) > 0.0 && number(&variant["latency"][percentile]) > 0.0, "{found}");
        }
        let cost: f64 = variant["cost"].as_str().expect("money is text").parse().expect("a number");
        let expected = number(&variant["tokens"]["prompt"]) / 1e6 + 2.0 * tokens / 1e6;
        assert!((cost - expected).abs() < 1e-9, "{cost} {expected}: nothing is cached, or it costs the same");
    }
    let difference = &plain["difference"]["error_rate"];
    assert!(number(&difference["low"]) < 0.0 && number(&difference["high"]) > 0.0, "{found}");
    assert!(number(&plain["difference"]["completion_tokens"]["mean"]).abs() < 1e-12);
    assert_eq!(other["difference"], json!({}), "the control is compared with nothing");

    // What was counted outlives a reload.
    let mut changed = config();
    changed.server.show_backend = false;
    assert!(server.reload(changed).expect("it may change").changed);
    assert_eq!(report(&admin, "plain-vs-other").await["variants"], found["variants"]);
    let all = admin.get("/admin/v1/experiments").await.json();
    let names: Vec<_> = all["experiments"].as_array().expect("a list").iter().map(|one| one["name"].clone()).collect();
    assert_eq!(names, ["doomed", "mirrored", "mirrored-far", "plain-vs-other"]);
    let begun = act(&admin, "/admin/v1/experiments/plain-vs-other/reset").await;
    assert_eq!(begun["variants"]["plain"]["n"], 0);
}

#[tokio::test]
async fn a_variant_that_always_fails_is_taken_out_and_stays_out_until_the_operator_says_otherwise() {
    let (_server, client, admin) = start();
    let mut by_fallback = 0;
    for user in 0..60 {
        let answer = chat(&client, &format!("user-{user}"), "yes").await;
        by_fallback += u64::from(answer.header("x-roundhouse-variant") == Some("other"));
    }
    let found = report(&admin, "doomed").await;
    let remote = &found["variants"]["remote"];
    assert_eq!((&remote["fallback"], &remote["n"]), (&json!(by_fallback), &json!(0)), "{found}");
    assert_eq!((&remote["out"]["guardrail"], &remote["weight"]), (&json!("error_rate"), &json!(0.0)), "{found}");
    assert!((5..30).contains(&by_fallback), "{by_fallback}: the others stayed with the control");
    let page = String::from_utf8(admin.get("/metrics").await.body.to_vec()).expect("text");
    assert!(page.contains("roundhouse_experiment_out{experiment=\"doomed\",variant=\"remote\"} 1"), "{page}");

    let resumed = act(&admin, "/admin/v1/experiments/doomed/resume").await;
    let remote = &resumed["variants"]["remote"];
    assert_eq!((&remote["out"], &remote["weight"], &remote["fallback"]), (&Value::Null, &json!(50.0), &json!(by_fallback)));
    let nobody = admin.get("/admin/v1/experiments/nope").await;
    assert_eq!((nobody.status, nobody.json()["error"]["code"].clone()), (404, json!("experiment_not_found")));
}

/// The report once `until` is true of the shadow `variant`.
async fn shadow(admin: &Client, name: &str, variant: &str, until: impl Fn(&Value) -> bool) -> (Value, Value) {
    loop {
        let found = report(admin, name).await;
        if until(&found["shadow"][variant]) {
            return (found["shadow"][variant].clone(), found);
        }
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_copy_goes_to_the_shadow_which_also_scores_the_answer_and_nobody_gets_or_pays_for_it() {
    let (server, client, admin) = start();
    for user in 0..5 {
        let answer = chat(&client, &format!("user-{user}"), "mirror").await;
        assert_eq!(answer.header("x-roundhouse-variant"), Some("plain"));
        let body = answer.json();
        assert_eq!((&body["choices"][0]["logprobs"], &body["usage"]["completion_tokens"]), (&Value::Null, &json!(3)));
    }
    let done = |shadow: &Value| shadow["n"] == 5 && shadow["scored"]["answers"] == 5;
    let (copies, found) = shadow(&admin, "mirrored", "other", done).await;
    assert_eq!((&copies["errors"], &copies["skipped"], &copies["fraction"]), (&json!(0), &json!(0), &json!(1.0)), "{copies}");
    assert!(copies["ttft"]["p50"].as_f64().is_some_and(|seconds| seconds > 0.0), "{copies}");
    let scored = &copies["scored"];
    assert_eq!(scored["tokens"], 15, "{copies}");
    // Both engines are the same fake, so each finds the other's answers as likely as its own.
    assert_eq!((&scored["top1_agreement"], &scored["logprob"]), (&json!(1.0), &scored["primary_logprob"]), "{copies}");
    assert!(scored["kl"].as_f64().is_some_and(|kl| kl.abs() < 1e-6), "{copies}");
    assert_eq!(found["variants"]["plain"]["n"], 5, "copies aren't requests of the experiment's own");
    let page = String::from_utf8(admin.get("/metrics").await.body.to_vec()).expect("text");
    assert!(page.contains("kind=\"completion\"} 15\n"), "{page}");
    assert!(!page.contains("backend=\"s2\""), "{page}");
    drop(server);
}

#[tokio::test]
async fn a_shadow_that_can_not_be_reached_is_counted_and_noticed_by_nobody() {
    let (_server, client, admin) = start();
    for user in 0..3 {
        chat(&client, &format!("user-{user}"), "mirror-far").await;
    }
    let (copies, _) = shadow(&admin, "mirrored-far", "remote", |shadow| shadow["n"] == 3).await;
    assert_eq!((&copies["errors"], &copies["scored"]), (&json!(3), &Value::Null), "{copies}");
}
