//! What clients see on the wire: answers in one piece and in events, errors, headers, and what becomes of a request
//! whose client hangs up.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use bytes::Bytes;
use futures_util::StreamExt;
use http::Request;
use http_body::Frame;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper_util::rt::{TokioExecutor, TokioIo};
use roundhouse::backend::State;
use roundhouse::call::{Error, Event, Outcome, Reply};
use serde_json::{Value, json};
use std::convert::Infallible;
use std::time::Duration;
use support::edge::{Answer, CONTEXT, Edge, KEY, OTHER_KEY, SPENT_KEY, Scripted, connect, driven, finish, get, hello, post, text, usage};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

fn chat(extra: Value) -> Value {
    merged(json!({"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}), extra)
}

fn completion(extra: Value) -> Value {
    merged(json!({"model": "tiny", "prompt": "Once"}), extra)
}

fn merged(mut body: Value, extra: Value) -> Value {
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    body
}

/// The text of one choice of a stream's events, and why it ended.
fn streamed(events: &[Value], choice: u64, pointer: &str) -> (String, Option<String>) {
    let own = || events.iter().filter_map(|event| event["choices"].as_array()).flatten().filter(move |read| read["index"] == choice);
    let joined = own().filter_map(|read| read.pointer(pointer)?.as_str()).collect();
    (joined, own().find_map(|read| read["finish_reason"].as_str()).map(str::to_owned))
}

#[tokio::test]
async fn a_chat_is_answered_in_one_piece() {
    let edge = Edge::start(&[Scripted::says(hello())]);
    let answer = edge.post(CHAT, chat(json!({}))).await;
    assert_eq!(answer.status, 200);
    let body = answer.json();
    assert_eq!(body["object"], "chat.completion");
    assert_eq!(body["model"], "tiny");
    assert!(body["id"].as_str().unwrap().starts_with("chatcmpl-"));
    assert!(body["system_fingerprint"].as_str().unwrap().starts_with("fp_"));
    assert!(body["created"].as_u64().unwrap() > 1_700_000_000);
    assert_eq!(body["choices"][0]["message"], json!({"role": "assistant", "content": "Hello wörld", "refusal": null}));
    assert_eq!(body["choices"][0]["finish_reason"], "stop");
    let expected = json!({"prompt_tokens": 9, "completion_tokens": 12, "total_tokens": 21, "prompt_tokens_details": {"cached_tokens": 4}});
    assert_eq!(body["usage"], expected);
}

#[tokio::test]
async fn a_chat_is_answered_in_events() {
    let edge = Edge::start(&[Scripted::says(hello())]);
    let answer = edge.post(CHAT, chat(json!({"stream": true, "stream_options": {"include_usage": true}}))).await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.header("content-type"), Some("text/event-stream; charset=utf-8"));
    assert_eq!(answer.header("cache-control"), Some("no-cache"));
    assert_eq!(answer.header("x-accel-buffering"), Some("no"));
    assert_eq!(answer.header("content-length"), None);
    let (events, done) = answer.events();
    assert!(done);
    assert_eq!(events[0]["choices"][0]["delta"], json!({"role": "assistant", "content": ""}));
    let (last, before) = events.split_last().unwrap();
    assert_eq!(last["choices"], json!([]));
    assert_eq!(last["usage"]["completion_tokens"], 12);
    assert_eq!(before.last().unwrap()["choices"][0], json!({"index": 0, "delta": {}, "logprobs": null, "finish_reason": "stop"}));
    assert_eq!(streamed(&events, 0, "/delta/content"), ("Hello wörld".to_owned(), Some("stop".to_owned())));
    for event in before {
        assert_eq!(event["usage"], Value::Null);
        assert!(["id", "created", "model", "system_fingerprint", "object"].iter().all(|name| event[name] == events[0][name]));
    }
}

#[tokio::test]
async fn usage_isn_t_streamed_unless_asked_for() {
    let edge = Edge::start(&[Scripted::says(hello())]);
    let (events, done) = edge.post(COMPLETIONS, completion(json!({"stream": true}))).await.events();
    assert!(done && events.iter().all(|event| event.get("usage").is_none() && event["object"] == "text_completion"));
    assert_eq!(streamed(&events, 0, "/text").0, "Hello wörld");
}

#[tokio::test]
async fn several_choices_and_prompts_are_told_apart_by_their_index() {
    let says = vec![
        text(2, "c"),
        text(0, "a"),
        text(3, "d"),
        finish(0),
        text(1, "b"),
        text(2, "C"),
        finish(3),
        finish(2),
        finish(1),
        usage(2, 0, 5),
    ];
    let backend = Scripted::says(says);
    let edge = Edge::start(std::slice::from_ref(&backend));
    let body = completion(json!({"prompt": ["x", "yz"], "n": 2}));
    let whole = edge.post(COMPLETIONS, body.clone()).await.json();
    let texts: Vec<_> =
        whole["choices"].as_array().unwrap().iter().map(|choice| (choice["index"].clone(), choice["text"].clone())).collect();
    assert_eq!(texts, [(json!(0), json!("a")), (json!(1), json!("b")), (json!(2), json!("cC")), (json!(3), json!("d"))]);
    let (events, done) = edge.post(COMPLETIONS, merged(body, json!({"stream": true}))).await.events();
    assert!(done);
    assert_eq!([0, 1, 2, 3].map(|choice| streamed(&events, choice, "/text").0), ["a", "b", "cC", "d"]);
    let call = backend.calls().pop().unwrap();
    assert_eq!(call.prompts.iter().map(|prompt| prompt.ids.len()).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(call.sampling.n, 2);
}

#[tokio::test]
async fn a_call_has_what_the_client_asked_for_and_the_variant_s_defaults_for_the_rest() {
    let backend = Scripted::says(hello());
    let edge = Edge::start(std::slice::from_ref(&backend));
    let body = json!({"model": "default", "prompt": "Once", "max_tokens": 7, "temperature": 1.5, "top_p": 0.75, "seed": -2, "stop": ["a", "b"], "n": 1});
    assert_eq!(edge.post(COMPLETIONS, body).await.status, 200);
    edge.post(COMPLETIONS, completion(json!({}))).await;
    edge.post(COMPLETIONS, completion(json!({"prompt": [258 - 1, 0], "max_tokens": null}))).await;
    edge.post(COMPLETIONS, completion(json!({"prompt": "x".repeat(CONTEXT as usize - 5)}))).await;
    edge.post(CHAT, chat(json!({}))).await;
    let calls = backend.calls();
    let asked = &*calls[0].sampling;
    assert_eq!((asked.max_tokens, asked.temperature, asked.top_p, asked.seed), (7, 1.5, 0.75, u64::MAX - 1));
    assert_eq!(asked.stop, ["a", "b"]);
    assert_eq!(calls[0].model.name.as_str(), "tiny");
    let defaults = &*calls[1].sampling;
    assert_eq!((defaults.n, defaults.max_tokens, defaults.temperature, defaults.top_p), (1, 32, 0.5, 0.25));
    assert_ne!(defaults.seed, calls[2].sampling.seed);
    assert_eq!(*calls[2].prompts[0].ids, [257, 0]);
    assert_eq!(calls[3].sampling.max_tokens, 5); // what is left of the context
    assert_eq!(calls[4].prompts[0].ids.len(), "|user\nHi|\n|assistant\n".len());
    assert_eq!(calls[4].messages[0].content, "Hi");
}

#[tokio::test]
async fn answers_carry_token_ids_where_asked_for() {
    let edge = Edge::start(&[Scripted::says(hello())]);
    let whole = edge.post(CHAT, chat(json!({"return_token_ids": true}))).await.json();
    let ids: Vec<u32> = "Hello wörld".bytes().map(u32::from).collect();
    assert_eq!(whole["choices"][0]["token_ids"], json!(ids));
    let (events, _) = edge.post(CHAT, chat(json!({"return_token_ids": true, "stream": true}))).await.events();
    let streamed: Vec<_> = events.iter().filter_map(|event| event["choices"][0]["token_ids"].as_array()).flatten().collect();
    assert_eq!(streamed, ids.iter().map(|id| json!(id)).collect::<Vec<_>>().iter().collect::<Vec<_>>());
}

#[tokio::test]
async fn every_answer_has_its_headers_and_the_client_s_own_id() {
    let edge = Edge::start(&[Scripted::says(hello())]);
    let with_id = |id: &str| {
        let mut request = post(COMPLETIONS, OTHER_KEY, completion(json!({"model": "twin"})));
        request.headers_mut().insert("x-request-id", id.parse().unwrap());
        request
    };
    let answer = edge.send(with_id("My-Id_1.2")).await;
    assert_eq!(answer.header("x-request-id"), Some("My-Id_1.2"));
    assert_eq!(answer.header("x-roundhouse-variant"), Some("single"));
    assert_eq!(answer.header("x-roundhouse-backend"), Some("b0"));
    assert_eq!(answer.header("x-roundhouse-config"), Some("1"));
    assert!(answer.header("openai-processing-ms").unwrap().parse::<u64>().is_ok());
    assert_eq!(answer.header("x-ratelimit-limit-requests"), Some("10"));
    assert_eq!(answer.header("x-ratelimit-remaining-requests"), Some("9"));
    assert!(answer.header("x-ratelimit-reset-requests").unwrap().ends_with('s'));
    for bad in ["", "a b", "ü", &"x".repeat(129)] {
        let made = edge.send(with_id(bad)).await.header("x-request-id").unwrap().to_owned();
        assert!(made.starts_with("req_") && made.len() == 36, "{made}");
    }
    for path in ["/health", "/nowhere", "/v1/models"] {
        let answer = edge.send(get(path, "wrong")).await;
        assert!(answer.header("x-request-id").is_some() && answer.header("openai-processing-ms").is_some(), "{path}");
    }
    let hidden = Edge::with("show_backend = false", &[Scripted::says(hello())]);
    assert_eq!(hidden.post(CHAT, chat(json!({}))).await.header("x-roundhouse-backend"), None);
}

#[tokio::test]
async fn models_are_those_of_the_tenant() {
    let edge = Edge::start(&[Scripted::says(hello())]);
    let names = |answer: Answer| -> Vec<String> {
        let body = answer.json();
        body["data"].as_array().unwrap().iter().map(|model| model["id"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names(edge.send(get("/v1/models", KEY)).await), ["tiny", "twin"]);
    assert_eq!(names(edge.send(get("/v1/models", OTHER_KEY)).await), ["twin"]);
    let model = edge.send(get("/v1/models/default", KEY)).await.json();
    assert_eq!((&model["id"], &model["object"]), (&json!("tiny"), &json!("model")));
    let theirs = edge.send(get("/v1/models/tiny", OTHER_KEY)).await;
    let nobodys = edge.send(get("/v1/models/void", OTHER_KEY)).await;
    assert_eq!(theirs.error(), (404, "invalid_request_error".into(), "model_not_found".into(), Some("model".into())));
    assert_eq!(theirs.error(), nobodys.error());
}

#[tokio::test]
async fn every_case_of_the_error_table_reads_as_documented() {
    let edge = Edge::with("max_body = 100000", &[Scripted::says(hello())]);
    let invalid =
        |status, code: &str, param: Option<&str>| (status, "invalid_request_error".to_owned(), code.to_owned(), param.map(str::to_owned));

    let answer = edge.send(post(CHAT, "rh_abcdefghijklmnopqrstuvwxyz0123456789", chat(json!({})))).await;
    assert_eq!(answer.error(), invalid(401, "invalid_api_key", None));
    assert_eq!(answer.header("www-authenticate"), Some("Bearer"));
    let message = answer.json()["error"]["message"].as_str().unwrap().to_owned();
    assert!(message.contains("rh_abcd…") && !message.contains("rh_abcde"), "{message}");

    let mut anthropic = post(CHAT, KEY, chat(json!({})));
    anthropic.headers_mut().remove("authorization");
    anthropic.headers_mut().insert("x-api-key", KEY.parse().unwrap());
    assert_eq!(edge.send(anthropic).await.status, 200);

    for (body, param) in [
        (chat(json!({"messages": [{"role": "user", "content": "a"}, {"role": "user", "content": 3}]})), "messages[1].content"),
        (chat(json!({"n": 1000})), "n"),
        (chat(json!({"stop": [""]})), "stop[0]"),
    ] {
        assert_eq!(edge.post(CHAT, body).await.error(), invalid(400, "invalid_value", Some(param)));
    }
    for (prompt, param) in
        [(json!(""), "prompt"), (json!([]), "prompt"), (json!([[1], [258]]), "prompt[1][0]"), (json!([1, 258]), "prompt[1]")]
    {
        assert_eq!(edge.post(COMPLETIONS, completion(json!({"prompt": prompt}))).await.error(), invalid(400, "invalid_value", Some(param)));
    }
    assert_eq!(edge.post(CHAT, chat(json!({"tools": [{}]}))).await.error(), invalid(400, "unsupported_parameter", Some("tools")));
    let mut broken = post(CHAT, KEY, json!({}));
    *broken.body_mut() = Full::from("{\"model\": ");
    assert_eq!(edge.send(broken).await.error(), invalid(400, "invalid_value", None));

    for (path, body, param) in [
        (COMPLETIONS, completion(json!({"prompt": "x".repeat(CONTEXT as usize)})), "prompt"),
        (COMPLETIONS, completion(json!({"prompt": "xxx", "max_tokens": CONTEXT - 2})), "prompt"),
        (CHAT, chat(json!({"max_tokens": 4_000_000_000_u32})), "messages"),
    ] {
        let answer = edge.post(path, body).await;
        assert_eq!(answer.error(), invalid(400, "context_length_exceeded", Some(param)));
        let message = answer.json()["error"]["message"].as_str().unwrap().to_owned();
        assert!(message.starts_with("This model's maximum context length is 40000 tokens. However, "), "{message}");
    }

    assert_eq!(edge.send(get("/v1/embeddings", KEY)).await.error(), invalid(404, "unknown_url", None));
    let answer = edge.send(get(CHAT, KEY)).await;
    assert_eq!(answer.error(), invalid(405, "method_not_allowed", None));
    assert_eq!(answer.header("allow"), Some("POST, OPTIONS"));
    assert_eq!(
        edge.post(COMPLETIONS, completion(json!({"prompt": "x".repeat(100_000)}))).await.error(),
        invalid(413, "request_too_large", None)
    );
    let mut form = post(CHAT, KEY, chat(json!({})));
    form.headers_mut().insert("content-type", "application/x-www-form-urlencoded".parse().unwrap());
    assert_eq!(edge.send(form).await.error(), invalid(415, "unsupported_media_type", None));
    let mut heavy = get("/v1/models", KEY);
    heavy.headers_mut().insert("x-heavy", "x".repeat(70_000).parse().unwrap());
    assert_eq!(edge.send(heavy).await.error(), invalid(431, "headers_too_large", None));
}

#[tokio::test]
async fn a_limit_says_where_it_stands_and_when_to_come_back() {
    let backend = Scripted::says(hello());
    let edge = Edge::start(std::slice::from_ref(&backend));
    for left in (0..10).rev() {
        let answer = edge.send(post(COMPLETIONS, OTHER_KEY, completion(json!({"model": "twin"})))).await;
        assert_eq!(answer.status, 200);
        assert_eq!(answer.header("x-ratelimit-remaining-requests"), Some(left.to_string().as_str()));
    }
    let answer = edge.send(post(COMPLETIONS, OTHER_KEY, completion(json!({"model": "twin"})))).await;
    assert_eq!(answer.error(), (429, "requests".into(), "rate_limit_exceeded".into(), None));
    assert_eq!(answer.header("x-ratelimit-remaining-requests"), Some("0"));
    let seconds: u64 = answer.header("retry-after").unwrap().parse().unwrap();
    let ms: u64 = answer.header("retry-after-ms").unwrap().parse().unwrap();
    assert!((1..=6).contains(&seconds) && (1..=6000).contains(&ms), "{answer:?}");
    assert_eq!(answer.header("x-should-retry"), None);
    assert_eq!(backend.calls().len(), 10);
    let never = edge.send(post(COMPLETIONS, SPENT_KEY, completion(json!({})))).await;
    assert_eq!((never.status, never.header("x-should-retry")), (429, Some("false")));
}

#[tokio::test]
async fn a_refused_request_consumes_nothing() {
    let backend = Scripted::says(hello());
    let edge = Edge::start(std::slice::from_ref(&backend));
    *backend.state.lock().unwrap() = State::Draining;
    for _ in 0..30 {
        let answer = edge.send(post(COMPLETIONS, OTHER_KEY, completion(json!({"model": "twin"})))).await;
        assert_eq!(answer.error(), (503, "server_error".into(), "no_capacity".into(), None));
        assert_eq!(answer.header("retry-after"), Some("5"));
    }
    *backend.state.lock().unwrap() = State::Ready;
    let answer = edge.send(post(COMPLETIONS, OTHER_KEY, completion(json!({"model": "twin"})))).await;
    assert_eq!(answer.header("x-ratelimit-remaining-requests"), Some("9"));
}

#[tokio::test]
async fn a_backend_lost_before_the_first_event_is_replaced_by_another() {
    let lost = || Scripted::fails(Error::ShardLost { backend: "b".into() });
    let edge = Edge::start(&[lost(), Scripted::says(hello()), lost()]);
    for _ in 0..8 {
        let answer = edge.post(CHAT, chat(json!({}))).await;
        assert_eq!((answer.status, answer.header("x-roundhouse-backend")), (200, Some("b1")));
    }
    let edge = Edge::start(&[lost(), lost()]);
    let answer = edge.post(CHAT, chat(json!({"stream": true}))).await;
    assert_eq!(answer.error(), (503, "server_error".into(), "backend_unavailable".into(), None));
    let edge = Edge::start(&[Scripted::fails(Error::Overloaded { model: "tiny".into(), retry_after: Duration::from_millis(1500) })]);
    let answer = edge.post(CHAT, chat(json!({}))).await;
    assert_eq!(answer.error(), (429, "server_error".into(), "overloaded".into(), None));
    assert_eq!((answer.header("retry-after"), answer.header("retry-after-ms")), (Some("2"), Some("1500")));
}

#[tokio::test]
async fn a_panic_ends_one_request_and_nothing_else() {
    let backend = Scripted::new(|call| async move {
        assert_eq!(call.sampling.max_tokens, 1, "as the test wants it");
        Ok(Reply::new(futures_util::stream::iter(hello().into_iter().map(Ok))))
    });
    let edge = Edge::start(&[backend]);
    let mut client = edge.connect().await;
    let answer = Answer::read(client.sender.send_request(post(CHAT, KEY, chat(json!({})))).await.unwrap()).await;
    assert_eq!(answer.error(), (500, "server_error".into(), "internal_error".into(), None));
    client.sender.ready().await.unwrap();
    let answer = Answer::read(client.sender.send_request(post(CHAT, KEY, chat(json!({"max_tokens": 1})))).await.unwrap()).await;
    assert_eq!(answer.status, 200);
}

#[tokio::test]
async fn an_error_after_the_first_byte_is_the_last_event() {
    let lost = || Err(Error::ShardLost { backend: "b0".into() });
    let backend = Scripted::new(move |_| async move { Ok(Reply::new(futures_util::stream::iter([Ok(text(0, "Hel")), lost()]))) });
    let edge = Edge::start(&[backend]);
    let answer = edge.post(CHAT, chat(json!({"stream": true}))).await;
    assert_eq!(answer.status, 200);
    let (events, done) = answer.events();
    assert!(!done);
    assert_eq!(streamed(&events, 0, "/delta/content"), ("Hel".to_owned(), None));
    assert_eq!(events.last().unwrap()["error"]["code"], "backend_unavailable");
    let whole = edge.post(CHAT, chat(json!({}))).await;
    assert_eq!(whole.error(), (503, "server_error".into(), "backend_unavailable".into(), None));
}

#[tokio::test]
async fn half_an_answer_never_looks_like_a_whole_one() {
    let edge = Edge::start(&[Scripted::says(vec![text(0, "Hel"), usage(1, 0, 3)])]);
    let (events, done) = edge.post(CHAT, chat(json!({"stream": true}))).await.events();
    assert!(!done);
    assert_eq!(events.last().unwrap()["error"]["code"], "internal_error");
    assert_eq!(edge.post(CHAT, chat(json!({}))).await.status, 500);
}

#[tokio::test]
async fn events_arrive_while_the_backend_is_still_at_work() {
    let mut driven = driven(true);
    let edge = Edge::start(&[driven.backend.clone()]);
    let mut client = edge.connect().await;
    let answer = client.sender.send_request(post(CHAT, KEY, chat(json!({"stream": true})))).await.unwrap();
    let events = driven.begun.recv().await.unwrap();
    let mut body = answer.into_body();
    for piece in ["one", "two", "three"] {
        events.send(Ok(text(0, piece))).unwrap();
        let mut read = String::new();
        while !read.contains(piece) {
            read.push_str(std::str::from_utf8(&body.frame().await.unwrap().unwrap().into_data().unwrap()).unwrap());
        }
    }
    events.send(Ok(finish(0))).unwrap();
    drop(events);
    let rest = body.collect().await.unwrap().to_bytes();
    assert!(rest.ends_with(b"data: [DONE]\n\n"));
    assert_eq!(driven.ended.recv().await, Some(Outcome::Done));
}

/// Hangs up at some point and expects the lease to end once, as one whose client is gone.
async fn hang_up(stream: bool, eager: bool, pieces: &[Event]) {
    let mut driven = driven(eager);
    let edge = Edge::start(&[driven.backend.clone()]);
    let mut client = edge.connect().await;
    let request = post(CHAT, KEY, chat(json!({"stream": stream})));
    let answer = tokio::spawn(client.sender.send_request(request));
    let events = driven.begun.recv().await.unwrap();
    for piece in pieces {
        events.send(Ok(piece.clone())).unwrap();
    }
    let answer = if stream && eager {
        let mut answer = answer.await.unwrap().unwrap();
        answer.body_mut().frame().await.unwrap().unwrap(); // the first event has come
        Some(answer)
    } else {
        None
    };
    drop((answer, client));
    assert_eq!(driven.ended.recv().await, Some(Outcome::ClientGone));
    edge.close().await;
    drop(driven.backend);
    assert_eq!(driven.ended.recv().await, None, "the lease ended twice");
}

#[tokio::test]
async fn a_client_that_hangs_up_before_the_first_byte_releases_everything_once() {
    hang_up(true, false, &[]).await;
    hang_up(false, false, &[]).await;
}

#[tokio::test]
async fn a_client_that_hangs_up_while_its_answer_is_gathered_releases_everything_once() {
    hang_up(false, true, &[text(0, "a"), text(0, "b")]).await;
}

#[tokio::test]
async fn a_client_that_hangs_up_in_the_middle_of_a_stream_releases_everything_once() {
    hang_up(true, true, &[text(0, "a"), text(0, "b")]).await;
}

#[tokio::test]
async fn the_tokens_of_a_cut_stream_are_counted() {
    let mut driven = driven(true);
    let edge = Edge::start(&[driven.backend.clone()]);
    let mut client = edge.connect().await;
    let mut answer = client.sender.send_request(post(COMPLETIONS, KEY, completion(json!({"stream": true})))).await.unwrap();
    driven.begun.recv().await.unwrap().send(Ok(text(0, "abc"))).unwrap();
    answer.body_mut().frame().await.unwrap().unwrap();
    drop((answer, client));
    driven.ended.recv().await.unwrap();
    let metrics = edge.metrics.clone();
    edge.close().await;
    let page = metrics.render();
    for line in [
        "roundhouse_tokens_total{tenant=\"acme\",model=\"tiny\",kind=\"prompt\"} 4",
        "roundhouse_tokens_total{tenant=\"acme\",model=\"tiny\",kind=\"completion\"} 3",
        "roundhouse_requests_total{tenant=\"acme\",model=\"tiny\",variant=\"only\",backend=\"b0\",status=\"200\"} 1",
        "roundhouse_time_to_first_token_seconds_count{model=\"tiny\",variant=\"only\",backend=\"b0\"} 1",
    ] {
        assert!(page.lines().any(|found| found == line), "{line} isn't in\n{page}");
    }
}

#[tokio::test]
async fn a_body_in_chunks_is_taken_and_one_that_is_too_large_is_refused() {
    let edge = Edge::with("max_body = \"1MiB\"", &[Scripted::says(hello())]);
    for (size, status) in [(10, 200), (30_000, 200), (2_000_000, 413), (20_000_000, 413)] {
        let body = completion(json!({"prompt": "x".repeat(size)})).to_string();
        let pieces: Vec<_> =
            body.as_bytes().chunks(50_000).map(Bytes::copy_from_slice).map(|piece| Ok::<_, Infallible>(Frame::data(piece))).collect();
        let body = StreamBody::new(futures_util::stream::iter(pieces));
        let request = Request::post(COMPLETIONS).header("host", "test").header("x-api-key", KEY).header("content-type", "application/json");
        let io = TokioIo::new(tokio::net::TcpStream::connect(edge.address).await.unwrap());
        let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await.unwrap();
        tokio::spawn(connection);
        let answer = Answer::read(sender.send_request(request.body(body).unwrap()).await.unwrap()).await;
        assert_eq!(answer.status, status, "{size}");
    }
}

#[tokio::test]
async fn bodies_of_32_kib_and_a_megabyte_are_neither_413_nor_500() {
    let edge = Edge::start(&[Scripted::says(hello())]);
    for (size, status) in [(33 << 10, 200), (1 << 20, 200), (10 << 20, 200), (16 << 20, 200), ((16 << 20) + 1, 413)] {
        let mut request = post(CHAT, KEY, json!({}));
        let body = chat(json!({})).to_string();
        *request.body_mut() = Full::from(format!("{body}{}", " ".repeat(size - body.len())));
        assert_eq!(edge.send(request).await.status, status, "{size}");
    }
}

#[tokio::test]
async fn http2_clients_are_served_on_the_same_port() {
    let edge = Edge::start(&[Scripted::says(hello())]);
    let io = TokioIo::new(tokio::net::TcpStream::connect(edge.address).await.unwrap());
    let (sender, connection) = hyper::client::conn::http2::handshake(TokioExecutor::new(), io).await.unwrap();
    tokio::spawn(connection);
    let uri = |path: &str| format!("http://{}{path}", edge.address);
    let answers = (0..20).map(|index| {
        let mut sender = sender.clone();
        let mut request = post(CHAT, KEY, chat(json!({"stream": index % 2 == 0})));
        *request.uri_mut() = uri(CHAT).parse().unwrap();
        async move { Answer::read(sender.send_request(request).await.unwrap()).await.status }
    });
    let statuses: Vec<_> = futures_util::stream::iter(answers).buffer_unordered(20).collect().await;
    assert_eq!(statuses, [200; 20]);
    let head = Request::head(uri("/v1/models")).header("x-api-key", KEY).body(Full::default()).unwrap();
    let answer = Answer::read(sender.clone().send_request(head).await.unwrap()).await;
    assert_eq!((answer.status, answer.body.len()), (200, 0));
}

#[tokio::test]
async fn probes_and_curious_methods_are_answered_without_a_key() {
    let backend = Scripted::says(hello());
    let edge = Edge::start(std::slice::from_ref(&backend));
    let ask = async |method: &str, path: &str| {
        let request = Request::builder().method(method).uri(path).header("host", "test").body(Full::default()).unwrap();
        edge.send(request).await
    };
    for path in ["/health", "/livez", "/ready", "/readyz"] {
        assert_eq!(ask("GET", path).await.status, 200, "{path}");
    }
    let (get, head) = (ask("GET", "/health").await, ask("HEAD", "/health").await);
    assert_eq!(head.body.len(), 0);
    assert_eq!(head.header("content-length"), get.header("content-length"));
    let options = ask("OPTIONS", CHAT).await;
    assert_eq!((options.status, options.header("allow")), (204, Some("POST, OPTIONS")));
    *backend.state.lock().unwrap() = State::Lost;
    assert_eq!(ask("GET", "/ready").await.status, 503);
    assert_eq!(ask("GET", "/health").await.status, 200);
}

#[tokio::test]
async fn a_stream_that_is_open_at_shutdown_is_finished() {
    let mut driven = driven(true);
    let edge = Edge::start(&[driven.backend.clone()]);
    let address = edge.address;
    let mut client = edge.connect().await;
    let answer = client.sender.send_request(post(CHAT, KEY, chat(json!({"stream": true})))).await.unwrap();
    let events = driven.begun.recv().await.unwrap();
    let closing = tokio::spawn(edge.close());
    // Nothing new is accepted once the listeners are gone.
    while tokio::net::TcpStream::connect(address).await.is_ok() {
        tokio::task::yield_now().await;
    }
    assert!(!closing.is_finished());
    for event in hello() {
        events.send(Ok(event)).unwrap();
    }
    drop(events);
    let (read, done) = Answer::read(answer).await.events();
    assert!(done);
    assert_eq!(streamed(&read, 0, "/delta/content").0, "Hello wörld");
    closing.await.unwrap();
    assert_eq!(driven.ended.recv().await, Some(Outcome::Done));
}

#[tokio::test]
async fn one_connection_carries_many_requests() {
    let edge = Edge::start(&[Scripted::says(hello())]);
    let mut client = connect(edge.address).await;
    for index in 0..50 {
        client.sender.ready().await.unwrap();
        let request = post(CHAT, KEY, chat(json!({"stream": index % 3 == 0})));
        assert_eq!(Answer::read(client.sender.send_request(request).await.unwrap()).await.status, 200);
    }
}

#[tokio::test]
async fn the_cheapest_replica_is_asked_and_equals_share_the_work() {
    let dear = Scripted::says(hello());
    *dear.cost.lock().unwrap() = Duration::from_secs(1);
    let (one, other) = (Scripted::says(hello()), Scripted::says(hello()));
    let edge = Edge::start(&[dear.clone(), one.clone(), other.clone()]);
    for _ in 0..64 {
        edge.post(CHAT, chat(json!({}))).await;
    }
    assert_eq!(dear.calls().len(), 0);
    assert!(!one.calls().is_empty() && !other.calls().is_empty());
}
