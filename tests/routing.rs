//! Rules and variants over the real server, whose engines have no model.

mod support;

use roundhouse::config::Config;
use roundhouse::engine::fake::Fake;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::Path;
use support::client::{Answer, Client};
use support::fake::Fakes;
use support::server::{self, KEY, Server};

/// Three variants on shards of their own, one of them gone: nobody listens on port 1.
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
variants.plain  = { backends = ["s1"] }
variants.brief  = { backends = ["s2"], system = "the hand of the hand" }
variants.remote = { backends = ["gone"] }
[[models.m.rules]]
name = "long"
when.prompt_tokens.above = 40
to.brief = 1
[[models.m.rules]]
name = "broken"
when.header.x-broken = ["yes", "very"]
to.remote = 1
fallback = ["remote", "brief", "plain"]
[[models.m.rules]]
name = "completions"
when = { endpoint = "completions", tenant = "acme", key = "ci" }
to.plain = 1
[[models.m.rules]]
name = "everyone"
experiment = "plain-vs-brief"
to = { plain = 50, brief = 50, remote = 0 }
sticky = "user"
[tenants.acme]
keys = [{ name = "ci", hash = "KEY_HASH" }]
"#;

fn config() -> Config {
    Config::parse(&CONFIG.replace("KEY_HASH", &blake3::hash(KEY.as_bytes()).to_hex()), Path::new("r.toml")).expect("it is valid")
}

fn start() -> (Server, Client) {
    let server = server::with(config(), Fakes(Fake::new));
    let client = Client::new(server.address(), Some(KEY));
    (server, client)
}

async fn chat(client: &Client, content: &str, more: Value, headers: &[(&str, &str)]) -> Answer {
    let mut body = json!({ "model": "m", "messages": [{ "role": "user", "content": content }], "max_tokens": 2 });
    body.as_object_mut().expect("an object").append(&mut more.as_object().expect("an object").clone());
    let headers: Vec<_> = [("content-type", "application/json")].iter().chain(headers).copied().collect();
    let answer = client.send(http::Method::POST, "/v1/chat/completions", &headers, body.to_string()).await.whole().await;
    assert_eq!(answer.status, 200, "{answer:?}");
    answer
}

fn served(answer: &Answer) -> (String, String) {
    let header = |name| answer.header(name).unwrap_or_default().to_owned();
    (header("x-roundhouse-variant"), header("x-roundhouse-backend"))
}

fn on(variant: &str, backend: &str) -> (String, String) {
    (variant.to_owned(), backend.to_owned())
}

#[tokio::test]
async fn the_first_rule_that_matches_names_the_variant_of_the_answer() {
    let (_server, client) = start();
    let long = chat(&client, &"the hand ".repeat(40), json!({}), &[]).await;
    assert_eq!(served(&long), on("brief", "s2"));
    let completion = client.post("/v1/completions", &json!({ "model": "m", "prompt": "the hand", "max_tokens": 1 })).await;
    assert_eq!(served(&completion), on("plain", "s1"));
    let variants: Vec<_> = completion.headers.get_all("x-roundhouse-variant").iter().collect();
    assert_eq!(variants.len(), 1);
}

#[tokio::test]
async fn a_user_keeps_a_variant_and_both_have_users() {
    let (_server, client) = start();
    let mut seen = BTreeSet::new();
    for user in ["ada", "bob", "cyd", "dan", "eve", "fay", "gus", "hal"] {
        let first = served(&chat(&client, "the hand", json!({ "user": user }), &[]).await);
        for _ in 0..2 {
            assert_eq!(served(&chat(&client, "the hand", json!({ "user": user }), &[]).await), first);
        }
        seen.insert(first.0);
    }
    assert_eq!(seen.into_iter().collect::<Vec<_>>(), ["brief", "plain"]);
}

#[tokio::test]
async fn a_variant_s_system_message_is_part_of_its_prompt_and_its_bill() {
    let (_server, client) = start();
    let tokens = |answer: &Answer| answer.json()["usage"]["prompt_tokens"].as_u64().expect("usage");
    let by = |variant: &'static str| {
        let client = client.clone();
        async move {
            for user in 0..64 {
                let answer = chat(&client, "the hand", json!({ "user": format!("u{user}") }), &[]).await;
                if served(&answer).0 == variant {
                    return answer;
                }
            }
            panic!("64 users and none of them has {variant}")
        }
    };
    let (plain, brief) = (by("plain").await, by("brief").await);
    assert!(tokens(&brief) > tokens(&plain) + 4, "{} {}", tokens(&brief), tokens(&plain));
    assert_ne!(plain.json()["system_fingerprint"], brief.json()["system_fingerprint"]);
}

#[tokio::test]
async fn a_variant_that_can_not_be_reached_is_answered_for_by_the_next_one() {
    let (server, client) = start();
    for value in ["yes", "very"] {
        assert_eq!(served(&chat(&client, "the hand", json!({}), &[("x-broken", value)]).await), on("brief", "s2"));
    }
    let mut body = json!({ "model": "m", "messages": [{ "role": "user", "content": "the hand" }], "max_tokens": 2, "stream": true });
    let headers = [("content-type", "application/json"), ("x-broken", "yes")];
    let stream = client.send(http::Method::POST, "/v1/chat/completions", &headers, body.to_string()).await;
    assert_eq!((stream.status, stream.headers["x-roundhouse-variant"].as_bytes()), (200, &b"brief"[..]));
    stream.chunks().await;
    // What a remote can't do isn't asked of it.
    body["stream"] = false.into();
    body["return_token_ids"] = true.into();
    let answer = client.send(http::Method::POST, "/v1/chat/completions", &headers, body.to_string()).await.whole().await;
    assert_eq!((answer.status, served(&answer)), (200, on("brief", "s2")));
    drop(server);
}
