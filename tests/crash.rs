//! `kill -9` loses no bill: what was answered is in the ledger, and what was cut is settled at its last progress.

mod support;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use support::client::Client;
use support::process::Process;
use support::server::KEY;
use support::tenants::{Place, query, rows, usage};
use tokio::net::TcpStream;
use tokio::sync::Notify;

/// Each kill takes about two seconds, so a usual run does few.
fn kills() -> u64 {
    if support::long() { 30 } else { 4 }
}

const CLIENTS: usize = 8;
/// How far the journal may be behind what clients saw.
const BEHIND: Duration = Duration::from_millis(250);

const TENANT: &str =
    "[tenants.acme]\nquota = [{ tokens = 100_000_000, per = \"month\" }]\nkeys = [{ name = \"ci\", hash = \"KEY_HASH\" }]\n";

/// What a client saw of one answer.
#[derive(Debug)]
struct Seen {
    id: String,
    /// When each piece came, and how many token ids it had.
    pieces: Vec<(Instant, i64)>,
    done: bool,
}

#[tokio::test]
async fn a_killed_server_has_billed_what_it_answered_and_settles_what_was_cut() {
    let mut place = Place::new(TENANT);
    let mut seen: Vec<(Seen, Instant)> = Vec::new();
    for kill in 0..kills() {
        let mut process = Process::start(&place);
        let whole = Arc::new(Notify::new());
        let clients: Vec<_> =
            (0..CLIENTS).map(|client| tokio::spawn(stream_until_cut(process.address, format!("{kill}-{client}"), whole.clone()))).collect();
        whole.notified().await;
        // A moment nobody chose: the clock's own noise decides.
        let moment = u64::from(Instant::now().elapsed().subsec_nanos()) * 37 % 700 + kill * 211 % 500;
        tokio::time::sleep(Duration::from_millis(moment)).await;
        let killed = Instant::now();
        process.kill();
        for client in clients {
            seen.extend(client.await.expect("a client ends").into_iter().map(|answer| (answer, killed)));
        }
    }
    drop(Process::start(&place)); // it settles before it says where it serves
    assert_eq!(query(&place.ledger(), "SELECT COUNT(*) FROM in_flight"), 0, "no reservation is left");
    let billed: HashMap<String, (String, i64)> = rows(&place.ledger());
    assert!(seen.iter().filter(|(answer, _)| answer.done).count() as u64 >= kills(), "some answers were complete");
    for (answer, killed) in &seen {
        let (all, earlier) = answer.tokens(*killed);
        match billed.get(&answer.id) {
            Some((outcome, output)) if answer.done => assert_eq!((outcome.as_str(), *output), ("done", all), "{answer:?}"),
            None if answer.done => panic!("answered and not billed: {answer:?}"),
            Some((_, output)) => assert!(*output >= earlier, "{output} billed, {earlier} sent long before: {answer:?}"),
            None => assert_eq!(earlier, 0, "sent long before and not billed: {answer:?}"),
        }
    }
    quota_is_what_the_ledger_says(&mut place).await;
}

/// With a quota five tokens above what the ledger has, the next answer has at most five tokens.
async fn quota_is_what_the_ledger_says(place: &mut Place) {
    let prompt = 1;
    let quota = query(&place.ledger(), "SELECT SUM(prompt + output) FROM requests") + prompt + 5;
    place.change(&TENANT.replace("100_000_000", &quota.to_string()));
    let process = Process::start(place);
    let client = Client::new(process.address, Some(KEY));
    let answer = client.post("/v1/completions", &json!({ "model": "tiny", "prompt": "a", "max_tokens": 40 })).await.json();
    let (used, output) = usage(&answer);
    assert_eq!(used, prompt, "{answer}");
    assert!(output == 5 || (output < 5 && answer["choices"][0]["finish_reason"] == "stop"), "{answer}");
}

/// Streams one answer after the other until the connection breaks; tells of each that is `whole`.
async fn stream_until_cut(address: SocketAddr, name: String, whole: Arc<Notify>) -> Vec<Seen> {
    let mut all = Vec::new();
    for number in 0.. {
        let mut seen = Seen { id: format!("{name}-{number}"), pieces: Vec::new(), done: false };
        let finished = stream(address, &mut seen, number).await.is_some();
        all.push(seen);
        if !finished {
            break;
        }
        whole.notify_one();
    }
    all
}

/// `None` where the connection breaks.
async fn stream(address: SocketAddr, seen: &mut Seen, number: u64) -> Option<()> {
    let io = TokioIo::new(TcpStream::connect(address).await.ok()?);
    let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await.ok()?;
    tokio::spawn(connection);
    let body = json!({ "model": "tiny", "prompt": format!("{} {number}", seen.id), "max_tokens": 20 + number % 3 * 80, "stream": true, "return_token_ids": true });
    let request = Request::post("/v1/completions").header("host", "test").header("authorization", format!("Bearer {KEY}"));
    let request = request.header("content-type", "application/json").header("x-request-id", &seen.id);
    let mut body = sender.send_request(request.body(Full::new(Bytes::from(body.to_string()))).ok()?).await.ok()?.into_body();
    let mut buffer = String::new();
    while let Some(frame) = body.frame().await {
        buffer.push_str(std::str::from_utf8(frame.ok()?.data_ref()?).ok()?);
        while let Some((event, rest)) = buffer.split_once("\n\n") {
            let data = event.strip_prefix("data: ").unwrap_or("{}").to_owned();
            buffer = rest.to_owned();
            if data == "[DONE]" {
                seen.done = true;
                return Some(());
            }
            let chunk: Value = serde_json::from_str(&data).expect("chunks are JSON");
            let ids = chunk["choices"][0]["token_ids"].as_array().map_or(0, Vec::len) as i64;
            seen.pieces.push((Instant::now(), ids));
        }
    }
    None
}

// === impl Seen ===

impl Seen {
    /// Token ids that came, and those of them that came well before `killed`.
    fn tokens(&self, killed: Instant) -> (i64, i64) {
        let sum = |pieces: &mut dyn Iterator<Item = &(Instant, i64)>| pieces.map(|(_, ids)| ids).sum();
        let before = killed.checked_sub(BEHIND).unwrap_or(killed);
        (sum(&mut self.pieces.iter()), sum(&mut self.pieces.iter().filter(|(at, _)| *at < before)))
    }
}
