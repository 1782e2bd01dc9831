//! One request that is wrong in every way: the outermost layer answers first, and each thing put right shows the next.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use roundhouse::backend::State;
use serde_json::json;
use std::time::Duration;
use support::edge::{Edge, KEY, SPENT_KEY, Scripted, hello};

#[tokio::test]
async fn the_outermost_layer_that_has_something_to_say_answers() {
    let backend = Scripted::says(hello());
    *backend.cost.lock().unwrap() = Duration::from_secs(3600);
    let edge = Edge::with("max_body = 300", std::slice::from_ref(&backend));
    let mut request = Wrong {
        method: "PUT",
        path: "/v1/unknown",
        key: None,
        content_type: "text/plain",
        timeout: "0.000001",
        body: json!({"model": "nothing", "prompt": "x".repeat(600), "n": "many"}).to_string(),
    };

    assert_eq!(request.send(&edge).await, "unknown_url"); // the listener: what isn't served needs no key
    request.path = "/v1/completions";
    assert_eq!(request.send(&edge).await, "method_not_allowed");
    request.method = "POST";
    assert_eq!(request.send(&edge).await, "invalid_api_key"); // authenticate
    request.key = Some("rh_nobody's");
    assert_eq!(request.send(&edge).await, "invalid_api_key");
    request.key = Some(SPENT_KEY);
    assert_eq!(request.send(&edge).await, "unsupported_media_type"); // translate
    request.content_type = "application/json";
    assert_eq!(request.send(&edge).await, "request_too_large");
    request.body = json!({"model": "nothing", "prompt": "x", "n": "many"}).to_string();
    assert_eq!(request.send(&edge).await, "invalid_value");
    request.body = json!({"model": "nothing", "prompt": "x"}).to_string();
    assert_eq!(request.send(&edge).await, "model_not_found");
    request.body = json!({"model": "tiny", "prompt": "x", "max_tokens": 100_000}).to_string();
    assert_eq!(request.send(&edge).await, "context_length_exceeded");
    request.body = json!({"model": "tiny", "prompt": "x"}).to_string();
    assert_eq!(request.send(&edge).await, "rate_limit_exceeded"); // limit
    request.key = Some(KEY);
    assert_eq!(request.send(&edge).await, "timeout"); // deadline
    request.timeout = "3000";
    assert_eq!(request.send(&edge).await, "overloaded"); // admit
    *backend.state.lock().unwrap() = State::Lost;
    assert_eq!(request.send(&edge).await, "no_capacity"); // router
    *backend.state.lock().unwrap() = State::Ready;
    *backend.cost.lock().unwrap() = Duration::ZERO;
    assert_eq!(request.send(&edge).await, "ok");
    assert_eq!(backend.calls().len(), 1);
}

struct Wrong {
    method: &'static str,
    path: &'static str,
    key: Option<&'static str>,
    content_type: &'static str,
    timeout: &'static str,
    body: String,
}

// === impl Wrong ===

impl Wrong {
    /// The code of the error that answers.
    async fn send(&self, edge: &Edge) -> String {
        let request =
            Request::builder().method(self.method).uri(self.path).header("host", "test").header("content-type", self.content_type);
        let request = request.header("x-stainless-timeout", self.timeout);
        let request = match self.key {
            Some(key) => request.header("authorization", format!("Bearer {key}")),
            None => request,
        };
        let answer = edge.send(request.body(Full::new(Bytes::from(self.body.clone()))).unwrap()).await;
        if answer.status == 200 { "ok".to_owned() } else { answer.error().2 }
    }
}
