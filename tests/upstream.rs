//! Remote servers as backends: good ones look like shards to clients, and whatever bad ones do, every request has one
//! well-formed outcome and nothing is left behind.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use roundhouse::config::{ClientAuth, Config, Name, Tls};
use roundhouse::engine::fake::Fake;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;
use support::bad_upstream::{BadUpstream, DONE, Deed, HEAD, answer, chunk, finish, good, stream, usage};
use support::client::{Answer, Client};
use support::fake::{Fakes, Stepping};
use support::server::{self, KEY, Server};
use support::tenants::Place;

const CHAT: &str = "/v1/chat/completions";
const UPSTREAM_KEY: &str = "the-key-that-only-upstreams-see";

/// A server whose model `tiny` is served by these remotes, `far0` and on; `more` is said of each of them.
fn front(remotes: &[SocketAddr], more: &str) -> Server {
    let urls: Vec<_> = remotes.iter().map(|address| format!("http://{address}/v1")).collect();
    front_of(&urls, more)
}

fn front_of(remotes: &[String], more: &str) -> Server {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("key"), UPSTREAM_KEY).unwrap();
    let upstreams: String = remotes
        .iter()
        .enumerate()
        .map(|(index, url)| {
            let own = if more.contains("api_key") { "" } else { "api_key = { file = \"key\" }\n" };
            format!("[upstreams.far{index}]\nurl = \"{url}\"\n{own}{more}\n")
        })
        .collect();
    let names: Vec<_> = (0..remotes.len()).map(|index| format!("far{index}")).collect();
    let text = format!(
        "server = {{ listen = \"127.0.0.1:0\", threads = 1 }}\nadmin.listen = \"127.0.0.1:0\"\nstore.ledger = \"off\"\n{upstreams}\
         [models.tiny]\nvariants.only.backends = {names:?}\n\
         [tenants.acme]\nkeys = [{{ name = \"ci\", hash = \"{}\" }}]\n",
        blake3::hash(KEY.as_bytes()).to_hex()
    );
    let config = Config::parse(&text, &folder.path().join("r.toml")).unwrap();
    server::with(config, Fakes(Fake::new))
}

/// Fails at once: what is tried again is another test's affair.
const ONCE: &str = "retries.attempts = 1";

fn chat(more: Value) -> Value {
    let mut body = json!({ "model": "tiny", "messages": [{ "role": "user", "content": "the hand" }], "max_tokens": 12, "temperature": 0 });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

fn client(server: &Server) -> Client {
    Client::new(server.address(), Some(KEY))
}

async fn ask(server: &Server) -> Answer {
    client(server).post(CHAT, &chat(json!({}))).await
}

/// What a stream's choice says, its end, and the error that ended it.
async fn streamed(server: &Server) -> (u16, String, Option<String>, Option<String>) {
    streamed_of("any", server).await
}

/// Likewise, of prompts that begin alike.
async fn streamed_of(cache_key: &str, server: &Server) -> (u16, String, Option<String>, Option<String>) {
    let mut stream = client(server).stream(CHAT, &chat(json!({ "stream": true, "prompt_cache_key": cache_key }))).await;
    let (status, mut text, mut finish, mut error) = (stream.status, String::new(), None, None);
    if status != 200 {
        let code = stream.whole().await.json()["error"]["code"].as_str().map(str::to_owned);
        return (status, text, finish, code);
    }
    while let Some(data) = stream.next().await {
        assert!(error.is_none(), "an error is the last event");
        if data == "[DONE]" {
            continue;
        }
        let event: Value = serde_json::from_str(&data).unwrap();
        error = event["error"]["code"].as_str().map(str::to_owned);
        text.push_str(event["choices"][0]["delta"]["content"].as_str().unwrap_or_default());
        finish = finish.or(event["choices"][0]["finish_reason"].as_str().map(str::to_owned));
    }
    (status, text, finish, error)
}

async fn nothing_is_in_flight(server: &Server) {
    while server.upstream(&Name::from("far0")).unwrap().in_flight() > 0 {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

async fn metrics(server: &Server) -> String {
    let page = Client::new(server.admin_address(), None).get("/metrics").await;
    String::from_utf8(page.body.to_vec()).unwrap()
}

#[tokio::test]
async fn a_second_roundhouse_answers_as_it_does_itself() {
    let back = Place::new("[tenants.front]\nkeys = [{ name = \"ci\", hash = \"KEY_HASH\" }]").start();
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("key"), KEY).unwrap();
    let key = format!("api_key = {{ file = {:?} }}", folder.path().join("key"));
    let front = front(&[back.address()], &key);
    let (direct, through) = (client(&back), client(&front));
    for (path, body) in [
        (CHAT, chat(json!({}))),
        (CHAT, chat(json!({ "temperature": 1.5, "seed": 7, "n": 2 }))),
        (CHAT, chat(json!({ "temperature": 1.0, "top_p": 0.9, "seed": -3 }))),
        ("/v1/completions", json!({ "model": "tiny", "prompt": "the hand of", "max_tokens": 9, "temperature": 0 })),
        ("/v1/completions", json!({ "model": "tiny", "prompt": ["the", "a hand"], "n": 2, "max_tokens": 9, "seed": 1 })),
        ("/v1/completions", json!({ "model": "tiny", "prompt": [5, 6, 7], "max_tokens": 9, "temperature": 0 })),
    ] {
        let (own, far) = (direct.post(path, &body).await.json(), through.post(path, &body).await.json());
        assert!(own["choices"].as_array().is_some_and(|choices| !choices.is_empty()), "{own}");
        assert_eq!(far["choices"], own["choices"], "{body}");
        for figure in ["prompt_tokens", "completion_tokens", "total_tokens"] {
            assert_eq!(far["usage"][figure], own["usage"][figure], "{body}");
        }
        let mut body = body;
        body["stream"] = true.into();
        body["stream_options"] = json!({ "include_usage": true });
        let chunks = through.stream(path, &body).await.chunks().await;
        let text = |index: u64| -> String {
            let choices = chunks.iter().flat_map(|chunk| chunk["choices"].as_array().unwrap()).filter(|choice| choice["index"] == index);
            choices.filter_map(|choice| choice["delta"]["content"].as_str().or(choice["text"].as_str())).collect()
        };
        for choice in own["choices"].as_array().unwrap() {
            let whole = choice["message"]["content"].as_str().or(choice["text"].as_str()).unwrap();
            assert_eq!(text(choice["index"].as_u64().unwrap()), whole, "{body}");
        }
        assert_eq!(chunks.last().unwrap()["usage"]["completion_tokens"], own["usage"]["completion_tokens"]);
    }
}

#[tokio::test]
async fn a_stop_string_ends_a_remote_answer_before_it() {
    let back = Place::new("[tenants.front]\nkeys = [{ name = \"ci\", hash = \"KEY_HASH\" }]").start();
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("key"), KEY).unwrap();
    let front = front(&[back.address()], &format!("api_key = {{ file = {:?} }}", folder.path().join("key")));
    let body = json!({ "model": "tiny", "prompt": "the hand of", "max_tokens": 12, "temperature": 0 });
    let whole = client(&front).post("/v1/completions", &body).await.json();
    let whole = whole["choices"][0]["text"].as_str().unwrap().to_owned();
    let middle = whole.char_indices().nth(whole.chars().count() / 2).unwrap().0;
    let stop: String = whole[middle..].chars().take(2).collect();
    let mut body = body;
    body["stop"] = stop.clone().into();
    let stopped = client(&front).post("/v1/completions", &body).await.json();
    let text = stopped["choices"][0]["text"].as_str().unwrap();
    assert_eq!(Some(text), whole.split(&stop).next());
    assert_eq!(stopped["choices"][0]["finish_reason"], "stop");
}

#[tokio::test]
async fn client_gone_the_remote_generates_no_more() {
    for stream in [true, false] {
        let stepping = Stepping::start();
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("key"), KEY).unwrap();
        let key = format!("model = \"default\"\napi_key = {{ file = {:?} }}", folder.path().join("key"));
        let front = front(&[stepping.server.address()], &key);
        stepping.let_run(3);
        let asking = client(&front);
        let body = chat(json!({ "stream": stream, "max_tokens": 500 }));
        let asked = tokio::spawn(async move {
            let mut answer = asking.stream(CHAT, &body).await;
            while answer.next().await.is_some() {}
        });
        while stepping.planned() < 4 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        asked.abort();
        nothing_is_in_flight(&front).await;
        let back = Client::new(stepping.server.admin_address(), None);
        while !String::from_utf8_lossy(&back.get("/metrics").await.body).contains("status=\"200\"}") && stream
            || !String::from_utf8_lossy(&back.get("/metrics").await.body).contains("roundhouse_requests_total{")
        {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        let (back, plans) = stepping.open();
        let shard = back.shards().next().unwrap();
        while shard.sequences() != (0, 0) {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        let (unused, all) = shard.blocks();
        assert_eq!(unused, all, "all blocks have come back");
        assert!(plans.lock().unwrap().len() < 10, "500 tokens were asked for");
    }
}

#[tokio::test]
async fn a_client_that_leaves_before_the_first_byte_cancels_the_upstream_call_streaming_or_not() {
    for stream in [true, false] {
        let mut bad = BadUpstream::always(Deed::SayAndWait(Vec::new())).await;
        let front = front(&[bad.address], ONCE);
        let asking = client(&front);
        let asked = tokio::spawn(async move { asking.post(CHAT, &chat(json!({ "stream": stream }))).await });
        bad.asked.recv().await.unwrap();
        asked.abort();
        bad.gone.recv().await.unwrap();
        nothing_is_in_flight(&front).await;
        assert_eq!(bad.requests().len(), 1, "nobody tries again for a client that has gone");
    }
}

/// What becomes of a request whose upstream does this.
struct Case {
    what: &'static str,
    deed: Deed,
    /// Status and code of the answer in one piece.
    whole: (u16, &'static str),
    /// Text that a stream has before its error; `None` where the stream never begins.
    streamed: Option<&'static str>,
}

fn cases() -> Vec<Case> {
    let lost = (502, "backend_unavailable");
    let before = |what, deed| Case { what, deed, whole: lost, streamed: None };
    let after = |what, deed| Case { what, deed, whole: lost, streamed: Some("Hel") };
    let half = chunk("lo").split_at(30).0.to_owned();
    let head = |rest: &str| format!("HTTP/1.1 200 OK\r\n{rest}\r\n").into_bytes();
    vec![
        before("closed without a word", Deed::Say(Vec::new())),
        before("500", answer("500 Internal Server Error", "", "{}")),
        before("503 in HTML", answer("503 Service Unavailable", "content-type: text/html\r\n", "<h1>no</h1>")),
        before("its credentials refused", answer("401 Unauthorized", "", "{\"error\":{\"message\":\"bad key sk-123\"}}")),
        before("a model that isn't there", answer("404 Not Found", "", "{\"error\":{\"message\":\"no model\"}}")),
        before("a redirect", answer("302 Found", "location: http://127.0.0.1:1/\r\n", "")),
        before("no HTTP", Deed::Say(b"SSH-2.0-OpenSSH_9.2\r\n".to_vec())),
        before("JSON in the place of a stream", answer("200 OK", "content-type: application/json\r\n", "{\"choices\":[]}")),
        before("gzip", answer("200 OK", "content-type: text/event-stream\r\ncontent-encoding: gzip\r\n", "\u{1f}\u{8b}xx")),
        before("garbage JSON", stream(&["data: {\"choices\":[{]\n\n", DONE])),
        before("wrong types", stream(&["data: {\"choices\":[{\"index\":\"secret\"}]}\n\n", DONE])),
        before("an end before the beginning", stream(&[DONE])),
        before("half a chunk", stream(&[&half])),
        before("an error in the stream", stream(&["data: {\"error\":{\"message\":\"out of memory\",\"code\":500}}\n\n"])),
        before("endless headers", Deed::Repeat(b"HTTP/1.1 200 OK\r\n".to_vec(), b"x-a: bbbbbbbbbbbbbbbbbbbb\r\n".repeat(64), 200 << 20)),
        before("a header without an end", Deed::Repeat(b"HTTP/1.1 200 OK\r\nx-a: ".to_vec(), vec![b'a'; 4096], 200 << 20)),
        before("a line of 200 MB", Deed::Repeat([HEAD.as_bytes(), b"data: "].concat(), vec![b'x'; 64 << 10], 200 << 20)),
        before("an event of 200 MB", Deed::Repeat(HEAD.as_bytes().to_vec(), b"data: {\"choices\"\n".repeat(1000), 200 << 20)),
        after("a line of 200 MB in the middle", {
            Deed::Repeat([HEAD.as_bytes(), chunk("Hel").as_bytes(), b"data: "].concat(), vec![b'x'; 64 << 10], 200 << 20)
        }),
        after("killed mid-stream", stream(&[&chunk("Hel")])),
        after("half a chunk in the middle", stream(&[&chunk("Hel"), &half])),
        after(
            "killed in the middle of a chunked body",
            Deed::Say(
                [
                    head("content-type: text/event-stream\r\ntransfer-encoding: chunked\r\n"),
                    format!("{:x}\r\n{}\r\nff\r\ndata", chunk("Hel").len(), chunk("Hel")).into_bytes(),
                ]
                .concat(),
            ),
        ),
        after("[DONE] before the end of every choice", stream(&[&chunk("Hel"), DONE])),
        after("garbage in the middle", stream(&[&chunk("Hel"), "data: nonsense\n\n", DONE])),
        after("an error in the middle", stream(&[&chunk("Hel"), "data: {\"error\":\"out of memory\"}\n\n", DONE])),
        after("an abort", stream(&[&chunk("Hel"), &finish("abort"), DONE])),
    ]
}

#[tokio::test]
async fn whatever_an_upstream_does_wrong_there_is_one_well_formed_answer() {
    for Case { what, deed, whole, streamed: text } in cases() {
        let bad = BadUpstream::always(deed).await;
        let front = front(&[bad.address], ONCE);
        let answer = ask(&front).await;
        let error = &answer.json()["error"];
        assert_eq!((answer.status, error["code"].as_str().unwrap()), whole, "{what}: {error}");
        assert!(error["message"].as_str().unwrap().starts_with("The backend `far0` "), "{what}: {error}");
        assert!(!error.to_string().contains("sk-123") && !error.to_string().contains("secret"), "{what}: {error}");
        let (status, found, _, error) = streamed(&front).await;
        // Content and what is wrong may arrive together; then the stream hasn't begun, and another backend could be asked.
        let begun = text.is_some() && status == 200;
        assert_eq!((status, found.as_str()), if begun { (200, text.unwrap_or_default()) } else { (502, "") }, "{what}");
        assert_eq!(error.as_deref(), Some("backend_unavailable"), "{what}");
        nothing_is_in_flight(&front).await;
        // What the system buffers on the way is the rest: nothing waits for a line's end that doesn't come.
        assert!(bad.sent() < 32 << 20, "{what}: {} bytes were taken", bad.sent());
        assert_eq!(bad.requests().len(), 2, "{what}");
    }
}

#[tokio::test]
async fn odd_but_valid_framing_is_understood() {
    let crlf = |events: &[&str]| events.concat().replace('\n', "\r\n");
    let all = [chunk("Hel"), chunk("lo"), finish("stop"), usage(5, 2), DONE.to_owned()];
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    for (what, body, text) in [
        ("as it should be", all.concat(), "Hello"),
        ("\\r\\n", crlf(&all), "Hello"),
        ("\\r", all.concat().replace('\n', "\r"), "Hello"),
        ("data: without a space", all.concat().replace("data: ", "data:"), "Hello"),
        ("comments, ids and a byte order mark", format!("\u{feff}: hi\n\nid: 3\nevent: message\n{}", all.concat()), "Hello"),
        ("[DONE] inside content", [chunk("data: [DONE]\n\n").as_str(), &finish("stop"), DONE].concat(), "data: [DONE]\n\n"),
        ("no [DONE] at all", [chunk("Hi").as_str(), &finish("stop")].concat(), "Hi"),
        ("no space and no usage", chunk("Hi") + &finish("eos_token") + DONE, "Hi"),
        ("more after [DONE]", all.concat() + &chunk("never"), "Hello"),
    ] {
        let bad = BadUpstream::always(Deed::Say(format!("{HEAD}{body}").into_bytes())).await;
        let front = front(&[bad.address], ONCE);
        let answer = ask(&front).await.json();
        assert_eq!(answer["choices"][0]["message"]["content"], text, "{what}: {answer}");
        assert_eq!(streamed(&front).await, (200, text.to_owned(), Some("stop".to_owned()), None), "{what}");
        nothing_is_in_flight(&front).await;
    }
}

#[tokio::test]
async fn requests_never_hang_after_a_backend_dies() {
    let head = HEAD.as_bytes().to_vec();
    for (deed, timeouts, text) in [
        (Deed::SayAndWait(Vec::new()), "timeouts.first_token = \"100ms\"", None),
        (Deed::SayAndWait(head.clone()), "timeouts.first_token = \"100ms\"", None),
        (Deed::SayAndWait([head.clone(), b": ping\n\n".to_vec()].concat()), "timeouts.first_token = \"100ms\"", None),
        (Deed::SayAndWait([head, chunk("Hel").into_bytes()].concat()), "timeouts.idle = \"100ms\"", Some("Hel")),
    ] {
        let mut bad = BadUpstream::always(deed).await;
        let front = front(&[bad.address], &format!("{ONCE}\n{timeouts}"));
        let answer = ask(&front).await;
        assert_eq!((answer.status, &answer.json()["error"]["code"]), (502, &json!("backend_unavailable")));
        bad.gone.recv().await.unwrap();
        let (_, found, _, error) = streamed(&front).await;
        assert_eq!((found.as_str(), error.as_deref()), (text.unwrap_or_default(), Some("backend_unavailable")));
        bad.gone.recv().await.unwrap();
        nothing_is_in_flight(&front).await;
    }
}

#[tokio::test]
async fn a_backend_that_can_not_be_reached_is_not_waited_for_and_gets_no_more_calls() {
    let closed = { std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap() };
    let front = front(&[closed], "retries.attempts = 1\nhealth.interval = \"20ms\"");
    let first = ask(&front).await;
    assert!(matches!(first.status, 502 | 503), "{first:?}"); // the health checks may have been faster
    while !metrics(&front).await.contains("roundhouse_upstream_state{backend=\"far0\"} 0") {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let later = ask(&front).await;
    assert_eq!((later.status, &later.json()["error"]["code"]), (503, &json!("no_capacity")));
    let status = Client::new(front.admin_address(), None).get("/admin/v1/status").await.json();
    assert_eq!(status["upstreams"]["far0"], json!({ "state": "lost", "url": format!("http://{closed}/v1"), "in_flight": 0 }));
}

#[tokio::test]
async fn an_upstream_that_fails_again_and_again_is_left_alone_until_a_probe_works() {
    let bad = BadUpstream::always(answer("500 Internal Server Error", "", "{}")).await;
    let front = front(&[bad.address], ONCE);
    for _ in 0..5 {
        assert_eq!(ask(&front).await.status, 502);
    }
    assert_eq!(ask(&front).await.status, 503);
    assert_eq!(bad.requests().len(), 5);
    bad.changes_to(good());
    while ask(&front).await.status != 200 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn an_error_after_the_first_event_and_before_content_goes_elsewhere() {
    let role = "data: {\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n";
    let bad = BadUpstream::always(stream(&[role, "data: {\"error\":{\"message\":\"oom\"}}\n\n"])).await;
    let fine = BadUpstream::always(good()).await;
    let front = front(&[bad.address, fine.address], ONCE);
    // Which of the two is asked first goes by what prompts have in common.
    for key in 0..20 {
        assert_eq!(streamed_of(&key.to_string(), &front).await, (200, "Hello".to_owned(), Some("stop".to_owned()), None));
        assert_eq!(fine.requests().len(), key + 1);
        nothing_is_in_flight(&front).await;
    }
    assert!(!bad.requests().is_empty(), "the bad one was never asked, in 20 times of one in two");
}

#[tokio::test]
async fn prompts_that_begin_alike_go_to_the_same_remote_and_others_elsewhere() {
    let (one, other) = (BadUpstream::always(good()).await, BadUpstream::always(good()).await);
    let front = front(&[one.address, other.address], ONCE);
    let mut before = (0, 0);
    for key in 0..12 {
        for _ in 0..3 {
            assert_eq!(streamed_of(&key.to_string(), &front).await.0, 200);
            nothing_is_in_flight(&front).await;
        }
        let now = (one.requests().len(), other.requests().len());
        assert!(now.0 - before.0 == 3 || now.1 - before.1 == 3, "{before:?} {now:?}");
        before = now;
    }
    assert!(before.0 > 0 && before.1 > 0, "{before:?}");
}

#[tokio::test]
async fn what_fails_before_content_is_tried_again_within_its_budget_and_billed_once() {
    let failing = || answer("500 Internal Server Error", "", "{}");
    let bad = BadUpstream::each(vec![failing(), good()]).await;
    let front_ = front(&[bad.address], "retries.attempts = 3");
    let answer = ask(&front_).await;
    assert_eq!((answer.status, bad.requests().len()), (200, 2));
    let page = metrics(&front_).await;
    assert!(page.contains("roundhouse_tokens_total{tenant=\"acme\",model=\"tiny\",kind=\"prompt\"} 5"), "{page}");
    assert!(page.contains("kind=\"completion\"} 2") && page.contains("status=\"200\"} 1"), "{page}");

    let bad = BadUpstream::always(failing()).await;
    let front_ = front(&[bad.address], "retries.attempts = 3");
    assert_eq!((ask(&front_).await.status, bad.requests().len()), (502, 3));
    // After its time it isn't tried again: 0 s are over at once.
    let bad = BadUpstream::always(failing()).await;
    let front_ = front(&[bad.address], "retries = { attempts = 3, time = \"0s\" }");
    assert_eq!((ask(&front_).await.status, bad.requests().len()), (502, 1));
}

#[tokio::test]
async fn a_stream_whose_client_did_not_ask_for_usage_is_counted_and_does_not_show_it() {
    let bad = BadUpstream::always(stream(&[&chunk("Hello"), &finish("stop"), &usage(50, 20), DONE])).await;
    let front = front(&[bad.address], ONCE);
    let chunks = client(&front).stream(CHAT, &chat(json!({ "stream": true }))).await.chunks().await;
    assert!(chunks.iter().all(|chunk| chunk.get("usage").is_none()), "{chunks:?}");
    assert!(bad.requests()[0].contains("\"stream_options\":{\"include_usage\":true}"));
    let page = metrics(&front).await;
    assert!(page.contains("kind=\"prompt\"} 50") && page.contains("kind=\"completion\"} 20"), "{page}");
}

#[tokio::test]
async fn usage_split_over_two_stream_events_is_neither_lost_nor_counted_twice() {
    let first = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":50,\"completion_tokens\":0}}\n\n";
    let second = "data: {\"choices\":[],\"usage\":{\"completion_tokens\":20,\"prompt_tokens_details\":{\"cached_tokens\":16}}}\n\n";
    let bad = BadUpstream::always(stream(&[first, &chunk("Hello"), &finish("stop"), second, second, DONE])).await;
    let front = front(&[bad.address], ONCE);
    let usage = ask(&front).await.json()["usage"].clone();
    let expected = json!({
        "prompt_tokens": 50, "completion_tokens": 20, "total_tokens": 70, "prompt_tokens_details": { "cached_tokens": 16 }
    });
    for (figure, value) in expected.as_object().unwrap() {
        assert_eq!(&usage[figure], value, "{usage}");
    }
}

#[tokio::test]
async fn usage_said_with_each_choice_s_end_is_summed_and_a_prompt_counted_once() {
    let end = |index: u32, prompt: u32, completion: u32| {
        let choice = json!({ "index": index, "text": "x", "finish_reason": "stop" });
        let usage = json!({ "prompt_tokens": prompt, "completion_tokens": completion });
        format!("data: {}\n\n", json!({ "choices": [choice], "usage": usage }))
    };
    let bad = BadUpstream::always(stream(&["data: null\n\n", &end(2, 3, 4), &end(0, 5, 1), &end(3, 3, 8), &end(1, 5, 2), DONE])).await;
    let front = front(&[bad.address], ONCE);
    let body = json!({ "model": "tiny", "prompt": ["a b", "c"], "n": 2, "max_tokens": 9 });
    let usage = client(&front).post("/v1/completions", &body).await.json()["usage"].clone();
    assert_eq!((&usage["prompt_tokens"], &usage["completion_tokens"]), (&json!(8), &json!(15)));
}

#[tokio::test]
async fn what_the_upstream_refuses_is_said_to_the_client() {
    let detail = json!({ "error": { "message": "top_p must be above 0", "param": "top_p", "type": "BadRequestError", "code": 400 } });
    let long = json!({ "error": { "message": "This model's maximum context length is 64 tokens. However, you requested 80 tokens \
        (30 in the messages, 50 in the completion). Please reduce the length of the messages or completion." } });
    for (deed, status, code, param) in [
        (answer("400 Bad Request", "", &detail.to_string()), 400, "invalid_value", json!("top_p")),
        (answer("422 Unprocessable Entity", "", "{\"detail\":\"no\"}"), 400, "invalid_value", Value::Null),
        (answer("400 Bad Request", "", &long.to_string()), 400, "context_length_exceeded", json!("messages")),
        (answer("400 Bad Request", "", "<html>"), 400, "invalid_value", Value::Null),
        (stream(&[&format!("data: {detail}\n\n")]), 400, "invalid_value", json!("top_p")),
    ] {
        let bad = BadUpstream::always(deed).await;
        let front = front(&[bad.address], "");
        let refused = ask(&front).await;
        let error = refused.json()["error"].clone();
        assert_eq!((refused.status, error["code"].as_str().unwrap(), &error["param"]), (status, code, &param), "{error}");
        assert_eq!(bad.requests().len(), 1, "a request that is wrong is wrong the second time");
        nothing_is_in_flight(&front).await;
    }
}

#[tokio::test]
async fn an_upstream_s_429_is_passed_on_with_its_retry_after() {
    let bad = BadUpstream::always(answer("429 Too Many Requests", "retry-after: 7\r\n", "{\"error\":{\"message\":\"slow down\"}}")).await;
    let front_ = front(&[bad.address], "");
    let refused = ask(&front_).await;
    assert_eq!((refused.status, refused.header("retry-after"), bad.requests().len()), (429, Some("7"), 1));
    assert_eq!(refused.json()["error"]["code"], "overloaded");
    let fine = BadUpstream::always(good()).await;
    let front_ = front(&[bad.address, fine.address], "");
    assert_eq!(ask(&front_).await.status, 200, "another replica has room");
}

#[tokio::test]
async fn an_upstream_that_repeats_the_key_it_was_sent_shows_it_to_no_client() {
    let body =
        json!({ "error": { "message": format!("{} invalid: Bearer {UPSTREAM_KEY}", "x".repeat(980)), "param": UPSTREAM_KEY } }).to_string();
    let refused = format!("HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    let chunk = json!({ "error": { "message": format!("no: {UPSTREAM_KEY}"), "code": 400 } });
    let reported = format!("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\ndata: {chunk}\n\n");
    for said in [refused, reported] {
        let bad = BadUpstream::always(Deed::Say(said.into_bytes())).await;
        let answer = ask(&front(&[bad.address], "")).await;
        let text = String::from_utf8(answer.body.to_vec()).unwrap();
        assert_eq!(answer.status, 400, "{text}");
        assert!(!text.contains(&UPSTREAM_KEY[..6]) && text.contains("***"), "{text}");
    }
}

#[tokio::test]
async fn an_upstream_sees_its_own_key_the_request_s_id_and_nothing_else_of_the_client() {
    let bad = BadUpstream::always(good()).await;
    let front = front(&[bad.address], "model = \"org/its-own-name\"");
    let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let headers = [
        ("content-type", "application/json"),
        ("x-request-id", "mine-7"),
        ("traceparent", parent),
        ("x-secret", "s3cret"),
        ("cookie", "s3cret"),
        ("te", "trailers"),
    ];
    let body = chat(json!({ "stop": ["x"], "seed": -5 }));
    let answer = client(&front).send(http::Method::POST, CHAT, &headers, body.to_string()).await.whole().await;
    assert_eq!((answer.status, answer.json()["model"].as_str()), (200, Some("tiny")));
    let request = &bad.requests()[0];
    let (head, body) = request.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("POST /v1/chat/completions HTTP/1.1\r\n"), "{head}");
    for line in [&format!("authorization: Bearer {UPSTREAM_KEY}"), "x-request-id: mine-7", &format!("traceparent: {parent}")] {
        assert!(head.lines().any(|found| found == line), "{line} isn't in\n{head}");
    }
    assert!(!request.contains(KEY) && !request.contains("s3cret") && !head.contains("\r\nte:"), "{request}");
    let body: Value = serde_json::from_str(body).unwrap();
    assert_eq!(
        (&body["model"], &body["max_tokens"], &body["seed"], &body["stop"]),
        (&json!("org/its-own-name"), &json!(12), &json!(-5), &json!(["x"]))
    );
}

#[tokio::test]
async fn a_connection_is_used_again_and_one_that_was_closed_meanwhile_is_replaced_unnoticed() {
    let events = [chunk("Hel"), chunk("lo"), finish("stop"), usage(5, 2), DONE.to_owned()].concat();
    let chunked = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n{:x}\r\n{events}\r\n0\r\n\r\n",
        events.len()
    );
    let bad = BadUpstream::always(Deed::SayAndWait(chunked.clone().into_bytes())).await;
    let front_ = front(&[bad.address], "retries.attempts = 1\nhealth.interval = \"1h\"");
    for _ in 0..5 {
        assert_eq!(ask(&front_).await.status, 200);
    }
    assert!(bad.connections() <= 2, "one for the health check, one for all calls: {}", bad.connections());
    // This one says that it keeps connections, and closes them.
    let bad = BadUpstream::always(Deed::Say(chunked.into_bytes())).await;
    let front_ = front(&[bad.address], "retries.attempts = 1\nhealth.interval = \"1h\"");
    for _ in 0..20 {
        assert_eq!(ask(&front_).await.status, 200);
    }
}

#[tokio::test]
async fn over_tls_many_calls_share_one_http2_connection_and_a_stranger_s_certificate_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let signed = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let (cert, private) = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
    std::fs::write(&cert, signed.cert.pem()).unwrap();
    std::fs::write(&private, signed.signing_key.serialize_pem()).unwrap();
    let mut config = server::config();
    config.server.tls = Some(Tls { cert: cert.clone(), key: private, client_ca: None, client_auth: ClientAuth::Required });
    let stepping = Stepping::with(config);
    let key = folder.path().join("key");
    std::fs::write(&key, KEY).unwrap();
    let more = format!("model = \"default\"\nretries.attempts = 1\nhealth.interval = \"1h\"\napi_key = {{ file = {key:?} }}");
    let url = [format!("https://localhost:{}/v1", stepping.server.address().port())];
    let front = front_of(&url, &format!("{more}\ntls.ca = {cert:?}"));
    stepping.let_run(1000);
    assert_eq!(ask(&front).await.status, 200); // the others find its connection
    let streams = 8;
    let asked = (0..streams).map(|_| {
        let front = client(&front);
        async move { front.stream(CHAT, &chat(json!({ "stream": true }))).await }
    });
    let open = futures_util::future::join_all(asked).await;
    let back = Client::new(stepping.server.admin_address(), None).get("/metrics").await;
    let back = String::from_utf8_lossy(&back.body).into_owned();
    let line = back.lines().find(|line| line.starts_with("roundhouse_connections{port=\"gateway\"}")).unwrap();
    assert!(line.ends_with("} 2") || line.ends_with("} 1"), "one of the health checks, one for all calls: {line}");
    for stream in open {
        assert!(stream.chunks().await.last().is_some());
    }
    nothing_is_in_flight(&front).await;

    let stranger = front_of(&url, &more);
    let refused = ask(&stranger).await;
    assert_eq!((refused.status, &refused.json()["error"]["code"]), (502, &json!("backend_unavailable")));
}

#[tokio::test]
async fn one_call_more_than_an_upstream_takes_goes_nowhere() {
    let mut bad = BadUpstream::always(Deed::SayAndWait(Vec::new())).await;
    let front = front(&[bad.address], "max_connections = 1");
    let asking = client(&front);
    let first = tokio::spawn(async move { asking.post(CHAT, &chat(json!({}))).await });
    bad.asked.recv().await.unwrap();
    let refused = ask(&front).await;
    assert_eq!((refused.status, &refused.json()["error"]["code"]), (429, &json!("overloaded")));
    first.abort();
    nothing_is_in_flight(&front).await;
}

#[tokio::test]
async fn a_model_without_a_tokenizer_is_bounded_by_bytes_and_settled_by_what_is_reported() {
    let place = tempfile::tempdir().unwrap();
    let bad = BadUpstream::always(good()).await;
    let text = format!(
        "server = {{ listen = \"127.0.0.1:0\", threads = 1 }}\nadmin.listen = \"127.0.0.1:0\"\nstore.ledger = \"off\"\n\
         [upstreams.far]\nurl = \"http://{}/v1\"\n[models.tiny]\nvariants.only.backends = [\"far\"]\n\
         [tenants.acme]\nlimits.tokens_per_minute = 1000\nkeys = [{{ name = \"ci\", hash = \"{}\" }}]\n",
        bad.address,
        blake3::hash(KEY.as_bytes()).to_hex()
    );
    let server = server::with(Config::parse(&text, Path::new(place.path())).unwrap(), Fakes(Fake::new));
    let answer = ask(&server).await;
    assert_eq!((answer.status, &answer.json()["usage"]["prompt_tokens"]), (200, &json!(5)));
    let again = ask(&server).await;
    let left: u64 = again.header("x-ratelimit-remaining-tokens").unwrap().parse().unwrap();
    assert!((700..1000 - 7).contains(&left), "7 tokens were used, and a bound is reserved: {left}");
    let long = json!({ "model": "tiny", "prompt": "x".repeat(2000), "max_tokens": 1 });
    let refused = client(&server).post("/v1/completions", &long).await;
    assert_eq!(refused.json()["error"]["code"], "request_too_large_for_limit", "2000 bytes could be 2000 tokens");
    let ids = json!({ "model": "tiny", "prompt": [1, 2, 3], "max_tokens": 1 });
    assert_eq!(client(&server).post("/v1/completions", &ids).await.status, 200);
    assert!(bad.requests().last().unwrap().contains("\"prompt\":[1,2,3]"));
    let wants_ids = client(&server).post(CHAT, &chat(json!({ "return_token_ids": true }))).await;
    assert_eq!((wants_ids.status, &wants_ids.json()["error"]["param"]), (400, &json!("return_token_ids")));
}
