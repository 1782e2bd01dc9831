//! What the log says of upstreams: what they did, and nothing of what was asked, answered or who may ask.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use roundhouse::config::Config;
use roundhouse::engine::fake::Fake;
use serde_json::{Value, json};
use std::io::Write;
use std::sync::{Arc, Mutex};
use support::bad_upstream::{BadUpstream, DONE, answer, chunk, good, stream};
use support::client::Client;
use support::fake::Fakes;
use support::server::{self, KEY};

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
async fn no_key_prompt_or_answer_is_in_the_log_whatever_goes_wrong() {
    let lines = Lines::default();
    let writer = lines.clone();
    tracing_subscriber::fmt().json().flatten_event(true).with_max_level(tracing::Level::TRACE).with_writer(move || writer.clone()).init();
    let echo = "{\"error\":{\"message\":\"private-words of the-upstream-key\"}}";
    let bad = BadUpstream::each(vec![
        answer("500 Internal Server Error", "", echo),
        answer("401 Unauthorized", "", echo),
        answer("400 Bad Request", "", echo),
        stream(&["data: {\"choices\":[{\"index\":\"private-words\"}]}\n\n"]),
        stream(&["data: {\"error\":{\"message\":\"private-words\"}}\n\n"]),
        stream(&[&chunk("private-words"), "data: private-words\n\n", DONE]),
        good(),
    ])
    .await;
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("key"), "the-upstream-key").unwrap();
    let text = format!(
        "server = {{ listen = \"127.0.0.1:0\", threads = 1 }}\nadmin.listen = \"127.0.0.1:0\"\nstore.ledger = \"off\"\n\
         [upstreams.far]\nurl = \"http://{}/v1\"\napi_key = {{ file = \"key\" }}\nretries.attempts = 2\n\
         [models.tiny]\nvariants.only.backends = [\"far\"]\n[tenants.acme]\nkeys = [{{ name = \"ci\", hash = \"{}\" }}]\n",
        bad.address,
        blake3::hash(KEY.as_bytes()).to_hex()
    );
    let config = Config::parse(&text, &folder.path().join("r.toml")).unwrap();
    let server = server::with(config, Fakes(Fake::new));
    let client = Client::new(server.address(), Some(KEY));
    let body = json!({ "model": "tiny", "messages": [{ "role": "user", "content": "private-words" }] });
    for _ in 0..4 {
        client.post("/v1/chat/completions", &body).await;
    }
    tokio::task::spawn_blocking(move || server.stop()).await.unwrap();

    let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
    for private in [KEY, "the-upstream-key", "private-words", "Hel"] {
        assert!(!text.contains(private), "{private} is in\n{text}");
    }
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let requests: Vec<_> = lines.iter().filter(|line| line["target"] == "request").collect();
    assert_eq!(requests.len(), 4, "{text}");
    assert_eq!((&requests[0]["attempts"], &requests[0]["status"]), (&json!(2), &json!(502)));
    assert_eq!(requests[0]["failed"], "far answered with status 500, far refused the gateway's credentials");
    assert!(lines.iter().any(|line| line["level"] == "ERROR" && line["backend"] == "far" && line["status"] == 401), "{text}");
}
