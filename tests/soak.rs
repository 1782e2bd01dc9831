//! Two hundred clients at once, half of which hang up at random: the others notice nothing, and nothing is left behind.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use roundhouse::engine::fake::Fake;
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use support::client::Client;
use support::fake::Fakes;
use support::server::{self, KEY, Server};

const CLIENTS: u64 = 200;
const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

/// Numbers that look random and are the same every time.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % below
    }
}

/// What was seen by all.
#[derive(Default)]
struct Seen {
    whole: AtomicU64,
    cut: AtomicU64,
}

/// A request of either endpoint, with a prompt of its own or one that others have, too.
fn request(dice: &mut Dice) -> (&'static str, Value) {
    let text = "the same beginning ".repeat(1 + dice.roll(6) as usize) + &dice.roll(3).to_string();
    let (max_tokens, n, stream) = (1 + dice.roll(60), 1 + dice.roll(2), dice.roll(2) == 0);
    if dice.roll(2) == 0 {
        let messages = json!([{ "role": "user", "content": text }]);
        (CHAT, json!({ "model": "default", "messages": messages, "max_tokens": max_tokens, "n": n, "stream": stream }))
    } else {
        (
            COMPLETIONS,
            json!({ "model": "default", "prompt": [text, "b"], "max_tokens": max_tokens, "n": n, "stream": stream, "stop": ["zz"] }),
        )
    }
}

/// One client's requests, each answered in full.
async fn patient(client: Client, mut dice: Dice, requests: u64, seen: Arc<Seen>) {
    for _ in 0..requests {
        let (path, body) = request(&mut dice);
        let choices = body["n"].as_u64().unwrap() * if path == CHAT { 1 } else { 2 };
        let answer = client.stream(path, &body).await;
        assert_eq!(answer.status, 200, "{body}");
        let ends = if body["stream"] == true {
            let chunks = answer.chunks().await; // which checks that [DONE] comes last
            assert!(chunks.iter().all(|chunk| chunk.get("error").is_none()), "{chunks:?}");
            chunks.iter().filter(|chunk| chunk["choices"][0]["finish_reason"].is_string()).count()
        } else {
            answer.whole().await.json()["choices"].as_array().unwrap().len()
        };
        assert_eq!(ends as u64, choices, "{body}");
        seen.whole.fetch_add(1, Relaxed);
    }
}

/// One that hangs up somewhere: before the answer's head, in the middle of a stream, or after it.
async fn fickle(client: Client, mut dice: Dice, requests: u64, seen: Arc<Seen>) {
    for _ in 0..requests {
        let (path, body) = request(&mut dice);
        let (events, micros) = (dice.roll(12), dice.roll(30_000));
        let asking = async {
            let mut answer = client.stream(path, &body).await;
            for _ in 0..events {
                if body["stream"] != true || answer.next().await.is_none() {
                    break;
                }
            }
        };
        // However far it has come by then.
        let _ = tokio::time::timeout(Duration::from_micros(micros), asking).await;
        seen.cut.fetch_add(1, Relaxed);
    }
}

/// Waits until all requests have ended; then nothing may be held.
async fn nothing_is_left(server: &Server, requests: u64) {
    let admin = Client::new(server.admin_address(), None);
    loop {
        let status = admin.get("/admin/v1/status").await.json();
        let shard = server.shards().next().unwrap();
        if status["tenants"]["acme"] == json!({ "requests": 0, "tokens": 0 }) && shard.sequences() == (0, 0) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    for shard in server.shards() {
        let (unused, all) = shard.blocks();
        assert_eq!(unused, all, "blocks are as free as at the start");
    }
    let metrics = String::from_utf8(admin.get("/metrics").await.body.to_vec()).unwrap();
    let counted = metrics.lines().filter(|line| line.starts_with("roundhouse_requests_total{"));
    let (mut answered, mut all) = (0, 0);
    for line in counted {
        let count: u64 = line.rsplit(' ').next().unwrap().parse().unwrap();
        assert!(line.contains("status=\"200\"") || line.contains("status=\"499\""), "{line}");
        all += count;
        answered += if line.contains("status=\"200\"") { count } else { 0 };
    }
    assert!(answered >= requests / 2 && all <= requests, "{answered} answered of {all} that came of {requests}");
}

#[tokio::test]
async fn two_hundred_clients_half_of_which_hang_up_leave_nothing_behind() {
    let mut config = server::config();
    config.server.threads = 2;
    // Slow enough that many are cut in the middle.
    let make = |limits| Fake::new(limits).observed(|_| std::thread::sleep(Duration::from_micros(200)));
    let server = server::with(config, Fakes(make));
    let each = if support::long() { 60 } else { 4 };
    let seen = Arc::new(Seen::default());
    let clients: Vec<_> = (0..CLIENTS)
        .map(|number| {
            let client = Client::new(server.address(), Some(KEY));
            let (dice, seen) = (Dice(0x9e37_79b9_7f4a_7c15 ^ (number + 1)), seen.clone());
            if number % 2 == 0 { tokio::spawn(patient(client, dice, each, seen)) } else { tokio::spawn(fickle(client, dice, each, seen)) }
        })
        .collect();
    for client in clients {
        client.await.unwrap();
    }
    assert_eq!((seen.whole.load(Relaxed), seen.cut.load(Relaxed)), (CLIENTS / 2 * each, CLIENTS / 2 * each));
    nothing_is_left(&server, CLIENTS * each).await;
}
