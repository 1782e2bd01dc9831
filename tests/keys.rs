//! Keys from their making to their end, on the command line and the admin port, beside a running server.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use serde_json::{Value, json};
use std::process::{Command, Output};
use support::client::{Answer, Client};
use support::server::{KEY, Server};
use support::tenants::{Place, query};
use support::tokens::Issuer;

/// A tenant with a key in the file.
const ACME: &str = "[tenants.acme]\nkeys = [{ name = \"ci\", hash = \"KEY_HASH\" }]\n";

/// The command line with this place's configuration.
fn keys(place: &Place, arguments: &[&str]) -> Output {
    let command = Command::new(env!("CARGO_BIN_EXE_roundhouse"))
        .args(["keys", arguments[0], "--config"])
        .arg(place.file())
        .args(&arguments[1..])
        .env_remove("RUST_LOG")
        .output();
    command.unwrap()
}

fn printed(output: &Output) -> &str {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    std::str::from_utf8(&output.stdout).unwrap().trim_end()
}

fn client(server: &Server, key: &str) -> Client {
    Client::new(server.address(), Some(key))
}

fn operator(server: &Server) -> Client {
    Client::new(server.admin_address(), None)
}

async fn ask(client: &Client) -> Answer {
    client.post("/v1/completions", &json!({ "model": "tiny", "prompt": "hello", "max_tokens": 2 })).await
}

/// Asks until a change by another process has arrived.
async fn until(client: &Client, status: u16) {
    while ask(client).await.status != status {}
}

fn refused(answer: &Answer) -> (u16, Value) {
    (answer.status, answer.json()["error"]["code"].clone())
}

async fn make(server: &Server, name: &str, terms: Value) -> String {
    let mut asked = terms;
    asked["tenant"] = json!("acme");
    asked["name"] = json!(name);
    let answer = operator(server).post("/admin/v1/keys", &asked).await;
    assert_eq!((answer.status, answer.header("cache-control")), (200, Some("no-store")), "{answer:?}");
    answer.json()["secret"].as_str().unwrap().to_owned()
}

async fn stop(server: Server) {
    tokio::task::spawn_blocking(|| server.stop()).await.unwrap();
}

#[tokio::test]
async fn a_running_server_takes_a_key_made_beside_it_until_it_is_revoked_beside_it() {
    let place = Place::new(ACME);
    let server = place.start();
    let made = keys(&place, &["new", "--tenant", "acme", "--name", "batch", "--endpoints", "completions", "--expires", "90d", "--json"]);
    let made: Value = serde_json::from_str(printed(&made)).unwrap();
    assert_eq!((&made["tenant"], &made["name"], &made["hash"]), (&json!("acme"), &json!("batch"), &Value::Null));
    let first = client(&server, made["secret"].as_str().unwrap());
    until(&first, 200).await;

    let second = keys(&place, &["rotate", "--tenant", "acme", "--name", "batch", "--overlap", "1h"]);
    let second = client(&server, printed(&second));
    until(&second, 200).await;
    assert_eq!(ask(&first).await.status, 200, "both are taken for an hour");

    let listed = keys(&place, &["list"]);
    let lines: Vec<_> = printed(&listed).lines().collect();
    assert_eq!(lines.len(), 3, "{lines:?}");
    assert!(lines[0].starts_with("acme/ci     active ") && lines[0].ends_with("in the file"), "{lines:?}");
    assert!(lines[2].starts_with("acme/batch  active ") && lines[2].ends_with("endpoints [completions]"), "{lines:?}");
    assert!(lines[1].contains("revoked "), "the old one ends in an hour: {lines:?}");

    assert_eq!(printed(&keys(&place, &["revoke", "--tenant", "acme", "--name", "batch"])), "acme/batch is revoked");
    until(&second, 401).await;
    until(&first, 401).await;
    let listed: Value = serde_json::from_str(printed(&keys(&place, &["list", "--tenant", "acme", "--json"]))).unwrap();
    let states: Vec<_> = listed["keys"].as_array().unwrap().iter().map(|key| key["state"].as_str().unwrap()).collect();
    assert_eq!(states, ["active", "revoked", "revoked"]);
    stop(server).await;
}

#[test]
fn what_the_command_line_cant_do_to_keys_is_said() {
    let place = Place::new(ACME);
    for (arguments, said) in [
        (&["new", "--tenant", "nobody", "--name", "a"][..], "there is no tenant `nobody`"),
        (&["new", "--tenant", "acme", "--name", "ci"], "has a key `ci` already"),
        (&["new", "--tenant", "acme", "--name", "a", "--models", "huge"], "there is no model `huge`"),
        (&["revoke", "--tenant", "acme", "--name", "a"], "tenant `acme` has no key `a`"),
        (&["rotate", "--tenant", "acme", "--name", "a"], "tenant `acme` has no key `a`"),
    ] {
        let output = keys(&place, arguments);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(1) && error.contains(said) && output.stdout.is_empty(), "{arguments:?}: {error}");
    }
    for arguments in [
        &["new", "--tenant", "acme"][..],
        &["new", "--tenant", "acme", "--name", "a", "--networks", "home"],
        &["new", "--tenant", "acme", "--name", "a", "--endpoints", "everything"],
        &["new", "--tenant", "acme", "--name", "a", "--expires", "soon"],
        &["rotate", "--tenant", "acme", "--name", "a", "--overlap", "5"],
    ] {
        assert_eq!(keys(&place, arguments).status.code(), Some(2), "{arguments:?}");
    }
}

#[tokio::test]
async fn a_key_made_with_limits_of_its_own_has_them() {
    let place = Place::new(ACME);
    let server = place.start();
    let few = keys(&place, &["new", "--tenant", "acme", "--name", "few", "--requests-per-minute", "1"]);
    let few = client(&server, printed(&few));
    until(&few, 200).await;
    assert_eq!(ask(&few).await.status, 429);
    stop(server).await;
}

#[tokio::test]
async fn what_an_operator_does_to_a_key_counts_at_the_next_request() {
    let place = Place::new(ACME);
    let server = place.start();
    let operator = operator(&server);
    let first = make(&server, "batch", json!({})).await;
    let by_anthropics_header = Client::new(server.address(), None);
    let body = json!({ "model": "tiny", "prompt": "hello", "max_tokens": 1 }).to_string();
    let headers = [("x-api-key", first.as_str()), ("content-type", "application/json")];
    assert_eq!(by_anthropics_header.send(http::Method::POST, "/v1/completions", &headers, body).await.status, 200);

    let rotated = operator.post("/admin/v1/keys/acme/batch/rotate", &json!({})).await.json();
    let second = rotated["secret"].as_str().unwrap();
    assert_eq!(refused(&ask(&client(&server, &first)).await), (401, json!("invalid_api_key")));
    assert_eq!(ask(&client(&server, second)).await.status, 200);

    let listed = operator.get("/admin/v1/keys?tenant=acme").await;
    let text = String::from_utf8_lossy(&listed.body);
    assert!(text.contains("\"batch\"") && !text.contains(second) && !text.contains(&first), "{text}");

    assert_eq!(operator.post("/admin/v1/keys/acme/batch/revoke", &json!({})).await.status, 200);
    assert_eq!(refused(&ask(&client(&server, second)).await), (401, json!("invalid_api_key")));
    for (path, body, param) in [
        ("/admin/v1/keys", json!({ "tenant": "acme", "name": "ci" }), json!("name")),
        ("/admin/v1/keys", json!({ "tenant": "nobody", "name": "a" }), json!("tenant")),
        ("/admin/v1/keys", json!({ "tenant": "acme" }), json!("name")),
        ("/admin/v1/keys", json!({ "tenant": "acme", "name": "a b" }), json!("name")),
        ("/admin/v1/keys", json!({ "tenant": "acme", "name": "a", "models": ["huge"] }), json!("models")),
        ("/admin/v1/keys", json!({ "tenant": "acme", "name": "a", "limits": { "requests_per_hour": 1 } }), Value::Null),
        ("/admin/v1/keys", json!({ "tenant": "acme", "name": "a", "network": [] }), Value::Null),
        ("/admin/v1/keys/acme/nothing/revoke", json!({}), json!("name")),
        ("/admin/v1/keys/acme/batch/rotate", json!({}), json!("name")),
        ("/admin/v1/keys/acme/ci/rotate", json!({ "overlap": "1" }), json!("overlap")),
    ] {
        let answer = operator.post(path, &body).await;
        assert_eq!((answer.status, &answer.json()["error"]["param"]), (400, &param), "{path} {body}: {answer:?}");
    }
    let foreign = operator.send(http::Method::POST, "/admin/v1/keys/acme/ci/revoke", &[("content-type", "text/plain")], "").await;
    assert_eq!(foreign.status, 415, "what any web page can make a browser send");
    assert_eq!(ask(&client(&server, KEY)).await.status, 200);
    stop(server).await;
}

#[tokio::test]
async fn a_revoked_key_of_the_file_stays_revoked_when_the_file_is_read_again() {
    let mut place = Place::new(ACME);
    let server = place.start_with_file();
    let made = make(&server, "batch", json!({})).await;
    assert_eq!(operator(&server).post("/admin/v1/keys/acme/ci/revoke", &json!({})).await.status, 200);
    assert_eq!(ask(&client(&server, KEY)).await.status, 401);
    place.change(&format!("{ACME}[tenants.other]\n"));
    // The file is watched too: whichever comes first, the version is 2 then.
    let server = tokio::task::spawn_blocking(move || {
        server.reload_file().unwrap();
        server
    });
    let server = server.await.unwrap();
    let refusal = ask(&client(&server, KEY)).await;
    assert_eq!((refusal.status, refusal.header("x-roundhouse-config")), (401, Some("2")));
    assert_eq!(ask(&client(&server, &made)).await.status, 200, "keys of the store survive a reload");
    stop(server).await;
    let server = place.start();
    assert_eq!(ask(&client(&server, KEY)).await.status, 401, "and a restart");
    assert_eq!(ask(&client(&server, &made)).await.status, 200);
    stop(server).await;
}

#[tokio::test]
async fn a_key_does_only_what_its_scope_names() {
    let place = Place::new(ACME);
    let server = place.start();
    let chat = client(&server, &make(&server, "chat", json!({ "endpoints": ["chat"] })).await);
    let refusal = ask(&chat).await;
    assert_eq!(refused(&refusal), (403, json!("insufficient_permissions")));
    assert_eq!(
        refusal.json()["error"]["message"],
        "This API key may not be used for the endpoint `completions`. Ask your administrator for one that may."
    );
    assert_eq!(refused(&chat.get("/v1/models").await).0, 403);
    let unread = chat.send(http::Method::POST, "/v1/completions", &[("content-type", "text/plain")], "no JSON").await;
    assert_eq!(unread.status, 403, "the body isn't looked at");

    let nothing = client(&server, &make(&server, "nothing", json!({ "models": [] })).await);
    assert_eq!(refused(&ask(&nothing).await), (404, json!("model_not_found")), "as a model that there isn't");
    assert_eq!(nothing.get("/v1/models").await.json()["data"], json!([]));
    assert_eq!(nothing.get("/v1/models/tiny").await.status, 404);

    let elsewhere = client(&server, &make(&server, "elsewhere", json!({ "networks": ["10.0.0.0/8"] })).await);
    assert_eq!(refused(&ask(&elsewhere).await), (403, json!("insufficient_permissions")));
    let here = client(&server, &make(&server, "here", json!({ "networks": ["10.0.0.0/8", "127.0.0.1"], "models": ["tiny"] })).await);
    assert_eq!(ask(&here).await.status, 200);

    let over = client(&server, &make(&server, "over", json!({ "expires": "2020-01-01T00:00:00Z" })).await);
    assert_eq!(refused(&ask(&over).await), (401, json!("invalid_api_key")));
    stop(server).await;
}

#[tokio::test]
async fn a_new_keys_first_requests_cant_pass_its_limits_together() {
    let place = Place::new(ACME);
    let server = place.start();
    let limited = client(&server, &make(&server, "limited", json!({ "limits": { "requests_per_minute": 3 } })).await);
    let asked: Vec<_> = (0..20)
        .map(|_| {
            tokio::spawn({
                let limited = limited.clone();
                async move { ask(&limited).await }
            })
        })
        .collect();
    let mut passed = 0;
    for answer in asked {
        let answer = answer.await.unwrap();
        match answer.status {
            200 => passed += 1,
            _ => assert_eq!(refused(&answer), (429, json!("rate_limit_exceeded"))),
        }
    }
    assert_eq!(passed, 3);
    assert_eq!(ask(&client(&server, KEY)).await.status, 200, "the tenant's other key isn't limited");
    stop(server).await;
    assert_eq!(query(&place.ledger(), "SELECT COUNT(*) FROM requests WHERE key_name = 'limited'"), 3);
}

#[tokio::test]
async fn a_token_of_a_trusted_issuer_stands_for_its_tenant_and_bills_its_user() {
    let issuer = Issuer::new();
    let place = Place::new(&format!("{ACME}{}", Issuer::toml()));
    std::fs::write(place.file().with_file_name("jwks.json"), issuer.set()).unwrap();
    let server = place.start();
    for _ in 0..2 {
        assert_eq!(ask(&client(&server, &issuer.sign("acme", "alice", 60))).await.status, 200);
    }
    for wrong in [issuer.sign("nobody", "alice", 60), issuer.sign("acme", "alice", -60), Issuer::new().sign("acme", "alice", 60)] {
        let refusal = ask(&client(&server, &wrong)).await;
        assert_eq!(refused(&refusal), (401, json!("invalid_api_key")));
        assert!(!String::from_utf8_lossy(&refusal.body).contains(&wrong[..12]), "{refusal:?}");
    }
    stop(server).await;
    assert_eq!(query(&place.ledger(), "SELECT COUNT(*) FROM requests WHERE key_name = 'jwt:alice'"), 2);
}
