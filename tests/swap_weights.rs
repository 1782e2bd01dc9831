//! Shards of real weights are swapped: under load, and where memory is short.

mod support;

use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use support::client::{Client, Streaming};
use support::server::KEY;
use support::tenants::Place;

const STREAMS: usize = 32;

/// The file in round `round`: other weights, another rule, another tenant each time.
fn write(place: &mut Place, round: u64) {
    place.change(&format!(
        "[[models.tiny.rules]]\nname = \"rule-{round}\"\nto = {{ only = 1 }}\n\
         [tenants.acme]\nweight = {}\nkeys = [{{ name = \"ci\", hash = \"KEY_HASH\" }}]\n[tenants.guest{round}]\n",
        round + 1
    ));
    // Four such shards fit the device, so one that isn't freed is found out.
    let quantize = if round.is_multiple_of(2) { "keep" } else { "q8_0" };
    let text = place.text().replace("memory = \"16MiB\" }", &format!("memory = \"60MiB\" }}\nquantize = \"{quantize}\""));
    std::fs::write(place.file(), text).expect("a temporary file can be written");
}

/// What one stream is served by: the configuration's version, and the fingerprint, which is the same in all its chunks.
async fn served(stream: Streaming) -> (u64, String) {
    assert_eq!(stream.status, 200);
    let versions: Vec<_> = stream.headers.get_all("x-roundhouse-config").iter().cloned().collect();
    assert_eq!(versions.len(), 1);
    let version = versions[0].to_str().expect("a number").parse().expect("a number");
    let chunks = stream.chunks().await;
    assert!(chunks.last().is_some_and(|chunk| !chunk["choices"][0]["finish_reason"].is_null()), "{chunks:?}");
    let fingerprint = &chunks[0]["system_fingerprint"];
    assert!(chunks.iter().all(|chunk| chunk["system_fingerprint"] == *fingerprint), "{chunks:?}");
    (version, fingerprint.as_str().expect("it is text").to_owned())
}

#[tokio::test]
async fn thirty_two_streams_lose_nothing_while_weights_rules_and_tenants_change() {
    let (rounds, every) = if support::long() { (60, Duration::from_secs(1)) } else { (6, Duration::ZERO) };
    let mut place = Place::new("");
    write(&mut place, 0);
    let server = place.start_with_file();
    let (stop, answers) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let streams: Vec<_> = (0..STREAMS)
        .map(|index| {
            let (client, stop, answers) = (Client::new(server.address(), Some(KEY)), stop.clone(), answers.clone());
            let messages: Value = json!([{ "role": "user", "content": format!("the hand {index}") }]);
            let body = json!({ "model": "tiny", "messages": messages, "max_tokens": 5, "stream": true });
            tokio::spawn(async move {
                let mut seen = Vec::new();
                while !stop.load(Relaxed) {
                    seen.push(served(client.stream("/v1/chat/completions", &body).await).await);
                    answers.fetch_add(1, Relaxed);
                }
                seen
            })
        })
        .collect();
    let admin = Client::new(server.admin_address(), None);
    for round in 1..=rounds {
        let before = answers.load(Relaxed);
        write(&mut place, round);
        let answer = admin.post("/admin/v1/reload", &json!({})).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        // The watch may have been faster; then there is nothing left to change.
        assert_eq!(answer.json()["version"], round + 1);
        tokio::time::sleep(every).await;
        // Most of what was asked before has its answer, so the engine before the last one is gone.
        while answers.load(Relaxed) < before + 40 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    stop.store(true, Relaxed);
    let mut fingerprints = BTreeMap::new();
    for stream in streams {
        for (version, fingerprint) in stream.await.expect("no stream fails") {
            let known = fingerprints.entry(version).or_insert_with(|| fingerprint.clone());
            assert_eq!(*known, fingerprint, "version {version} has one fingerprint");
        }
    }
    assert!(fingerprints.len() > 2 && fingerprints.keys().all(|version| (1..=rounds + 1).contains(version)), "{fingerprints:?}");
    assert!(fingerprints.iter().all(|(version, fingerprint)| (version % 2 == 1) == (*fingerprint == fingerprints[&1])));
    eprintln!("{} answers under {rounds} swaps by {} versions", answers.load(Relaxed), fingerprints.len());
}

#[tokio::test]
async fn a_shard_without_room_beside_the_old_one_is_refused_by_name_and_fits_when_that_makes_room() {
    let place = Place::new("[tenants.acme]\nkeys = [{ name = \"ci\", hash = \"KEY_HASH\" }]\n");
    let text = place.text().replace("memory = \"16MiB\" }", "memory = \"150MiB\" }");
    std::fs::write(place.file(), &text).expect("it can be written");
    let server = place.start_with_file();
    let (client, admin) = (Client::new(server.address(), Some(KEY)), Client::new(server.admin_address(), None));
    let body = json!({ "model": "tiny", "messages": [{ "role": "user", "content": "the hand" }], "max_tokens": 2 });
    let q8 = text.replace("[shards.tiny]", "[shards.tiny]\nquantize = \"q8_0\"");
    let hash = "0".repeat(64);
    for (file, expected) in [
        (q8.clone(), ["shards.tiny", "are free; with `swap = \"drain-first\"` in shards.tiny"]),
        (text.replace("file:tiny.gguf", "file:missing.gguf"), ["shards.tiny.weights", "missing.gguf"]),
        (text.replace("[shards.tiny]", &format!("[shards.tiny]\nsha256 = \"{hash}\"")), ["shards.tiny.weights", &hash]),
    ] {
        std::fs::write(place.file(), file).expect("it can be written");
        let refused = admin.post("/admin/v1/reload", &json!({})).await;
        let message = refused.json()["error"]["message"].as_str().unwrap_or_default().to_owned();
        assert!(refused.status == 400 && expected.iter().all(|part| message.contains(part)), "{message}");
        assert_eq!(client.post("/v1/chat/completions", &body).await.header("x-roundhouse-config"), Some("1"));
    }
    std::fs::write(place.file(), q8.replace("[shards.tiny]", "[shards.tiny]\nswap = \"drain-first\"")).expect("it can be written");
    let swapped = admin.post("/admin/v1/reload", &json!({})).await;
    assert_eq!((swapped.status, &swapped.json()["version"]), (200, &json!(2)), "{swapped:?}");
    assert_eq!(client.post("/v1/chat/completions", &body).await.header("x-roundhouse-config"), Some("2"));
}
