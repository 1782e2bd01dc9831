//! Clients that use up a quota and count what they were sent.

use super::client::Client;
use super::tenants::usage;
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;
use tokio::sync::Notify;

/// What the clients of one run counted themselves.
#[derive(Default)]
pub(crate) struct Counted {
    prompt: AtomicI64,
    output: AtomicI64,
    answered: AtomicI64,
    shortened: AtomicI64,
    /// Told whenever an answer has ended, so that some who were refused for what it held come back.
    ended: Notify,
}

/// Asks these servers in turn until the quota is spent: on both endpoints, streaming and not, with one choice and two.
pub(crate) async fn until_spent(clients: Vec<Client>, number: usize, counted: Arc<Counted>) {
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
        let answer = clients[turn % clients.len()].stream(path, &body).await;
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
                        let later = error.header("retry-after-ms").and_then(|later| later.parse().ok()).expect("when to come again");
                        tokio::select! {
                            () = ended => {}
                            () = tokio::time::sleep(Duration::from_millis(later)) => {} // as a client does that knows nothing of the others
                        }
                    }
                    other => panic!("{other:?}"),
                }
            }
            other => panic!("{other}"),
        }
        turn += 201;
    }
}

// === impl Counted ===

impl Counted {
    /// Tokens of prompts, generated tokens, and answers.
    pub(crate) fn sums(&self) -> [i64; 3] {
        [&self.prompt, &self.output, &self.answered].map(|counter| counter.load(Ordering::Relaxed))
    }

    /// Answers that ended where the quota did.
    pub(crate) fn shortened(&self) -> i64 {
        self.shortened.load(Ordering::Relaxed)
    }

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
        // What it held lets a few others in; were all of them told, servers would do little but refuse them.
        for _ in 0..4 {
            self.ended.notify_one();
        }
    }
}
