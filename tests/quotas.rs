//! A quota is exact, however many ask at once, and the ledger agrees with what clients were sent, to the token.

mod support;

use serde_json::json;
use std::sync::Arc;
use support::client::Client;
use support::server::KEY;
use support::spenders::{Counted, until_spent};
use support::tenants::{Place, query, usage};

const QUOTA: i64 = 10_000;
const CLIENTS: usize = 200;

/// Each takes seconds, so a usual run does few.
fn runs() -> usize {
    if support::long() { 20 } else { 2 }
}

#[tokio::test]
async fn two_hundred_clients_use_up_a_quota_and_never_pass_it() {
    for run in 0..runs() {
        let place = Place::new(&format!(
            "[tenants.acme]\nquota = [{{ tokens = {QUOTA}, per = \"month\" }}]\nkeys = [{{ name = \"ci\", hash = \"KEY_HASH\" }}]\n"
        ));
        let server = place.start();
        let client = Client::new(server.address(), Some(KEY));
        let counted = Arc::new(Counted::default());
        let clients: Vec<_> = (0..CLIENTS).map(|number| tokio::spawn(until_spent(vec![client.clone()], number, counted.clone()))).collect();
        for client in clients {
            client.await.expect("a client ends");
        }
        tokio::task::spawn_blocking(|| server.stop()).await.expect("the server stops");
        let [prompt, output, answered] = counted.sums();
        assert!(prompt + output <= QUOTA, "run {run}: {prompt} + {output}");
        assert!((prompt + output) * 100 >= QUOTA * 95, "run {run}: only {prompt} + {output} of {QUOTA}");
        assert!(counted.shortened() > 0, "run {run}: the last answer ends where the quota does");
        let sums = ["SELECT SUM(prompt) FROM requests", "SELECT SUM(output) FROM requests", "SELECT COUNT(*) FROM requests"];
        assert_eq!(sums.map(|sum| query(&place.ledger(), sum)), [prompt, output, answered], "run {run}");
        let costs = query(&place.ledger(), "SELECT SUM(cost) - SUM(50 * (prompt - cached) + 10 * cached + 200 * output) FROM requests");
        assert_eq!((costs, query(&place.ledger(), "SELECT COUNT(*) FROM in_flight")), (0, 0), "run {run}");
    }
}

#[tokio::test]
async fn limits_answer_with_their_own_error_and_the_headers_of_the_counter_that_enforces() {
    let place = Place::new(
        "[tenants.acme]\nlimits = { tokens_per_minute = 100, tokens_per_request = 90 }\nkeys = [{ name = \"ci\", hash = \"KEY_HASH\" }]\n",
    );
    let server = place.start();
    let client = Client::new(server.address(), Some(KEY));
    let ask = |max_tokens: u32| json!({ "model": "tiny", "prompt": "and", "max_tokens": max_tokens });
    let large = client.post("/v1/completions", &ask(95)).await;
    assert_eq!((large.status, &large.json()["error"]["code"]), (400, &json!("request_too_large_for_limit")));
    assert_eq!(large.header("x-ratelimit-remaining-tokens"), Some("100"), "refused: nothing is consumed");
    let passed = client.post("/v1/completions", &ask(80)).await;
    assert_eq!((passed.status, passed.header("x-ratelimit-limit-tokens")), (200, Some("100")), "{passed:?}");
    let (prompt, output) = usage(&passed.json());
    let refused = client.post("/v1/completions", &ask(80)).await;
    if prompt + output > 22 {
        assert_eq!((refused.status, &refused.json()["error"]["type"]), (429, &json!("tokens")));
        assert!(refused.header("retry-after").is_some());
    }
    tokio::task::spawn_blocking(|| server.stop()).await.expect("the server stops");
}
