//! A quota is exact, however many ask at once, and the ledger agrees with what clients were sent, to the token.

mod support;

use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use support::client::Client;
use support::server::KEY;
use support::tenants::{Place, query, usage};
use tokio::sync::Notify;

const QUOTA: i64 = 10_000;
const CLIENTS: usize = 200;

/// Runs; each takes seconds, so a usual run does few. The full loop of twenty is still to be run.
const RUNS: usize = 2;

/// What the clients of one run counted themselves.
#[derive(Default)]
struct Counted {
    prompt: AtomicI64,
    output: AtomicI64,
    answered: AtomicI64,
    shortened: AtomicI64,
    /// Told whenever an answer has ended, so that those who were refused for what it held come back.
    ended: Notify,
}

#[tokio::test]
async fn two_hundred_clients_use_up_a_quota_and_never_pass_it() {
    for run in 0..RUNS {
        let place = Place::new(&format!(
            "[tenants.acme]\nquota = [{{ tokens = {QUOTA}, per = \"month\" }}]\nkeys = [{{ name = \"ci\", hash = \"KEY_HASH\" }}]\n"
        ));
        let server = place.start();
        let client = Client::new(server.address(), Some(KEY));
        let counted = Arc::new(Counted::default());
        let clients: Vec<_> = (0..CLIENTS).map(|number| tokio::spawn(until_spent(client.clone(), number, counted.clone()))).collect();
        for client in clients {
            client.await.expect("a client ends");
        }
        tokio::task::spawn_blocking(|| server.stop()).await.expect("the server stops");
        let count = |counter: &AtomicI64| counter.load(Ordering::Relaxed);
        let (prompt, output, answered) = (count(&counted.prompt), count(&counted.output), count(&counted.answered));
        assert!(prompt + output <= QUOTA, "run {run}: {prompt} + {output}");
        assert!((prompt + output) * 100 >= QUOTA * 95, "run {run}: only {prompt} + {output} of {QUOTA}");
        assert!(count(&counted.shortened) > 0, "run {run}: the last answer ends where the quota does");
        let sums = ["SELECT SUM(prompt) FROM requests", "SELECT SUM(output) FROM requests", "SELECT COUNT(*) FROM requests"];
        assert_eq!(sums.map(|sum| query(&place.ledger(), sum)), [prompt, output, answered], "run {run}");
        let costs = query(&place.ledger(), "SELECT SUM(cost) - SUM(50 * (prompt - cached) + 10 * cached + 200 * output) FROM requests");
        assert_eq!((costs, query(&place.ledger(), "SELECT COUNT(*) FROM in_flight")), (0, 0), "run {run}");
    }
}

/// Asks until the quota is spent: on both endpoints, streaming and not, with one choice and two.
async fn until_spent(client: Client, number: usize, counted: Arc<Counted>) {
    let mut turn = number;
    loop {
        let ended = counted.ended.notified();
        let (stream, chat, n) = (turn.is_multiple_of(2), (turn / 2).is_multiple_of(2), 1 + turn / 4 % 2);
        let mut body = json!({ "model": "tiny", "max_tokens": 40, "n": n, "stream": stream, "return_token_ids": true, "seed": turn });
        let path = if chat {
            body["messages"] = json!([{ "role": "user", "content": format!("hello {number}") }]);
            "/v1/chat/completions"
        } else {
            body["prompt"] = json!(format!("hello {number}"));
            "/v1/completions"
        };
        if stream {
            body["stream_options"] = json!({ "include_usage": true });
        }
        let answer = client.stream(path, &body).await;
        match answer.status {
            200 if stream => {
                let chunks = answer.chunks().await;
                counted.note(chunks.iter(), chunks.last().expect("a stream has a last chunk"));
            }
            200 => {
                let whole = answer.whole().await.json();
                counted.note([&whole].into_iter(), &whole);
            }
            429 => {
                let error = answer.whole().await;
                match error.json()["error"]["code"].as_str() {
                    Some("insufficient_quota") => {
                        assert_eq!(error.header("x-should-retry"), Some("false"));
                        // Others may wait for what nobody will give back.
                        counted.ended.notify_waiters();
                        return;
                    }
                    Some("rate_limit_exceeded") => {
                        assert!(error.header("retry-after").is_some());
                        tokio::select! {
                            () = ended => {}
                            () = tokio::time::sleep(std::time::Duration::from_millis(100)) => {} // as a client does that knows nothing of the others
                        }
                    }
                    other => panic!("{other:?}"),
                }
            }
            other => panic!("{other}"),
        }
        turn += CLIENTS + 1;
    }
}

// === impl Counted ===

impl Counted {
    /// Counts token ids in an answer's parts, and holds its own usage to them.
    fn note<'v>(&self, parts: impl Iterator<Item = &'v Value>, last: &Value) {
        let (mut ids, mut length) = (0, false);
        for choice in parts.flat_map(|part| part["choices"].as_array().into_iter().flatten()) {
            ids += choice["token_ids"].as_array().map_or(0, Vec::len) as i64;
            length |= choice["finish_reason"] == "length";
        }
        let (prompt, output) = usage(last);
        assert_eq!(output, ids, "usage counts the token ids: {last}");
        self.prompt.fetch_add(prompt, Ordering::Relaxed);
        self.output.fetch_add(output, Ordering::Relaxed);
        self.answered.fetch_add(1, Ordering::Relaxed);
        let choices = last["usage"]["completion_tokens"].as_i64().unwrap_or_default();
        self.shortened.fetch_add(i64::from(length && choices % 40 != 0), Ordering::Relaxed);
        self.ended.notify_waiters();
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
