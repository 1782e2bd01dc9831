//! Shards come, change and go while requests are served.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use roundhouse::config::{Config, Name, Quantize, Shard, Swap, Weights};
use roundhouse::engine::fake::Fake;
use roundhouse::engine::{DeviceError, Limits};
use roundhouse::model::source::Progress;
use roundhouse::roundhouse::{Engine, LoadEngine, StartError};
use roundhouse::text::Text;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use support::client::{Answer, Client};
use support::fake::{digest, text};
use support::server::{self, KEY, Server};

const CHAT: &str = "/v1/chat/completions";
const SHARD: &str = "smol-q4";

/// Counts engines: each is there as long as this.
struct Alive(Arc<AtomicUsize>);

impl Alive {
    fn count(alive: &Arc<AtomicUsize>) -> Self {
        alive.fetch_add(1, SeqCst);
        Self(alive.clone())
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

/// What tests do to the engines they load, and see of them.
#[derive(Clone, Default)]
struct Yard {
    /// Engines on the device.
    alive: Arc<AtomicUsize>,
    /// Engines loaded so far.
    loaded: Arc<AtomicUsize>,
    /// The next load waits for a word from here.
    gate: Arc<Mutex<Option<Receiver<()>>>>,
    /// Engines with this many sequences at most run only so many more steps.
    halted: Arc<Mutex<BTreeMap<u32, u32>>>,
    /// Where true, steps panic.
    broken: Arc<AtomicBool>,
}

impl Yard {
    fn start(&self, config: Config) -> Server {
        server::with(config, self.clone())
    }

    fn hold_the_next_load(&self) -> Sender<()> {
        let (open, gate) = channel();
        *self.gate.lock().unwrap() = Some(gate);
        open
    }

    /// Engines with this many sequences at most run no further step.
    fn halt(&self, max_sequences: u32) {
        self.halted.lock().unwrap().insert(max_sequences, 0);
    }

    /// They do again.
    fn go_on(&self, max_sequences: u32) {
        self.halted.lock().unwrap().remove(&max_sequences);
    }

    /// They run one step.
    fn step(&self, max_sequences: u32) {
        self.halted.lock().unwrap().insert(max_sequences, 1);
    }

    /// Lets a halted engine run as many steps as it takes until this many sequences run there.
    async fn runs(&self, shard: &Arc<roundhouse::shard::Shard>, max_sequences: u32, running: u32) {
        until(async || {
            let is_running = shard.sequences().0 == running;
            if !is_running {
                self.step(max_sequences);
            }
            is_running
        })
        .await;
    }
}

impl LoadEngine for Yard {
    fn load(&mut self, shard: &Shard, progress: &dyn Progress) -> Result<Engine, StartError> {
        progress.start(Some(100), &format!("loading {}", shard.name));
        progress.advance(40);
        let gate = self.gate.lock().unwrap().take();
        if let Some(gate) = gate {
            let _ = gate.recv(); // a test that has ended lets it go
        }
        if shard.weights == Weights::File("broken.gguf".into()) {
            let error = DeviceError("the weights are broken".to_owned());
            return Err(StartError::Shard { shard: shard.name.clone(), error });
        }
        let (max_batch_tokens, max_sequences) = (shard.max_batch_tokens, shard.max_sequences);
        let limits = Limits { blocks: 64, block_tokens: 16, max_batch_tokens, max_sequences, max_context: 1024 };
        let (alive, halted, broken) = (Alive::count(&self.alive), self.halted.clone(), self.broken.clone());
        self.loaded.fetch_add(1, SeqCst);
        let fake = move || {
            Fake::new(limits).observed(move |_| {
                let _ = &alive;
                while !may_run(&mut halted.lock().unwrap(), max_sequences) {
                    std::thread::sleep(Duration::from_millis(1));
                }
                assert!(!broken.load(SeqCst), "a bug, as this test wants it");
            })
        };
        Ok(Engine { text: text(), limits, digest: digest(shard), build: Box::new(move || Ok(Box::new(fake()))) })
    }

    fn tokenizer(&mut self, _: &Name, _: &Weights) -> Result<Arc<Text>, StartError> {
        Ok(text())
    }
}

/// Takes one of the steps that are left, where they are counted.
fn may_run(halted: &mut BTreeMap<u32, u32>, max_sequences: u32) -> bool {
    let Some(left) = halted.get_mut(&max_sequences) else { return true };
    let may = *left > 0;
    *left = left.saturating_sub(1);
    may
}

/// The configuration of the other tests, its shard changed.
fn with_shard(change: impl FnOnce(&mut Shard)) -> Config {
    let mut config = server::config();
    change(Arc::make_mut(config.shards.values_mut().next().unwrap()));
    config
}

/// Another shard beside the first one, and the same model on both.
fn with_another(name: &str, change: impl FnOnce(&mut Shard)) -> Config {
    let mut config = server::config();
    let mut other = Shard::clone(&config.shards[SHARD]);
    other.name = name.into();
    change(&mut other);
    config.shards.insert(other.name.clone(), Arc::new(other));
    let model = Arc::make_mut(config.models.values_mut().next().unwrap());
    model.variants.values_mut().for_each(|variant| variant.backends = [Name::from(SHARD), Name::from(name)].into());
    config
}

fn chat(max_tokens: u32, stream: bool) -> Value {
    json!({ "model": "default", "messages": [{ "role": "user", "content": "hello" }], "max_tokens": max_tokens, "stream": stream, "ignore_eos": true })
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

fn client(server: &Server) -> Client {
    Client::new(server.address(), Some(KEY))
}

fn admin(server: &Server) -> Client {
    Client::new(server.admin_address(), None)
}

/// Reloads where the test doesn't wait for it.
fn reload_aside(server: &Arc<Server>, config: Config) -> tokio::task::JoinHandle<Result<bool, String>> {
    let server = server.clone();
    tokio::task::spawn_blocking(move || server.reload(config).map(|reloaded| reloaded.changed).map_err(|error| error.to_string()))
}

#[tokio::test]
async fn a_changed_shard_is_swapped_under_a_stream_and_the_old_one_is_freed_when_that_has_ended() {
    let yard = Yard::default();
    yard.halt(64);
    let server = yard.start(server::config());
    let client = client(&server);
    let first = {
        let client = client.clone();
        tokio::spawn(async move { client.stream(CHAT, &chat(300, true)).await })
    };
    let old = server.shard(&SHARD.into()).unwrap();
    yard.runs(&old, 64, 1).await;
    drop(old);
    // Other weights: who waits there isn't answered by them.
    let config = with_shard(|shard| (shard.quantize, shard.max_sequences) = (Quantize::Q8_0, 63));
    assert_eq!(server.reload(config).unwrap().version, 2);
    let new = client.post(CHAT, &chat(5, false)).await;
    assert_eq!((new.status, new.header("x-roundhouse-config")), (200, Some("2")));
    assert_eq!(yard.alive.load(SeqCst), 2, "the old one has a stream");
    yard.go_on(64);
    let first = first.await.unwrap();
    assert_eq!(first.headers["x-roundhouse-config"], "1");
    assert_eq!(first.chunks().await.last().unwrap()["choices"][0]["finish_reason"], "length");
    until(async || yard.alive.load(SeqCst) == 1).await;
    assert_eq!(yard.loaded.load(SeqCst), 2);
}

#[tokio::test]
async fn what_waits_at_a_shard_begins_at_the_equal_one_that_takes_its_place() {
    let yard = Yard::default();
    yard.halt(2);
    let server = yard.start(with_shard(|shard| shard.max_sequences = 2));
    let old = server.shard(&SHARD.into()).unwrap();
    let ask = |index: u32| {
        let client = client(&server);
        let body = json!({ "model": "default", "messages": [{ "role": "user", "content": format!("hello {index}") }], "max_tokens": if index == 0 { 300 } else { 3 }, "n": 1 + index % 2, "ignore_eos": true });
        tokio::spawn(async move { client.post(CHAT, &body).await })
    };
    let running: Vec<_> = (0..2).map(|_| ask(0)).collect();
    yard.runs(&old, 2, 2).await;
    let waiting: Vec<_> = (1..7).map(ask).collect();
    until(async || old.sequences().1 == 9).await;
    // As many may wait at the new one as at the old one, but these have been let in.
    let config = with_shard(|shard| (shard.max_sequences, shard.max_waiting) = (8, 1));
    server.reload(config).unwrap();
    yard.step(2); // between two steps it hears of it
    for answer in waiting {
        let answer = answer.await.unwrap();
        assert_eq!((answer.status, answer.header("x-roundhouse-config")), (200, Some("1")), "{answer:?}");
    }
    assert_eq!(old.sequences(), (2, 0), "what runs stays");
    drop(old);
    yard.go_on(2);
    for answer in running {
        assert_eq!(answer.await.unwrap().status, 200);
    }
    until(async || yard.alive.load(SeqCst) == 1).await;
    let idle = server.shards().next().unwrap();
    until(async || idle.sequences() == (0, 0)).await;
}

#[tokio::test]
async fn what_waits_for_other_weights_is_answered_by_the_shard_it_waits_at() {
    let yard = Yard::default();
    yard.halt(2);
    let server = yard.start(with_shard(|shard| shard.max_sequences = 2));
    let old = server.shard(&SHARD.into()).unwrap();
    let ask = |count| {
        let ask = |_| {
            let client = client(&server);
            tokio::spawn(async move { client.post(CHAT, &chat(300, false)).await })
        };
        (0..count).map(ask).collect::<Vec<_>>()
    };
    let mut answers = ask(2);
    yard.runs(&old, 2, 2).await;
    answers.extend(ask(3));
    until(async || old.sequences() == (2, 3)).await;
    server.reload(with_shard(|shard| (shard.quantize, shard.max_sequences) = (Quantize::Q8_0, 3))).unwrap();
    assert_eq!(client(&server).post(CHAT, &chat(3, false)).await.status, 200);
    assert_eq!(old.sequences(), (2, 3));
    drop(old);
    yard.go_on(2);
    for answer in answers {
        assert_eq!(answer.await.unwrap().header("x-roundhouse-config"), Some("1"));
    }
    until(async || yard.alive.load(SeqCst) == 1).await;
}

#[tokio::test]
async fn shards_are_added_and_dropped_and_a_reload_that_fails_in_part_frees_what_it_loaded() {
    let yard = Yard::default();
    let server = yard.start(server::config());
    let client = client(&server);
    // `a` loads, `z` doesn't.
    let mut config = with_another("a", |_| {});
    let mut broken = Shard::clone(&config.shards["a"]);
    (broken.name, broken.weights) = ("z".into(), Weights::File("broken.gguf".into()));
    config.shards.insert("z".into(), Arc::new(broken));
    let refused = server.reload(config).unwrap_err().to_string();
    assert!(refused.contains("shards.z: the weights are broken"), "{refused}");
    until(async || yard.alive.load(SeqCst) == 1).await;
    assert_eq!(yard.loaded.load(SeqCst), 2, "it loaded `a` in vain");
    assert_eq!(client.post(CHAT, &chat(2, false)).await.header("x-roundhouse-config"), Some("1"));

    server.reload(with_another("a", |_| {})).unwrap();
    assert_eq!((yard.alive.load(SeqCst), yard.loaded.load(SeqCst)), (2, 3), "the first one is kept");
    let status = admin(&server).get("/admin/v1/status").await.json();
    assert_eq!((&status["shards"]["a"]["state"], &status["shards"][SHARD]["state"]), (&json!("ready"), &json!("ready")));
    server.reload(server::config()).unwrap();
    until(async || yard.alive.load(SeqCst) == 1).await;
    assert_eq!(client.post(CHAT, &chat(2, false)).await.header("x-roundhouse-config"), Some("3"));
    let metrics = String::from_utf8(admin(&server).get("/metrics").await.body.to_vec()).unwrap();
    assert!(!metrics.contains("roundhouse_shard_state{shard=\"a\""), "{metrics}");
}

#[tokio::test]
async fn loading_shows_how_far_it_is_and_neither_requests_nor_a_stop_wait_for_it() {
    let yard = Yard::default();
    let server = Arc::new(yard.start(server::config()));
    let (client, admin) = (client(&server), admin(&server));
    let open = yard.hold_the_next_load();
    let reload = reload_aside(&server, with_another("a", |_| {}));
    until(async || admin.get("/admin/v1/status").await.json()["loading"]["a"]["bytes"] == 40).await;
    let status = admin.get("/admin/v1/status").await.json();
    assert_eq!(status["loading"], json!({ "a": { "doing": "loading a", "bytes": 40, "total": 100 } }));
    assert_eq!(client.post(CHAT, &chat(3, false)).await.status, 200);
    // A second one waits for its turn.
    let second = reload_aside(&server, server::config());
    open.send(()).unwrap();
    assert_eq!(reload.await.unwrap(), Ok(true));
    second.await.unwrap().unwrap();
    assert_eq!(admin.get("/admin/v1/status").await.json()["loading"], json!({}));

    let open = yard.hold_the_next_load();
    let asked = tokio::spawn({
        let admin = admin.clone();
        async move { admin.post(&format!("/admin/v1/shards/{SHARD}/reload"), &json!({})).await }
    });
    until(async || admin.get("/admin/v1/status").await.json()["loading"][SHARD]["bytes"] == 40).await;
    let server = Arc::into_inner(server).unwrap();
    tokio::task::spawn_blocking(move || server.stop()).await.unwrap();
    drop(open);
    asked.abort();
    until(async || yard.alive.load(SeqCst) == 0).await;
}

#[tokio::test]
async fn operators_drain_resume_and_reload_a_shard_by_its_name() {
    let yard = Yard::default();
    let server = yard.start(server::config());
    let (client, admin) = (client(&server), admin(&server));
    let act = async |deed: &str| {
        let answer = admin.post(&format!("/admin/v1/shards/{SHARD}/{deed}"), &json!({})).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.json()["state"].as_str().unwrap().to_owned()
    };
    for _ in 0..2 {
        assert_eq!(act("drain").await, "draining");
    }
    let refused = client.post(CHAT, &chat(2, false)).await;
    assert_eq!(code(&refused), (503, "no_capacity".to_owned()));
    assert_eq!(client.get("/ready").await.status, 503);
    assert_eq!(act("reload").await, "draining", "what an operator drained stays drained");
    for _ in 0..2 {
        assert_eq!(act("resume").await, "ready");
    }
    assert_eq!(client.post(CHAT, &chat(2, false)).await.header("x-roundhouse-config"), Some("1"));
    until(async || yard.alive.load(SeqCst) == 1).await;
    for deed in ["drain", "resume", "reload"] {
        let answer = admin.post(&format!("/admin/v1/shards/smol-q5/{deed}"), &json!({})).await;
        assert_eq!(code(&answer), (404, "shard_not_found".to_owned()));
        assert!(answer.json()["error"]["message"].as_str().unwrap().contains("`smol-q4`"));
    }
}

#[tokio::test]
async fn a_reload_revives_a_shard_that_was_lost() {
    let yard = Yard::default();
    let server = yard.start(server::config());
    let (client, admin) = (client(&server), admin(&server));
    yard.broken.store(true, SeqCst);
    assert_eq!(code(&client.post(CHAT, &chat(2, false)).await), (503, "backend_unavailable".to_owned()));
    let path = format!("/admin/v1/shards/{SHARD}/reload");
    let failed = admin.post(&path, &json!({})).await;
    assert_eq!(failed.status, 400);
    let message = failed.json()["error"]["message"].to_string();
    assert!(message.contains("shards.smol-q4: its first step failed"), "{message}");
    until(async || yard.alive.load(SeqCst) == 0).await;
    yard.broken.store(false, SeqCst);
    assert_eq!(admin.post(&path, &json!({})).await.json(), json!({ "shard": SHARD, "state": "ready" }));
    assert_eq!(client.post(CHAT, &chat(2, false)).await.status, 200);
}

#[tokio::test]
async fn drain_first_finishes_what_runs_frees_and_then_loads_and_what_fails_comes_back() {
    let yard = Yard::default();
    let drain_first = |shard: &mut Shard| shard.swap = Swap::DrainFirst;
    let server = Arc::new(yard.start(with_shard(drain_first)));
    let (client, admin) = (client(&server), admin(&server));
    yard.halt(64);
    let running = {
        let client = client.clone();
        tokio::spawn(async move { client.post(CHAT, &chat(300, false)).await })
    };
    let old = server.shard(&SHARD.into()).unwrap();
    yard.runs(&old, 64, 1).await;
    let open = yard.hold_the_next_load();
    let reload = reload_aside(&server, with_shard(|shard| (shard.swap, shard.quantize) = (Swap::DrainFirst, Quantize::Q8_0)));
    until(async || admin.get("/admin/v1/status").await.json()["shards"][SHARD]["state"] == "draining").await;
    assert_eq!(code(&client.post(CHAT, &chat(2, false)).await), (503, "no_capacity".to_owned()));
    yard.go_on(64);
    assert_eq!(running.await.unwrap().status, 200);
    until(async || admin.get("/admin/v1/status").await.json()["shards"][SHARD]["state"] == "loading").await;
    assert_eq!(yard.alive.load(SeqCst), 0, "freed before the new one is loaded");
    assert_eq!(code(&client.post(CHAT, &chat(2, false)).await), (503, "no_capacity".to_owned()));
    open.send(()).unwrap();
    assert_eq!(reload.await.unwrap(), Ok(true));
    assert_eq!(client.post(CHAT, &chat(2, false)).await.header("x-roundhouse-config"), Some("2"));

    let broken = |shard: &mut Shard| (shard.swap, shard.weights) = (Swap::DrainFirst, Weights::File("broken.gguf".into()));
    let refused = reload_aside(&server, with_shard(broken)).await.unwrap().unwrap_err();
    assert!(refused.contains("the weights are broken"), "{refused}");
    assert_eq!(client.post(CHAT, &chat(2, false)).await.header("x-roundhouse-config"), Some("2"));
    assert_eq!(yard.alive.load(SeqCst), 1);
}

#[tokio::test]
async fn a_shard_that_can_not_make_room_in_time_serves_on() {
    let yard = Yard::default();
    let mut config = with_shard(|shard| shard.swap = Swap::DrainFirst);
    config.server.drain = Duration::from_millis(20);
    let server = Arc::new(yard.start(config.clone()));
    let client = client(&server);
    yard.halt(64);
    let running = {
        let client = client.clone();
        tokio::spawn(async move { client.post(CHAT, &chat(300, false)).await })
    };
    let old = server.shard(&SHARD.into()).unwrap();
    yard.runs(&old, 64, 1).await;
    Arc::make_mut(config.shards.values_mut().next().unwrap()).quantize = Quantize::Q8_0;
    let refused = reload_aside(&server, config).await.unwrap().unwrap_err();
    assert!(refused.contains("shards.smol-q4: what runs there didn't end within 0.02 s"), "{refused}");
    yard.go_on(64);
    assert_eq!(running.await.unwrap().status, 200);
    assert_eq!(client.post(CHAT, &chat(2, false)).await.header("x-roundhouse-config"), Some("1"));
    assert_eq!(yard.loaded.load(SeqCst), 1);
}
