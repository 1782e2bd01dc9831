//! What a client may not do to the public port: be slow, be many, be large, or never read.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use roundhouse::call::Outcome;
use serde_json::{Value, json};
use std::net::SocketAddr;
use support::client::Client;
use support::edge::{Answer, Edge, KEY, Scripted, connect, driven, finish, get, hello, post, text};
use support::fake::Stepping;
use support::server::{self, Server};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

const CHAT: &str = "/v1/chat/completions";

fn chat(stream: bool) -> Value {
    json!({"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "stream": stream})
}

/// What comes back for these bytes, to the end of the connection.
async fn raw(address: SocketAddr, sent: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(sent).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    String::from_utf8(answer).unwrap()
}

/// Status and code of an answer in the error shape, read from the bytes of a connection.
fn refusal(answer: &str) -> (u16, String) {
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {answer:?}"));
    let body: Value = serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {answer}"));
    assert!(head.contains("\r\nx-request-id: req_") && head.contains("\r\ncontent-type: application/json"), "{head}");
    assert_eq!(body["error"]["type"], "invalid_request_error");
    (head["HTTP/1.1 ".len()..][..3].parse().unwrap(), body["error"]["code"].as_str().unwrap().to_owned())
}

/// A connection whose window is small, so that what isn't read is soon noticed.
async fn narrow(address: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    socket.connect(address).await.unwrap()
}

/// Waits until the metrics have this line.
async fn metric(edge: &Edge, line: &str) {
    while !edge.metrics.render().lines().any(|found| found == line) {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn too_many_headers_are_refused_in_the_error_shape() {
    let edge = Edge::start(&[Scripted::says(hello())]);
    let mut request = String::from("GET /v1/models HTTP/1.1\r\nhost: test\r\n");
    (0..200).for_each(|index| request.push_str(&format!("x-{index}: 1\r\n")));
    assert_eq!(refusal(&raw(edge.address, format!("{request}\r\n").as_bytes()).await), (431, "headers_too_large".to_owned()));
}

#[tokio::test]
async fn a_head_without_end_is_refused_in_the_error_shape_though_its_client_still_writes() {
    let edge = Edge::with("max_head = \"8KiB\"", &[Scripted::says(hello())]);
    for length in [9_000, 60_000, 500_000] {
        let request = format!("GET /v1/models HTTP/1.1\r\nhost: test\r\nx-long: {}\r\nconnection: close\r\n\r\n", "x".repeat(length));
        let answer = raw(edge.address, request.as_bytes()).await;
        assert_eq!(refusal(&answer), (431, "headers_too_large".to_owned()), "{length}");
        assert!(answer.contains("larger than 8192 bytes"), "{answer}");
    }
}

#[tokio::test]
async fn what_is_no_http_is_refused_in_the_error_shape() {
    let edge = Edge::start(&[Scripted::says(hello())]);
    for sent in ["nonsense\r\n\r\n", "GET / HTTP/7.1\r\n\r\n", "GET / HTTP/1.1\r\nno colon\r\n\r\n"] {
        assert_eq!(refusal(&raw(edge.address, sent.as_bytes()).await), (400, "invalid_value".to_owned()), "{sent}");
    }
}

#[tokio::test]
async fn many_headers_over_http2_are_refused() {
    let edge = Edge::with("max_head = \"8KiB\"", &[Scripted::says(hello())]);
    let (mut sender, connection) = http2(edge.address).await;
    tokio::spawn(connection);
    let mut request = Request::get(format!("http://{}/v1/models", edge.address)).header("x-api-key", KEY);
    for index in 0..100 {
        request = request.header(format!("x-{index}"), "x".repeat(100));
    }
    let answer = Answer::read(sender.send_request(request.body(Full::default()).unwrap()).await.unwrap()).await;
    assert_eq!(answer.error(), (431, "invalid_request_error".into(), "headers_too_large".into(), None));
}

#[tokio::test]
async fn a_client_that_sends_its_head_too_slowly_is_cut() {
    let edge = Edge::with("head_timeout = \"100ms\"", &[Scripted::says(hello())]);
    for begun in ["", "POST /v1/completions HTTP/1.1\r\nhost: te"] {
        assert_eq!(raw(edge.address, begun.as_bytes()).await, "");
    }
    // A later head too, whose connection may be idle for longer.
    let mut stream = TcpStream::connect(edge.address).await.unwrap();
    stream.write_all(b"GET /health HTTP/1.1\r\nhost: test\r\n\r\n").await.unwrap();
    let mut answer = [0; 4096];
    assert!(stream.read(&mut answer).await.unwrap() > 0);
    stream.write_all(b"GET /hea").await.unwrap();
    while stream.read(&mut answer).await.is_ok_and(|read| read > 0) {}
    metric(&edge, "roundhouse_connections_cut_total{port=\"gateway\",reason=\"head_timeout\"} 3").await;
}

#[tokio::test]
async fn an_idle_connection_is_closed_after_keep_alive_and_not_before_its_answer() {
    let mut driven = driven(true);
    let edge = Edge::with("keep_alive = \"100ms\"", &[driven.backend.clone()]);
    let mut client = edge.connect().await;
    let answer = client.sender.send_request(post(CHAT, KEY, chat(true)));
    let answer = tokio::spawn(answer);
    let events = driven.begun.recv().await.unwrap();
    // Another connection is idle meanwhile, and cut: so long has this one been at work.
    let mut idle = TcpStream::connect(edge.address).await.unwrap();
    idle.write_all(b"GET /health HTTP/1.1\r\nhost: test\r\n\r\n").await.unwrap();
    let mut read = Vec::new();
    drop(idle.read_to_end(&mut read).await);
    assert!(read.starts_with(b"HTTP/1.1 200 OK"));
    events.send(Ok(text(0, "late"))).unwrap();
    events.send(Ok(finish(0))).unwrap();
    drop(events);
    assert_eq!(Answer::read(answer.await.unwrap().unwrap()).await.status, 200);
    while !client.sender.is_closed() {
        tokio::task::yield_now().await; // it is closed in its turn
    }
    metric(&edge, "roundhouse_connections_cut_total{port=\"gateway\",reason=\"keep_alive\"} 2").await;
}

#[tokio::test]
async fn a_client_that_sends_its_body_too_slowly_is_told_so() {
    let edge = Edge::with("body_timeout = \"100ms\"", &[Scripted::says(hello())]);
    let head = format!("POST {CHAT} HTTP/1.1\r\nhost: test\r\nx-api-key: {KEY}\r\ncontent-type: application/json\r\n");
    let answer = raw(edge.address, format!("{head}content-length: 100\r\n\r\n{{\"model\":").as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 408 Request Timeout\r\n") && answer.contains("\r\nconnection: close\r\n"), "{answer}");
    let (_, body) = answer.split_once("\r\n\r\n").unwrap();
    let body: Value = serde_json::from_str(body).unwrap();
    assert_eq!((&body["error"]["type"], &body["error"]["code"]), (&json!("invalid_request_error"), &json!("request_timeout")));
}

#[tokio::test]
async fn a_connection_too_many_is_closed_and_one_that_ends_makes_room() {
    let edge = Edge::with("max_connections = 3", &[Scripted::says(hello())]);
    let mut open = Vec::new();
    for _ in 0..3 {
        let mut client = edge.connect().await;
        assert_eq!(Answer::read(client.sender.send_request(get("/health", KEY)).await.unwrap()).await.status, 200);
        open.push(client);
    }
    let mut refused = TcpStream::connect(edge.address).await.unwrap();
    assert!(!refused.read(&mut [0; 1]).await.is_ok_and(|read| read > 0), "it is closed");
    metric(&edge, "roundhouse_connections_refused_total{port=\"gateway\"} 1").await;
    metric(&edge, "roundhouse_connections{port=\"gateway\"} 3").await;
    open.pop();
    metric(&edge, "roundhouse_connections{port=\"gateway\"} 2").await;
    assert_eq!(edge.send(get("/health", KEY)).await.status, 200);
}

#[tokio::test]
async fn five_hundred_idle_connections_are_kept_and_still_served() {
    let edge = Edge::start(&[Scripted::says(hello())]);
    let mut clients = Vec::new();
    for _ in 0..500 {
        let mut client = connect(edge.address).await;
        assert_eq!(Answer::read(client.sender.send_request(get("/health", KEY)).await.unwrap()).await.status, 200);
        clients.push(client);
    }
    metric(&edge, "roundhouse_connections{port=\"gateway\"} 500").await;
    for client in &mut clients {
        client.sender.ready().await.unwrap();
        assert_eq!(Answer::read(client.sender.send_request(post(CHAT, KEY, chat(false))).await.unwrap()).await.status, 200);
    }
    drop(clients);
    metric(&edge, "roundhouse_connections{port=\"gateway\"} 0").await;
}

/// Events of a megabyte, which no client takes without reading.
fn fill(events: &tokio::sync::mpsc::UnboundedSender<Result<roundhouse::call::Event, roundhouse::call::Error>>) {
    (0..1024).for_each(|_| events.send(Ok(text(0, &"x".repeat(1024)))).unwrap());
}

#[tokio::test]
async fn a_client_that_stops_reading_is_cut_and_its_reply_dropped() {
    let mut driven = driven(true);
    let edge = Edge::with("write_timeout = \"100ms\"", &[driven.backend.clone()]);
    let mut stream = narrow(edge.address).await;
    let body = chat(true).to_string();
    let head = format!("POST {CHAT} HTTP/1.1\r\nhost: test\r\nx-api-key: {KEY}\r\ncontent-type: application/json\r\n");
    stream.write_all(format!("{head}content-length: {}\r\n\r\n{body}", body.len()).as_bytes()).await.unwrap();
    let events = driven.begun.recv().await.unwrap();
    fill(&events);
    assert_eq!(driven.ended.recv().await, Some(Outcome::ClientGone));
    metric(&edge, "roundhouse_connections_cut_total{port=\"gateway\",reason=\"write_timeout\"} 1").await;
    metric(&edge, "roundhouse_connections{port=\"gateway\"} 0").await;
}

type Http2<T> = hyper::client::conn::http2::Connection<TokioIo<T>, Full<Bytes>, TokioExecutor>;

async fn http2(address: SocketAddr) -> (hyper::client::conn::http2::SendRequest<Full<Bytes>>, Http2<TcpStream>) {
    let io = TokioIo::new(TcpStream::connect(address).await.unwrap());
    // The window of a stream is smaller than that of its connection, so one of them fills up alone.
    let mut client = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
    client.initial_stream_window_size(65_535).initial_connection_window_size(1 << 20);
    client.handshake(io).await.unwrap()
}

#[tokio::test]
async fn an_http2_stream_that_is_not_read_is_reset_and_the_others_of_its_connection_go_on() {
    let mut driven = driven(true);
    let edge = Edge::with("write_timeout = \"100ms\"", &[driven.backend.clone()]);
    let (mut sender, connection) = http2(edge.address).await;
    tokio::spawn(connection);
    let request = || {
        let mut request = post(CHAT, KEY, chat(true));
        *request.uri_mut() = format!("http://{}{CHAT}", edge.address).parse().unwrap();
        request
    };
    let unread = tokio::spawn(sender.send_request(request()));
    let first = driven.begun.recv().await.unwrap();
    let other = tokio::spawn(sender.send_request(request()));
    let second = driven.begun.recv().await.unwrap();
    first.send(Ok(text(0, "it begins"))).unwrap();
    let mut unread = unread.await.unwrap().unwrap();
    fill(&first);
    assert_eq!(driven.ended.recv().await, Some(Outcome::ClientGone));
    second.send(Ok(text(0, "still here"))).unwrap();
    second.send(Ok(finish(0))).unwrap();
    drop(second);
    let answer = Answer::read(other.await.unwrap().unwrap()).await;
    assert!(answer.events().1, "{answer:?}");
    let rest = unread.body_mut().collect().await;
    assert!(rest.is_err(), "half an answer must not look like a whole one");
    metric(&edge, "roundhouse_connections{port=\"gateway\"} 1").await;
}

async fn shard_is_idle_with_all_blocks_free(server: &Server) {
    let shard = server.shards().next().expect("there is a shard");
    while shard.sequences() != (0, 0) {
        tokio::task::yield_now().await;
    }
    let (unused, all) = shard.blocks();
    assert_eq!(unused, all, "all blocks have come back");
}

#[tokio::test]
async fn the_kv_blocks_of_a_client_that_stops_reading_are_freed() {
    let mut config = server::config();
    config.server.write_timeout = std::time::Duration::from_millis(100);
    let stepping = Stepping::with(config);
    let mut stream = narrow(stepping.server.address()).await;
    let message = json!({"role": "user", "content": "hello"});
    let body = json!({"model": "default", "messages": [message], "max_tokens": 500, "n": 4, "stream": true}).to_string();
    let key = server::KEY;
    let head = format!("POST {CHAT} HTTP/1.1\r\nhost: test\r\nx-api-key: {key}\r\ncontent-type: application/json\r\n");
    stream.write_all(format!("{head}content-length: {}\r\n\r\n{body}", body.len()).as_bytes()).await.unwrap();
    // Four choices a step, more than two hundred bytes each: more than the sockets and the gateway hold together.
    stepping.let_run(190);
    let admin = Client::new(stepping.server.admin_address(), None);
    while !String::from_utf8_lossy(&admin.get("/metrics").await.body).contains("reason=\"write_timeout\"} 1") {
        tokio::task::yield_now().await;
    }
    // The last step waits on the device; it is the one that the cut may still cost.
    let (server, plans) = stepping.open();
    shard_is_idle_with_all_blocks_free(&server).await;
    let planned = plans.lock().unwrap().len();
    assert!(planned <= 191, "{planned} steps of 500");
    drop(stream);
}
