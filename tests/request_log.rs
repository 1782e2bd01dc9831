//! The log line of a request: everything an operator asks about, and nothing that is nobody's business.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use serde_json::{Value, json};
use std::io::Write;
use std::sync::{Arc, Mutex};
use support::edge::{Edge, KEY, Scripted, hello, post};

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn a_request_leaves_one_line_without_its_key_or_its_prompt() {
    let lines = Lines::default();
    let writer = lines.clone();
    tracing_subscriber::fmt().json().flatten_event(true).with_max_level(tracing::Level::TRACE).with_writer(move || writer.clone()).init();
    let edge = Edge::start(&[Scripted::says(hello())]);
    let body = json!({"model": "tiny", "messages": [{"role": "user", "content": "a-private-question"}], "user": "a-private-user"});
    edge.post("/v1/chat/completions", body.clone()).await;
    let mut streamed = post("/v1/chat/completions", KEY, json!({"stream": true, "model": body["model"], "messages": body["messages"]}));
    streamed.headers_mut().insert("x-request-id", "the-second".parse().unwrap());
    edge.send(streamed).await;
    edge.send(post("/v1/chat/completions", "rh_some-wrong-key-that-was-mistyped", body)).await;
    edge.close().await;

    let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
    for private in [KEY, "a-private-question", "a-private-user", "wörld", "rh_some-wrong-key"] {
        assert!(!text.contains(private), "{private} is in\n{text}");
    }
    let requests: Vec<Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).filter(|line: &Value| line["target"] == "request").collect();
    assert_eq!(requests.len(), 3, "{text}");
    let second = requests.iter().find(|line| line["id"] == "the-second").unwrap();
    for (field, value) in [
        ("tenant", json!("acme")),
        ("key", json!("ci")),
        ("model", json!("tiny")),
        ("variant", json!("only")),
        ("backend", json!("b0")),
        ("offers", json!("b0 cached 0 queue 0ms prefill 0ms")),
        ("attempts", json!(1)),
        ("status", json!(200)),
        ("prompt_tokens", json!(9)),
        ("cached_tokens", json!(4)),
        ("completion_tokens", json!(12)),
        ("outcome", json!("Done")),
        ("config", json!(1)),
    ] {
        assert_eq!(second[field], value, "{field}");
    }
    assert!(second["ttft_ms"].is_number() && second["duration_ms"].is_number());
    let refused = requests.iter().find(|line| line["status"] == 401).unwrap();
    assert_eq!((&refused["tenant"], &refused["outcome"]), (&json!("unknown"), &json!("Refused")));
}
