//! A shard that is lost in the middle of its answers doesn't end them where an equal one is there.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use roundhouse::backend::{Backend, State};
use roundhouse::config::{Config, Environment, Name, Shard, Weights};
use roundhouse::engine::fake::Fake;
use roundhouse::engine::{DeviceError, Executor, Limits, Plan, Sampled, Ticket};
use roundhouse::model::source::Progress;
use roundhouse::roundhouse::{Engine, LoadEngine, Models, StartError};
use roundhouse::text::Text;
use serde_json::{Value, json};
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use support::Silent;
use support::client::Client;
use support::fake::Fakes;
use support::server::{self, KEY, Server};
use support::tiny_model::{self, TinyModel};

const STREAMS: u32 = 16;

/// Real executors of the tiny model; that of shard `a` tells of the fifth step since its batch was full, waits for a word, and
/// fails if the word is so.
struct Poisoned {
    models: Models<'static>,
    moment: Arc<Mutex<Option<Moment>>>,
}

struct Moment {
    full: usize,
    come: Sender<()>,
    dies: Receiver<bool>,
}

struct Frail {
    executor: Box<dyn Executor>,
    moment: Arc<Mutex<Option<Moment>>>,
    full: u32,
}

impl LoadEngine for Poisoned {
    fn load(&mut self, shard: &Shard, progress: &dyn Progress) -> Result<Engine, StartError> {
        let mut engine = self.models.load(shard, progress)?;
        if shard.name.as_str() == "a" {
            let (build, moment) = (engine.build, self.moment.clone());
            engine.build = Box::new(move || Ok(Box::new(Frail { executor: build()?, moment, full: 0 })));
        }
        Ok(engine)
    }

    fn tokenizer(&mut self, model: &Name, weights: &Weights) -> Result<Arc<Text>, StartError> {
        self.models.tokenizer(model, weights)
    }
}

impl Executor for Frail {
    fn limits(&self) -> Limits {
        self.executor.limits()
    }

    fn launch(&mut self, plan: &Plan) -> Result<Ticket, DeviceError> {
        let mut moment = self.moment.lock().unwrap();
        self.full += u32::from(self.full > 0 || moment.as_ref().is_some_and(|moment| plan.rows.len() >= moment.full));
        if self.full == 5
            && let Some(Moment { come, dies, .. }) = moment.take()
        {
            drop(moment); // what follows would poison it
            come.send(()).unwrap();
            if dies.recv().unwrap() {
                return Err(DeviceError("the device fails, as this test wants it".to_owned()));
            }
        }
        self.executor.launch(plan)
    }

    fn collect(&mut self, ticket: Ticket, into: &mut Sampled) -> Result<(), DeviceError> {
        self.executor.collect(ticket, into)
    }
}

/// A server with shards `a` and `b`; where `b` differs from `a`, `b` says how.
fn start(folder: &Path, b: &str, full: usize) -> (Server, Receiver<()>, Sender<bool>) {
    std::fs::write(folder.join("tiny.gguf"), tiny_model::llama(TinyModel { context: 256, ..TinyModel::default() })).unwrap();
    let shard = |name: &str, more: &str| {
        format!("[shards.{name}]\nweights = \"file:tiny.gguf\"\nkv_cache = {{ memory = \"16MiB\" }}\nmax_sequences = 128\n{more}\n")
    };
    let text = format!(
        "server = {{ listen = \"127.0.0.1:0\", threads = 1 }}\nadmin.listen = \"127.0.0.1:0\"\nstore.ledger = \"off\"\n\
         [devices.cpu]\nthreads = 1\nmemory = \"256MiB\"\n{}{}\
         [models.tiny]\nvariants.only.backends = [\"a\", \"b\"]\n\
         [tenants.acme]\nkeys = [{{ name = \"ci\", hash = \"{}\" }}]\n",
        shard("a", ""),
        shard("b", b),
        blake3::hash(KEY.as_bytes()).to_hex()
    );
    let config = Config::parse(&text, &folder.join("r.toml")).unwrap();
    let models = Models::new(&config, &Environment::from_process(), &Silent).unwrap();
    let ((come, came), (die, dies)) = (channel(), channel());
    let moment = Arc::new(Mutex::new(Some(Moment { full, come, dies })));
    (server::with(config, Poisoned { models, moment }), came, die)
}

/// What client `index` asks for: everything that depends on what was said before.
fn body(index: u32) -> Value {
    let mut body = json!({
        "model": "tiny",
        "messages": [{ "role": "user", "content": format!("the hand {index}") }],
        "max_tokens": 40,
        "temperature": 0.9,
        "seed": index,
        "return_token_ids": true,
        "ignore_eos": true,
        "stream": index.is_multiple_of(2),
    });
    let more = match index % 8 {
        0 | 1 => json!({ "logprobs": true, "top_logprobs": 3 }),
        2 | 3 => json!({ "frequency_penalty": 1.5, "presence_penalty": 0.5, "repetition_penalty": 1.3 }),
        4 | 5 => json!({ "n": 2, "stop": ["e", "a"], "min_tokens": 12 }),
        _ => json!({ "ignore_eos": false, "min_tokens": 8, "logit_bias": { "5": 2 } }),
    };
    body.as_object_mut().unwrap().append(&mut more.as_object().unwrap().clone());
    if index.is_multiple_of(2) {
        body["stream_options"] = json!({ "include_usage": true });
    }
    body
}

/// Asks, and gives what must not depend on who answers: choices, and tokens used.
async fn ask(client: Client, body: Value) -> Vec<Value> {
    let stream = client.stream("/v1/chat/completions", &body).await;
    assert_eq!(stream.status, 200);
    let parts = if body["stream"] == true { stream.chunks().await } else { vec![stream.whole().await.json()] };
    let told = |part: Value| {
        let tokens = ["prompt_tokens", "completion_tokens"].map(|name| part["usage"][name].clone());
        json!([part["choices"], tokens])
    };
    let mut told: Vec<_> = parts.into_iter().map(told).collect();
    // Choices run beside each other: which is told first isn't promised.
    told.sort_by_key(|part| part[0][0]["index"].as_u64());
    told
}

/// Sixteen answers of shard `a`, which fails in the middle where `dies`; `b` is there from that moment on.
async fn answers(dies: bool) -> Vec<Vec<Value>> {
    let folder = tempfile::tempdir().unwrap();
    let (server, came, die) = start(folder.path(), "", 20);
    let b = server.shard(&"b".into()).unwrap();
    b.drain();
    let asked: Vec<_> = (0..STREAMS).map(|index| tokio::spawn(ask(Client::new(server.address(), Some(KEY)), body(index)))).collect();
    tokio::task::spawn_blocking(move || came.recv().unwrap()).await.unwrap();
    b.resume();
    die.send(dies).unwrap();
    let mut answers = Vec::new();
    for answer in asked {
        answers.push(answer.await.unwrap());
    }
    let state = Client::new(server.admin_address(), None).get("/admin/v1/status").await.json()["shards"]["a"]["state"].clone();
    assert_eq!(state, if dies { "lost" } else { "ready" });
    answers
}

#[tokio::test]
async fn a_shard_lost_under_sixteen_answers_changes_none_of_them_where_an_equal_one_is_there() {
    let (undisturbed, disturbed) = (answers(false).await, answers(true).await);
    for (index, (undisturbed, disturbed)) in undisturbed.iter().zip(&disturbed).enumerate() {
        assert_eq!(undisturbed, disturbed, "answer {index}");
    }
    assert_eq!(undisturbed.len(), STREAMS as usize);
}

#[tokio::test]
async fn where_the_other_one_isn_t_equal_a_stream_ends_with_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let (server, came, die) = start(folder.path(), "quantize = \"q8_0\"", 1);
    let b = server.shard(&"b".into()).unwrap();
    b.drain();
    let client = Client::new(server.address(), Some(KEY));
    let mut stream = client.stream("/v1/chat/completions", &body(0)).await;
    b.resume();
    tokio::task::spawn_blocking(move || came.recv().unwrap()).await.unwrap();
    die.send(true).unwrap();
    let mut last = String::new();
    while let Some(event) = stream.next().await {
        last = event;
    }
    assert!(last.contains("\"code\":\"backend_unavailable\""), "{last}");
    assert_eq!(client.post("/v1/chat/completions", &body(1)).await.header("x-roundhouse-backend"), Some("b"));
}

#[tokio::test]
async fn a_request_that_brings_down_whoever_computes_it_does_not_bring_down_all() {
    let mut config = server::config();
    let model = Arc::make_mut(config.models.values_mut().next().unwrap());
    let names: Vec<Name> = ["smol-q4", "b", "c", "d", "e"].map(Name::from).into();
    model.variants.values_mut().for_each(|variant| variant.backends = names.clone().into());
    let shard = config.shards.values().next().unwrap().clone();
    for name in &names[1..] {
        config.shards.insert(name.clone(), Arc::new(Shard { name: name.clone(), ..Shard::clone(&shard) }));
    }
    let make = |limits| {
        let mut steps = 0;
        Fake::new(limits).observed(move |_| {
            steps += 1;
            assert!(steps < 4, "a bug, as this test wants it");
        })
    };
    let server = server::with(config, Fakes(make));
    let body = json!({ "model": "default", "messages": [{ "role": "user", "content": "hello" }], "max_tokens": 60, "ignore_eos": true, "stream": true });
    let mut stream = Client::new(server.address(), Some(KEY)).stream("/v1/chat/completions", &body).await;
    let (mut last, mut events) = (String::new(), 0);
    while let Some(event) = stream.next().await {
        (last, events) = (event, events + 1);
    }
    assert!(last.contains("\"code\":\"backend_unavailable\""), "{last}");
    assert!(events > 3, "more than one shard has said: {events}");
    let lost = server.shards().filter(|shard| shard.state() == State::Lost).count();
    assert_eq!(lost, 3);
}
