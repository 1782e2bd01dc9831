//! Requests that are broken in every way: each is answered in a documented form, and the server goes on.

mod support;

use bytes::Bytes;
use http::{HeaderValue, Method, Request};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use roundhouse::config::{Limit, Limits, Tenant};
use roundhouse::engine::fake::Fake;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use support::client::Client;
use support::fake::Fakes;
use support::server::{self, KEY};

const STATUSES: [u16; 13] = [200, 204, 400, 401, 403, 404, 405, 408, 413, 415, 429, 431, 503];

/// A generator of its own, so that a case is the same every time.
struct Random(u64);

impl Random {
    fn next(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % bound.max(1)
    }

    fn of<T: Clone>(&mut self, all: &[T]) -> T {
        all[self.next(all.len())].clone()
    }
}

fn seeds() -> Vec<Value> {
    let messages = json!([
        { "role": "system", "content": "Be brief. \u{1F469}\u{200D}\u{1F680}" },
        { "role": "user", "content": [{ "type": "text", "text": "the hand" }], "name": "Ann" },
    ]);
    vec![
        json!({ "model": "default", "messages": messages, "max_tokens": 3, "temperature": 0.5, "stop": ["a", "ab"], "seed": 1 }),
        json!({ "model": "default", "messages": messages, "max_tokens": 2, "stream": true, "stream_options": { "include_usage": true } }),
        json!({ "model": "default", "messages": messages, "max_tokens": 2, "logprobs": true, "top_logprobs": 3, "logit_bias": { "5": -1 } }),
        json!({ "model": "default", "prompt": ["the hand", "and"], "max_tokens": 2, "n": 2, "echo": true, "logprobs": 1, "user": "u" }),
        json!({ "model": "default", "prompt": [[5, 6, 7], [8]], "max_tokens": 2, "stream": true, "top_k": 4, "min_p": 0.1, "min_tokens": 1 }),
        json!({ "model": "default", "prompt": "x", "max_tokens": 1, "presence_penalty": 1, "frequency_penalty": -1, "repetition_penalty": 1.1 }),
    ]
}

/// Changes one place of a value to something else of any kind.
fn change(value: &mut Value, random: &mut Random) {
    let strange = [
        json!(null),
        json!(-1),
        json!(0),
        json!(1e308),
        json!(u64::MAX),
        json!(0.5),
        json!(""),
        json!("\u{0}\u{FFFD}\u{202E}"),
        json!([]),
        json!({}),
        json!([[[[]]]]),
        json!(true),
        json!({ "": { "": [] } }),
        json!("<|im_start|>system"),
        json!("é".repeat(3000)),
    ];
    match value {
        Value::Object(map) if !map.is_empty() && random.next(4) > 0 => {
            let key = map.keys().nth(random.next(map.len())).cloned().unwrap_or_default();
            match random.next(6) {
                0 => drop(map.remove(&key)),
                1 => drop(map.insert(format!("{key}x"), random.of(&strange))),
                _ => change(&mut map[&key], random),
            }
        }
        Value::Array(list) if !list.is_empty() && random.next(4) > 0 => {
            let index = random.next(list.len());
            match random.next(6) {
                0 => drop(list.remove(index)),
                1 => list.push(random.of(&strange)),
                _ => change(&mut list[index], random),
            }
        }
        other => *other = random.of(&strange),
    }
}

/// A body: a changed value, changed bytes, or noise.
fn body(random: &mut Random) -> Vec<u8> {
    let mut value = random.of(&seeds());
    for _ in 0..random.next(3) {
        change(&mut value, random);
    }
    let mut bytes = value.to_string().into_bytes();
    match random.next(5) {
        0 => bytes = (0..random.next(200)).map(|_| random.next(256) as u8).collect(),
        1 => bytes.truncate(random.next(bytes.len())),
        2 => {
            for _ in 0..=random.next(4) {
                let at = random.next(bytes.len());
                bytes[at] = random.next(256) as u8;
            }
        }
        _ => {}
    }
    bytes
}

fn request(random: &mut Random) -> Request<Full<Bytes>> {
    let usual = random.next(8) > 0;
    let path = if usual {
        random.of(&["/v1/chat/completions", "/v1/completions"])
    } else {
        random.of(&[
            "/v1/models",
            "/v1/models/default",
            "/v1/models/%ff%00",
            "/v1/usage",
            "/",
            "/v1//completions",
            "/ready",
            "/v1/completions?x=%",
        ])
    };
    let method = if usual { Method::POST } else { random.of(&[Method::GET, Method::HEAD, Method::OPTIONS, Method::DELETE, Method::POST]) };
    let mut request = Request::builder().method(method).uri(path).header("host", "test");
    let authorization =
        if random.next(20) > 0 { format!("Bearer {KEY}") } else { random.of(&["Bearer", "Basic x", "Bearer  ", ""]).to_owned() };
    request = request.header("authorization", authorization);
    let kind = if random.next(20) > 0 { "application/json" } else { random.of(&["", "text/plain", "application/json; charset=\"", ";;;"]) };
    request = request.header("content-type", kind);
    if random.next(20) == 0 {
        let noise: Vec<u8> = (0..random.next(100)).map(|_| 0x80 | random.next(128) as u8).collect();
        request = request.header("x-request-id", HeaderValue::from_bytes(&noise).expect("these bytes are allowed"));
    }
    request.body(Full::from(body(random))).expect("the request is well formed")
}

async fn connect(address: SocketAddr) -> SendRequest<Full<Bytes>> {
    let stream = tokio::net::TcpStream::connect(address).await.expect("the server listens");
    let (sender, connection) = handshake(TokioIo::new(stream)).await.expect("it speaks HTTP");
    tokio::spawn(connection);
    sender
}

#[tokio::test]
async fn ten_thousand_broken_requests_are_answered_and_harm_nobody() {
    static PANICS: AtomicUsize = AtomicUsize::new(0);
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        PANICS.fetch_add(1, Relaxed);
        usual(panic);
    }));
    let mut config = server::config();
    let acme = config.tenants.get_mut("acme").expect("it is configured");
    // What is asked for by accident shouldn't take all day.
    let limits = Limits { all: Limit { tokens_per_request: Some(600), ..Limit::default() }, ..Limits::default() };
    *acme = Arc::new(Tenant { limits, ..Tenant::clone(acme) });
    let server = server::with(config, Fakes(Fake::new));
    let mut random = Random(0xbad_c0de);
    let mut sender = connect(server.address()).await;
    let (mut good, mut refused) = (0, 0);
    for case in 0..if support::long() { 10_000 } else { 1_500 } {
        let request = request(&mut random);
        let shown = format!("{case}: {request:?}");
        if sender.is_closed() || sender.ready().await.is_err() {
            sender = connect(server.address()).await;
        }
        let response = sender.send_request(request).await.unwrap_or_else(|error| panic!("{error}: {shown}"));
        let (head, answer) = response.into_parts();
        let answer = answer.collect().await.unwrap_or_else(|error| panic!("{error}: {shown}")).to_bytes();
        let status = head.status.as_u16();
        assert!(STATUSES.contains(&status), "{status}: {shown}");
        if status >= 400 && !answer.is_empty() {
            let error: Value = serde_json::from_slice(&answer).unwrap_or_else(|error| panic!("{error}: {answer:?}: {shown}"));
            assert!(error["error"]["message"].is_string() && error["error"]["code"].is_string(), "{error}: {shown}");
            refused += 1;
        } else {
            good += 1;
        }
        assert!(head.headers.contains_key("x-request-id"), "{shown}");
    }
    assert!(good > 50 && refused > 50, "{good} good, {refused} refused");
    assert_eq!(PANICS.load(Relaxed), 0, "something panicked");
    let client = Client::new(server.address(), Some(KEY));
    assert_eq!(client.get("/ready").await.status, 200);
    let shard = server.shards().next().expect("there is a shard");
    let (unused, all) = shard.blocks();
    assert_eq!((shard.sequences(), unused), ((0, 0), all), "nothing is left running");
}
