//! Bad days: more requests than there is room for, backends that take too long, get stuck or die.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use roundhouse::call::{Call, Error, Reply};
use roundhouse::config::{Config, Limit, Limits as Most, Name, Tenant};
use roundhouse::engine::Limits;
use roundhouse::engine::fake::Fake;
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;
use support::client::{Answer, Client};
use support::edge::{Edge, Scripted, driven, hello, text};
use support::fake::{Fakes, Stepping};
use support::server::{self, KEY, Server};

const CHAT: &str = "/v1/chat/completions";

fn chat(stream: bool) -> Value {
    json!({ "model": "default", "messages": [{ "role": "user", "content": "hello" }], "max_tokens": 300, "stream": stream })
}

/// The answer to a client that waits for a third of a second.
async fn impatient(client: &Client, body: &Value) -> Answer {
    let headers = [("content-type", "application/json"), ("x-stainless-timeout", "0.3")];
    client.send(http::Method::POST, CHAT, &headers, body.to_string()).await.whole().await
}

fn code(answer: &Answer) -> (u16, String) {
    (answer.status, answer.json()["error"]["code"].as_str().unwrap_or_default().to_owned())
}

/// Looks again and again until it is so.
async fn until<F: Future<Output = bool>>(what: impl Fn() -> F) {
    while !what().await {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

async fn nothing_is_held(server: &Server) {
    let admin = Client::new(server.admin_address(), None);
    until(async || admin.get("/admin/v1/status").await.json()["tenants"]["acme"] == json!({ "requests": 0, "tokens": 0 })).await;
    for shard in server.shards() {
        until(async || shard.sequences() == (0, 0)).await;
        let (unused, all) = shard.blocks();
        assert_eq!(unused, all);
    }
}

/// The configuration of the other tests, its shard changed.
fn with_shard(change: impl FnOnce(&mut roundhouse::config::Shard)) -> Config {
    let mut config = server::config();
    let shard = config.shards.values_mut().next().unwrap();
    change(Arc::make_mut(shard));
    config
}

// --- Deadlines ---

#[tokio::test]
async fn a_request_without_a_first_event_in_time_gets_504_and_leaves_nothing_behind() {
    let mut driven = driven(false);
    let edge = Edge::with("request_timeout = \"150ms\"", std::slice::from_ref(&driven.backend));
    for stream in [false, true] {
        let answer = edge.post(CHAT, chat(stream)).await;
        assert_eq!(answer.error(), (504, "server_error".into(), "timeout".into(), None));
        assert!(driven.ended.recv().await.is_some());
    }
}

#[tokio::test]
async fn a_stream_that_isn_t_whole_in_time_ends_with_an_error_event_and_a_whole_answer_with_504() {
    let mut driven = driven(true);
    let edge = Edge::with("request_timeout = \"1s\"", std::slice::from_ref(&driven.backend));
    for stream in [true, false] {
        let (answer, said) = tokio::join!(edge.post(CHAT, chat(stream)), async {
            let said = driven.begun.recv().await.unwrap();
            said.send(Ok(text(0, "Hel"))).unwrap();
            said // never ended by the backend
        });
        if stream {
            let (events, done) = answer.events();
            assert!(!done && events.len() >= 2, "{events:?}");
            assert_eq!(events.last().unwrap()["error"]["code"], "timeout");
        } else {
            assert_eq!(answer.error(), (504, "server_error".into(), "timeout".into(), None));
        }
        assert!(driven.ended.recv().await.is_some());
        assert!(said.is_closed());
    }
}

#[tokio::test]
async fn what_is_late_leaves_the_batch_within_a_step() {
    let stepping = Stepping::start();
    let client = Client::new(stepping.server.address(), Some(KEY));
    stepping.let_run(3);
    assert_eq!(code(&impatient(&client, &chat(false)).await), (504, "timeout".to_owned()));
    // The fourth step waits on the device; it is the one that may still be wasted.
    let (server, plans) = stepping.open();
    nothing_is_held(&server).await;
    assert!(plans.lock().unwrap().len() <= 4);
}

#[tokio::test]
async fn a_client_that_says_it_waits_less_isn_t_worked_for_any_longer() {
    let mut driven = driven(false);
    let edge = Edge::start(std::slice::from_ref(&driven.backend));
    for header in ["x-stainless-timeout", "x-stainless-read-timeout"] {
        let mut request = support::edge::post(CHAT, support::edge::KEY, chat(true));
        request.headers_mut().insert(header, "0.15".parse().unwrap());
        assert_eq!(edge.send(request).await.error().0, 504);
        assert!(driven.ended.recv().await.is_some());
    }
}

// --- Room ---

#[tokio::test]
async fn a_full_queue_is_429_with_retry_after_and_what_was_let_in_is_answered() {
    let stepping = Stepping::with(with_shard(|shard| shard.max_waiting = 2));
    let client = Client::new(stepping.server.address(), Some(KEY));
    let let_in: Vec<_> = (0..2)
        .map(|_| {
            let client = client.clone();
            tokio::spawn(async move { client.post(CHAT, &chat(false)).await })
        })
        .collect();
    let shard = stepping.server.shards().next().unwrap().clone();
    until(async || shard.sequences().1 == 2).await;
    for stream in [false, true] {
        let refused = client.post(CHAT, &chat(stream)).await;
        assert_eq!(code(&refused), (429, "overloaded".to_owned()));
        assert!(refused.header("retry-after").unwrap().parse::<u64>().unwrap() >= 1);
    }
    let (server, _) = stepping.open();
    for answer in let_in {
        assert_eq!(answer.await.unwrap().status, 200);
    }
    nothing_is_held(&server).await;
    assert_eq!(client.post(CHAT, &chat(false)).await.status, 200);
}

#[tokio::test]
async fn a_wait_beyond_the_deadline_is_429_at_once_with_the_time_it_is_too_long() {
    let backend = Scripted::says(hello());
    *backend.cost.lock().unwrap() = Duration::from_secs(70);
    let edge = Edge::with("request_timeout = \"60s\"", std::slice::from_ref(&backend));
    let refused = edge.post(CHAT, chat(true)).await;
    assert_eq!(refused.error(), (429, "server_error".into(), "overloaded".into(), None));
    let retry_after: u64 = refused.header("retry-after").unwrap().parse().unwrap();
    assert!((10..60).contains(&retry_after), "ten seconds, and what the test took so far: {retry_after}");
    assert_eq!(backend.calls().len(), 0);
    *backend.cost.lock().unwrap() = Duration::from_secs(1);
    assert_eq!(edge.post(CHAT, chat(true)).await.status, 200);
}

// --- Backends that are stuck or die ---

#[tokio::test]
async fn five_wait_and_nothing_runs_and_readiness_says_so() {
    let stepping = Stepping::with(with_shard(|shard| shard.stuck_after = Duration::from_millis(100)));
    let client = Client::new(stepping.server.address(), Some(KEY));
    let admin = Client::new(stepping.server.admin_address(), None);
    assert_eq!(client.get("/ready").await.status, 200);
    let waiting: Vec<_> = (0..5)
        .map(|_| {
            let client = client.clone();
            tokio::spawn(async move { client.post(CHAT, &chat(false)).await })
        })
        .collect();
    until(async || client.get("/ready").await.status == 503).await;
    assert_eq!(client.get("/ready").await.json()["reason"], "a backend is stuck");
    assert_eq!(client.get("/health").await.status, 200, "the process lives");
    assert_eq!(code(&client.post(CHAT, &chat(false)).await), (503, "no_capacity".to_owned()));
    let metrics = String::from_utf8(admin.get("/metrics").await.body.to_vec()).unwrap();
    assert!(metrics.contains(",state=\"stuck\"} 1\n"), "{metrics}");
    let (server, _) = stepping.open();
    for answer in waiting {
        assert!(matches!(code(&answer.await.unwrap()), (200, _) | (503, _)), "answered, or too late to be let in");
    }
    until(async || client.get("/ready").await.status == 200).await;
    nothing_is_held(&server).await;
}

/// A server with the models `default` on one shard and `frail` on another, whose fake device panics in its fourth step, and
/// the other one's when told so.
fn with_a_frail_one(panic_too: &Arc<AtomicBool>) -> Server {
    let mut config = server::config();
    let mut frail = roundhouse::config::Shard::clone(config.shards.values().next().unwrap());
    frail.name = "frail".into();
    frail.max_sequences = 7;
    let mut model = roundhouse::config::Model::clone(config.models.values().next().unwrap());
    (model.name, model.aliases) = ("frail".into(), Vec::new());
    for variant in model.variants.values_mut() {
        variant.backends = [Name::from("frail")].into();
    }
    config.shards.insert("frail".into(), Arc::new(frail));
    config.models.insert("frail".into(), Arc::new(model));
    let panic_too = panic_too.clone();
    let make = move |limits: Limits| {
        let (mut steps, panic_too) = (0, panic_too.clone());
        Fake::new(limits).observed(move |_| {
            steps += 1;
            assert!(limits.max_sequences != 7 || steps < 4, "a bug, as this test wants it");
            assert!(!panic_too.load(SeqCst), "another one");
        })
    };
    server::with(config, Fakes(make))
}

#[tokio::test]
async fn a_panic_in_a_shard_s_loop_loses_that_shard_and_no_other() {
    let panic_too = Arc::new(AtomicBool::new(false));
    let server = with_a_frail_one(&panic_too);
    let client = Client::new(server.address(), Some(KEY));
    let frail =
        |stream| json!({ "model": "frail", "messages": [{ "role": "user", "content": "hello" }], "max_tokens": 300, "stream": stream });

    let mut stream = client.stream(CHAT, &frail(true)).await;
    assert_eq!(stream.status, 200);
    let mut last = String::new();
    while let Some(event) = stream.next().await {
        last = event;
    }
    assert!(last.contains("\"code\":\"backend_unavailable\""), "{last}");
    assert_eq!(code(&client.post(CHAT, &frail(false)).await), (503, "no_capacity".to_owned()));
    assert_eq!(client.get("/ready").await.status, 200, "one can still serve");
    assert_eq!(client.post(CHAT, &chat(false)).await.status, 200);
    nothing_is_held(&server).await;

    panic_too.store(true, SeqCst);
    assert_eq!(code(&client.post(CHAT, &chat(false)).await), (503, "backend_unavailable".to_owned()));
    let ready = client.get("/ready").await;
    assert_eq!((ready.status, ready.json()["reason"].as_str()), (503, Some("no backend can serve")));
    assert_eq!(client.get("/health").await.status, 200);
    nothing_is_held(&server).await;
}

#[tokio::test]
async fn no_request_hangs_for_ever_when_its_backend_dies_and_those_who_wait_are_told() {
    let panic_too = Arc::new(AtomicBool::new(true));
    let server = with_a_frail_one(&panic_too);
    let client = Client::new(server.address(), Some(KEY));
    let many: Vec<_> = (0..40)
        .map(|index| {
            let client = client.clone();
            tokio::spawn(async move { client.post(CHAT, &chat(index % 2 == 0)).await })
        })
        .collect();
    for answer in many {
        let answer = code(&answer.await.unwrap());
        assert!(matches!(answer.1.as_str(), "backend_unavailable" | "no_capacity") && answer.0 == 503, "{answer:?}");
    }
    nothing_is_held(&server).await;
}

#[tokio::test]
async fn a_panic_in_a_stream_ends_it_with_an_error_event_and_its_connection_lives() {
    let backend = Scripted::new(|_: Call| async {
        let mut pieces = vec![text(0, "Hel")].into_iter();
        let source = futures_util::stream::poll_fn(move |_| std::task::Poll::Ready(Some(Ok::<_, Error>(pieces.next().expect("a bug")))));
        Ok(Reply::new(source))
    });
    let edge = Edge::start(&[backend]);
    let mut client = edge.connect().await;
    for _ in 0..2 {
        client.sender.ready().await.unwrap();
        let answer = client.sender.send_request(support::edge::post(CHAT, support::edge::KEY, chat(true))).await.unwrap();
        let (events, done) = support::edge::Answer::read(answer).await.events();
        assert!(!done);
        assert_eq!(events.last().unwrap()["error"]["code"], "internal_error");
    }
}

// --- What is held comes back ---

#[tokio::test]
async fn concurrency_slots_do_not_leak_on_timeouts_lost_backends_and_cancelled_streams() {
    let panic_too = Arc::new(AtomicBool::new(false));
    let mut config = server::config();
    config.shards.values_mut().for_each(|shard| Arc::make_mut(shard).stuck_after = Duration::from_secs(3600));
    let acme = config.tenants.values_mut().next().unwrap();
    let one_at_a_time = Most { all: Limit { concurrent: Some(1), ..Limit::default() }, ..Most::default() };
    *acme = Arc::new(Tenant { limits: one_at_a_time, ..Tenant::clone(acme) });
    let (stall, dies) = (Arc::new(AtomicBool::new(false)), panic_too.clone());
    let stalls = stall.clone();
    let make = move |limits| {
        let (stalls, dies) = (stalls.clone(), dies.clone());
        Fake::new(limits).observed(move |_| {
            while stalls.load(SeqCst) {
                std::thread::sleep(Duration::from_millis(1));
            }
            assert!(!dies.load(SeqCst), "a bug, as this test wants it");
        })
    };
    let server = server::with(config, Fakes(make));
    let client = Client::new(server.address(), Some(KEY));
    for _ in 0..3 {
        // Timed out before the first byte.
        stall.store(true, SeqCst);
        assert_eq!(code(&impatient(&client, &chat(false)).await), (504, "timeout".to_owned()));
        stall.store(false, SeqCst);
        nothing_is_held(&server).await;
        // Cancelled in the middle.
        let mut stream = client.stream(CHAT, &chat(true)).await;
        assert_eq!(stream.status, 200);
        assert!(stream.next().await.is_some());
        drop(stream);
        nothing_is_held(&server).await;
        // Refused.
        let unknown = client.post(CHAT, &json!({ "model": "default", "messages": [], "max_tokens": 1 })).await;
        assert_ne!(unknown.status, 200);
        assert_eq!(
            client
                .post(CHAT, &json!({ "model": "default", "messages": [{ "role": "user", "content": "x" }], "max_tokens": 2 }))
                .await
                .status,
            200
        );
    }
    panic_too.store(true, SeqCst);
    assert_eq!(code(&client.post(CHAT, &chat(false)).await), (503, "backend_unavailable".to_owned()));
    nothing_is_held(&server).await;
    assert_eq!(code(&client.post(CHAT, &chat(false)).await), (503, "no_capacity".to_owned()), "and not 429");
}
