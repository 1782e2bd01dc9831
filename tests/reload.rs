//! Configurations change under load, and nobody who is being served notices.

mod support;

use roundhouse::config::Config;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use support::client::{Answer, Client};
use support::fake::Stepping;
use support::process::{Process, rest};
use support::server::{KEY, Server};
use support::tenants::Place;

const STREAMS: usize = 16;
/// Between two reloads under load.
const EVERY: Duration = Duration::from_millis(200);

fn tenant(rest: &str) -> String {
    format!("[tenants.acme]\nkeys = [{{ name = \"ci\", hash = \"KEY_HASH\" }}]\n{rest}\n")
}

fn chat(max_tokens: u32, stream: bool) -> Value {
    json!({ "model": "tiny", "messages": [{ "role": "user", "content": "the hand" }], "max_tokens": max_tokens, "stream": stream })
}

async fn version(client: &Client) -> Option<u64> {
    let answer = client.post("/v1/chat/completions", &chat(1, false)).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.header("x-roundhouse-config").and_then(|version| version.parse().ok())
}

/// Waits until new requests are served by this version.
async fn serves_by(client: &Client, wanted: u64) {
    while version(client).await != Some(wanted) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn reload(server: &Server) -> Answer {
    Client::new(server.admin_address(), None).post("/admin/v1/reload", &json!({})).await
}

/// Replaces a file as editors do: a new one is renamed over it.
fn replace(file: &Path, text: &str) {
    let new = file.with_extension("new");
    std::fs::write(&new, text).expect("a temporary file can be written");
    std::fs::rename(new, file).expect("it can be renamed");
}

#[tokio::test]
async fn under_sixteen_streams_no_reload_fails_a_request_and_every_answer_names_one_version() {
    let reloads = if support::long() { 100 } else { 15 };
    let mut place = Place::new(&tenant(""));
    let server = place.watched(place.file());
    let (stop, answers) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let streams: Vec<_> = (0..STREAMS)
        .map(|_| {
            let (client, stop, answers) = (Client::new(server.address(), Some(KEY)), stop.clone(), answers.clone());
            tokio::spawn(async move {
                let mut versions = BTreeSet::new();
                while !stop.load(Relaxed) {
                    let stream = client.stream("/v1/chat/completions", &chat(20, true)).await;
                    assert_eq!(stream.status, 200);
                    let named: Vec<_> = stream.headers.get_all("x-roundhouse-config").iter().cloned().collect();
                    assert_eq!(named.len(), 1);
                    versions.insert(named[0].to_str().expect("a number").parse::<u64>().expect("a number"));
                    let chunks = stream.chunks().await;
                    assert!(chunks.last().is_some_and(|chunk| !chunk["choices"][0]["finish_reason"].is_null()), "{chunks:?}");
                    answers.fetch_add(1, Relaxed);
                }
                versions
            })
        })
        .collect();
    for round in 0..reloads {
        place.change(&tenant(&format!("weight = {}", round + 2)));
        let answer = reload(&server).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        // The watch may have been faster; then there is nothing left to change.
        assert_eq!(answer.json()["version"], round + 2);
        let before = answers.load(Relaxed);
        tokio::time::sleep(EVERY).await;
        while answers.load(Relaxed) == before {
            tokio::time::sleep(Duration::from_millis(5)).await; // a slow machine gets to answer between two reloads
        }
    }
    stop.store(true, Relaxed);
    let mut seen = BTreeSet::new();
    for stream in streams {
        seen.append(&mut stream.await.expect("no stream fails"));
    }
    assert!(seen.len() > 1 && seen.iter().all(|version| (1..=reloads + 1).contains(version)), "{seen:?}");
    eprintln!("{} answers under {reloads} reloads by {} versions", answers.load(Relaxed), seen.len());
}

#[tokio::test]
async fn a_stream_in_flight_keeps_its_configuration_and_the_next_request_has_the_new_one() {
    let stepping = Stepping::start();
    let client = Client::new(stepping.server.address(), Some(KEY));
    stepping.let_run(1);
    let mut body = json!({ "model": "default", "messages": [{ "role": "user", "content": "hello" }], "max_tokens": 3, "stream": true });
    let old = client.stream("/v1/chat/completions", &body).await;
    assert_eq!(old.headers["x-roundhouse-config"], "1");
    let mut config = support::server::config();
    config.server.show_backend = false;
    let reloaded = stepping.server.reload(config.clone()).expect("it may change");
    assert_eq!((reloaded.version, reloaded.changed), (2, true));
    let again = stepping.server.reload(config).expect("it is the same");
    assert_eq!((again.version, again.changed), (2, false));
    stepping.let_run(10);
    old.chunks().await;
    body["stream"] = false.into();
    let new = client.post("/v1/chat/completions", &body).await;
    assert_eq!((new.header("x-roundhouse-config"), new.header("x-roundhouse-backend")), (Some("2"), None));
}

#[tokio::test]
async fn levels_of_limits_survive_a_reload_and_a_removed_key_is_unknown_to_the_next_request() {
    let limit = |requests: u32| tenant(&format!("limits = {{ requests_per_minute = {requests} }}"));
    let mut place = Place::new(&limit(2));
    let server = place.start_with_file();
    let client = Client::new(server.address(), Some(KEY));
    for expected in [200, 200, 429] {
        assert_eq!(client.post("/v1/chat/completions", &chat(1, false)).await.status, expected);
    }
    place.change(&(limit(2) + "weight = 3\n"));
    assert_eq!(reload(&server).await.json(), json!({ "version": 2, "changed": true }));
    let refused = client.post("/v1/chat/completions", &chat(1, false)).await;
    assert_eq!((refused.status, refused.header("x-roundhouse-config")), (429, Some("2")), "half used stays half used");
    place.change(&limit(600));
    reload(&server).await;
    // All used stays all used, but the higher limit gives a request back every tenth of a second instead of every half minute.
    while client.post("/v1/chat/completions", &chat(1, false)).await.status == 429 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    place.change("[tenants.acme]\n");
    reload(&server).await;
    assert_eq!(client.post("/v1/chat/completions", &chat(1, false)).await.status, 401, "a removed key doesn't work on");
}

#[tokio::test]
async fn what_can_not_change_and_what_is_wrong_is_refused_by_name_and_changes_nothing() {
    let place = Place::new(&tenant(""));
    let server = place.start_with_file();
    let client = Client::new(server.address(), Some(KEY));
    let text = place.text();
    let all_moved =
        text.replace("127.0.0.1:0\", threads", "127.0.0.2:0\", threads").replace("ledger.db", "other.db").replace("256MiB", "257MiB");
    let misspelt = text.replace("variants.only", "variant.only");
    let line = 1 + misspelt.lines().position(|line| line.contains("variant.only")).expect("it is there");
    let place_of_it = format!(":{line}:");
    for (text, expected) in [
        (all_moved, vec!["devices.cpu", "server.listen", "store"]),
        (misspelt, vec!["unknown key `variant`", &place_of_it, "variants"]),
        (text[..text.len() / 2].to_owned(), vec![":"]),
        (String::new(), vec!["empty"]),
    ] {
        std::fs::write(place.file(), text).expect("it can be written");
        let answer = reload(&server).await;
        assert_eq!(answer.status, 400, "{answer:?}");
        let message = answer.json()["error"]["message"].to_string();
        assert!(expected.iter().all(|part| message.contains(part)), "{message}");
        assert_eq!(version(&client).await, Some(1));
    }
    let metrics = Client::new(server.admin_address(), None).get("/metrics").await;
    let metrics = String::from_utf8_lossy(&metrics.body).into_owned();
    assert!(metrics.contains("roundhouse_config_reloads_total{outcome=\"refused\"} "), "{metrics}");
    assert!(metrics.contains("roundhouse_config_version 1\n"), "{metrics}");
}

#[tokio::test]
async fn a_file_that_is_written_in_pieces_is_read_when_it_is_whole() {
    let mut place = Place::new(&tenant(""));
    let server = place.watched(place.file());
    let client = Client::new(server.address(), Some(KEY));
    place.change(&tenant("weight = 2"));
    let whole = place.text();
    std::fs::write(place.file(), &whole[..whole.len() / 2]).expect("it can be written");
    assert_eq!(version(&client).await, Some(1));
    std::fs::write(place.file(), &whole).expect("it can be written");
    serves_by(&client, 2).await;
    place.change(&tenant("weight = 3"));
    let next = place.text();
    replace(&place.file(), &next);
    serves_by(&client, 3).await;
}

#[tokio::test]
async fn the_swap_of_a_link_to_another_folder_is_seen_again_and_again() {
    let mut place = Place::new(&tenant(""));
    let folder = place.file().parent().expect("it is in a folder").to_owned();
    let link = |folder_of_data: &str| {
        let (new, data) = (folder.join("..data_new"), folder.join("..data"));
        std::os::unix::fs::symlink(folder_of_data, &new).expect("a link can be made");
        std::fs::rename(new, data).expect("it can be renamed");
    };
    // As Kubernetes mounts a ConfigMap.
    let write = |place: &Place, name: &str| {
        std::fs::create_dir(folder.join(name)).expect("a folder can be made");
        let text = place.text().replace("file:tiny.gguf", &format!("file:{}", folder.join("tiny.gguf").display()));
        let text = text.replace("sqlite:ledger.db", &format!("sqlite:{}", folder.join("ledger.db").display()));
        std::fs::write(folder.join(name).join("mounted.toml"), text).expect("it can be written");
    };
    write(&place, "..1");
    link("..1");
    std::os::unix::fs::symlink("..data/mounted.toml", folder.join("mounted.toml")).expect("a link can be made");
    let server = place.watched(folder.join("mounted.toml"));
    let client = Client::new(server.address(), Some(KEY));
    for round in 2..4_u64 {
        place = place.changed(&tenant(&format!("weight = {round}")));
        write(&place, &format!("..{round}"));
        link(&format!("..{round}"));
        serves_by(&client, round).await;
    }
}

#[tokio::test]
async fn status_shows_the_configuration_the_shards_and_what_tenants_have_in_flight() {
    let stepping = Stepping::start();
    let client = Client::new(stepping.server.address(), Some(KEY));
    stepping.let_run(1);
    let body = json!({ "model": "default", "messages": [{ "role": "user", "content": "hello" }], "max_tokens": 30, "stream": true });
    let stream = client.stream("/v1/chat/completions", &body).await;
    let admin = Client::new(stepping.server.admin_address(), None);
    let mut status = admin.get("/admin/v1/status").await.json();
    while status["shards"]["smol-q4"]["running"] != 1 {
        tokio::task::yield_now().await; // a shard publishes what it holds right after it has told of the step
        status = admin.get("/admin/v1/status").await.json();
    }
    assert_eq!((&status["config"]["version"], &status["draining"]), (&json!(1), &json!(false)));
    let shard = &status["shards"]["smol-q4"];
    assert_eq!((&shard["state"], &shard["running"], &shard["device"]), (&json!("ready"), &json!(1), &json!("cpu")), "{status}");
    assert_eq!(status["models"]["smollm2-135m"]["q4"], json!(["smol-q4"]));
    let acme = &status["tenants"]["acme"];
    assert!(acme["requests"] == 1 && acme["tokens"].as_u64() > Some(30), "{acme}");
    stepping.let_run(100);
    stream.chunks().await;
}

#[tokio::test]
async fn a_stop_refuses_newcomers_says_so_and_finishes_what_runs() {
    let stepping = Stepping::start();
    let (address, admin) = (stepping.server.address(), stepping.server.admin_address());
    let client = Client::new(address, Some(KEY));
    stepping.let_run(1);
    let body = json!({ "model": "default", "messages": [{ "role": "user", "content": "hello" }], "max_tokens": 5, "ignore_eos": true, "stream": true });
    let stream = client.stream("/v1/chat/completions", &body).await;
    let Stepping { server, gate, .. } = stepping;
    let stopped = std::thread::spawn(move || server.stop());
    while Client::new(admin, None).get("/admin/v1/status").await.json()["draining"] != true {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    while tokio::net::TcpStream::connect(address).await.is_ok() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    drop(gate); // the device goes on
    let chunks = stream.chunks().await;
    assert_eq!(chunks.last().expect("there are chunks")["choices"][0]["finish_reason"], "length");
    stopped.join().expect("it stops");
}

#[tokio::test]
async fn a_stop_waits_no_longer_than_the_drain() {
    let mut config: Config = support::server::config();
    config.server.drain = Duration::from_millis(50);
    let stepping = Stepping::with(config);
    let client = Client::new(stepping.server.address(), Some(KEY));
    stepping.let_run(1);
    let body = json!({ "model": "default", "messages": [{ "role": "user", "content": "hello" }], "max_tokens": 5, "stream": true });
    let stream = client.stream("/v1/chat/completions", &body).await;
    let Stepping { server, gate, .. } = stepping;
    // The device never goes on; the stop ends all the same.
    tokio::task::spawn_blocking(move || server.stop()).await.expect("it stops");
    drop((stream, gate));
}

#[tokio::test]
async fn signals_reload_and_stop_the_process_and_its_log_is_one_json_object_a_line() {
    let mut place = Place::new(&(tenant("") + "[log]\nformat = \"json\"\n"));
    let (mut process, log) = Process::with_log(&place);
    let client = Client::new(process.address, Some(KEY));
    assert_eq!(version(&client).await, Some(1));
    place.change(&(tenant("weight = 2") + "[log]\nformat = \"json\"\n"));
    process.signal("HUP");
    serves_by(&client, 2).await;
    assert_eq!(Client::new(process.admin, None).get("/admin/v1/status").await.json()["config"]["version"], 2);
    let stream = client.stream("/v1/chat/completions", &chat(200, true)).await;
    process.signal("TERM");
    let chunks = stream.chunks().await;
    assert!(!chunks.last().expect("there are chunks")["choices"][0]["finish_reason"].is_null(), "a stop cuts no stream");
    assert!(process.wait().success());
    let log = rest(log);
    let lines: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))).collect();
    let request = lines.iter().rev().find(|line| line["target"] == "request").expect("requests are logged");
    assert_eq!((&request["tenant"], &request["status"], &request["outcome"]), (&json!("acme"), &json!(200), &json!("Done")));
    assert!(!log.contains("the hand") && !log.contains(KEY), "{log}");
}
