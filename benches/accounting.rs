//! What keys, limits, quotas and the ledger cost. `cargo bench --bench accounting`
//!
//! `authenticate to settle` is the processor time of one request, all threads together, through every layer below HTTP and
//! translation, with 64 requests at once, so that groups of rows are committed as under load; waiting for a commit takes no
//! processor time and isn't counted. `over HTTP` is how many requests a second 64 connections get answered, with the ledger
//! and without, in turns.

#![expect(clippy::print_stdout, reason = "figures are what it is for")]

use bytes::Bytes;
use criterion::Criterion;
use futures_util::future::{BoxFuture, join_all};
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use roundhouse::backend::{Backend, Offer, State};
use roundhouse::call::{Asked, Call, Error, Event, Finish, Outcome, Peer, Prompt, Record, Reply, Sampling, Task, Usage};
use roundhouse::clock::Clock;
use roundhouse::config::{Class, Config, Name};
use roundhouse::gateway::listener::bind;
use roundhouse::gateway::{Gateway, Parts, Served, Stack};
use roundhouse::layer::{Admit, Authenticate, Deadline, Incoming, Limit, Meter};
use roundhouse::metrics::Metrics;
use roundhouse::route::{Choose, Experiments, Rendering, Renderings, Router};
use roundhouse::tenant::{Accounts, Credentials, Keys};
use roundhouse::text::{Text, Vocabulary};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tower::{Service, ServiceBuilder, ServiceExt, service_fn};

/// As in the program.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const KEY: &str = "rh_a-key";
const AT_ONCE: u64 = 64;
/// Tokens of an answer.
const TOKENS: u32 = 16;

/// A backend that has its answer ready.
struct Ready;

impl Backend for Ready {
    fn state(&self) -> State {
        State::Ready
    }

    fn supports(&self, _: &Call) -> Result<(), Error> {
        Ok(())
    }

    fn offer(&self, _: &Call) -> Offer {
        Offer { cached_tokens: Some(0), ..Offer::default() }
    }

    fn call(&self, call: Call) -> BoxFuture<'static, Result<Reply, Error>> {
        let text = |id| Ok(Event::Text { choice: 0, text: "a".to_owned(), ids: vec![id], logprobs: Vec::new() });
        let usage = Usage { prompt_tokens: call.prompts[0].tokens, completion_tokens: TOKENS, ..Usage::default() };
        let end = [Ok(Event::Finish { choice: 0, reason: Finish::Length }), Ok(Event::Usage(usage))];
        let events = (0..TOKENS).map(text).chain(end);
        Box::pin(std::future::ready(Ok(Reply::new(futures_util::stream::iter(events)))))
    }
}

/// Everything that a request meets, with a ledger at this place.
struct House {
    config: Arc<Config>,
    keys: Arc<Keys>,
    accounts: Arc<Accounts>,
    experiments: Arc<Experiments>,
    metrics: Metrics,
    clock: Clock,
}

// === impl House ===

impl House {
    fn open(ledger: &str) -> Self {
        let hash = blake3::hash(KEY.as_bytes()).to_hex();
        let config = format!(
            r#"
[store]
ledger = "{ledger}"
[log]
requests = false
[shards.b]
weights = "file:none.gguf"
[models.m]
prices = {{ input = 0.05, output = 0.20 }}
variants = {{ v = {{ backends = ["b"] }} }}
[tenants.acme]
limits = {{ requests_per_minute = 1_000_000_000, tokens_per_minute = 1_000_000_000_000, concurrent = 1000 }}
quota = [{{ tokens = 1_000_000_000_000, per = "day" }}, {{ cost = 1000000.0, per = "month" }}]
keys = [{{ name = "ci", hash = "{hash}" }}]
"#
        );
        let config = Arc::new(Config::parse(&config, Path::new("bench.toml")).expect("the configuration is right"));
        let (clock, metrics) = (Clock::system(), Metrics::new());
        let credentials = Credentials::open(&config.store, clock.clone()).expect("the store opens");
        let accounts = Accounts::open(&config.store, clock.clone(), &metrics).expect("the ledger opens");
        accounts.configure(&config).expect("the ledger answers");
        Self {
            keys: Arc::new(Keys::new(config.clone(), &credentials)),
            accounts: Arc::new(accounts),
            experiments: Arc::new(Experiments::new(metrics.clone(), clock.clone())),
            config,
            metrics,
            clock,
        }
    }

    fn backends() -> BTreeMap<Name, Arc<dyn Backend>> {
        BTreeMap::from([("b".into(), Arc::new(Ready) as Arc<dyn Backend>)])
    }

    /// The layers from authenticate down; translation is done already.
    fn layers(&self) -> impl Service<Incoming<()>, Response = Reply, Error = Error, Future: Send> + Clone + Send + use<> {
        let (clock, backends) = (self.clock.clone(), Arc::new(Self::backends()));
        let rendering = rendering();
        let prompt = Prompt::new([1; 100], rendering.text.as_ref().expect("it has a tokenizer").digest());
        let renderings = Renderings::new(BTreeMap::from([("m".into(), BTreeMap::from([("v".into(), rendering)]))]));
        let below = ServiceBuilder::new()
            .layer(Choose::layer(renderings.clone(), self.experiments.clone(), clock.clone()))
            .layer(Limit::layer(self.accounts.clone()))
            .layer(Deadline::layer(Duration::from_secs(600), clock.clone()))
            .layer(Admit::layer(backends.clone(), clock.clone()))
            .layer(Meter::layer(self.metrics.clone(), clock.clone(), self.config.billing.currency.clone()))
            .service(Router::new(backends, renderings, self.experiments.clone(), clock));
        let model = self.config.models[&Name::from("m")].clone();
        let prompts: Arc<[Prompt]> = [prompt].into();
        let asked = Arc::new(Asked { prompts: prompts.clone(), max_tokens: Some(100), ..Asked::default() });
        let sampling = Arc::new(Sampling { max_tokens: 100, ..Sampling::default() });
        let translated = service_fn(move |incoming: Incoming<()>| {
            let holder = incoming.holder.expect("invariant: authenticate has set it");
            let call = Call {
                record: incoming.record,
                tenant: holder.tenant,
                key: holder.key,
                class: Class::Interactive,
                model: model.clone(),
                task: Task::Generate,
                asked: asked.clone(),
                messages: Arc::default(),
                prompts: Arc::clone(&prompts),
                sampling: sampling.clone(),
                route: None,
                deadline: None,
                first_by: None,
            };
            below.clone().oneshot(call)
        });
        ServiceBuilder::new().layer(Authenticate::layer(self.keys.clone())).service(translated)
    }

    /// The same behind a socket.
    fn serve(&self) -> Gateway {
        let rendering = rendering();
        let text = rendering.text.clone();
        let variants = BTreeMap::from([("v".into(), rendering)]);
        let stack = Stack::build(Parts {
            config: self.config.clone(),
            served: BTreeMap::from([("m".into(), Served { text, variants })]),
            backends: Self::backends(),
            keys: self.keys.clone(),
            accounts: self.accounts.clone(),
            experiments: self.experiments.clone(),
            metrics: self.metrics.clone(),
            clock: self.clock.clone(),
        });
        let listeners = bind(SocketAddr::from(([127, 0, 0, 1], 0)), 1).expect("a port is free");
        let stack = Arc::new(arc_swap::ArcSwap::from_pointee(stack));
        Gateway::open(listeners, None, stack, Arc::default(), Duration::from_secs(1)).expect("a thread can be started")
    }
}

/// `requests` requests, at most [`AT_ONCE`] at once.
async fn answer<S>(layers: &S, requests: u64)
where
    S: Service<Incoming<()>, Response = Reply, Error = Error, Future: Send> + Clone + Send + 'static,
{
    let left = Arc::new(AtomicU64::new(requests));
    let tasks = (0..AT_ONCE).map(|_| {
        let (left, mut layers, peer) = (left.clone(), layers.clone(), Peer::from(SocketAddr::from(([127, 0, 0, 1], 1))));
        tokio::spawn(async move {
            while left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok() {
                let http = Request::builder().header("authorization", format!("Bearer {KEY}")).body(()).expect("it is well formed");
                let record = Record::new("req_1".into(), Instant::now(), 1);
                let incoming = Incoming { http, peer: peer.clone(), record, holder: None };
                let mut reply = layers.call(incoming).await.expect("nothing is refused");
                while let Some(event) = reply.next().await {
                    event.expect("nothing fails");
                }
                reply.close(Outcome::Done).await;
            }
        })
    });
    for done in join_all(tasks.collect::<Vec<_>>()).await {
        done.expect("no task panics");
    }
}

/// A token for each byte.
fn rendering() -> Rendering {
    let mut tokens: Vec<String> = (0..256).map(|byte| format!("<0x{byte:02X}>")).collect();
    tokens.push("</s>".to_owned());
    let types = [vec![6; 256], vec![3]].concat();
    let scores = vec![0.0; tokens.len()];
    let vocabulary = Vocabulary { model: "llama".into(), tokens, types, scores, eos: Some(256), ..Vocabulary::default() };
    let text = Text::new(vocabulary, None).expect("the vocabulary is sound");
    Rendering { text: Some(Arc::new(text)), context: 4096, pool_tokens: 4096, local: true }
}

/// What all threads of this process have had of the processors.
fn processor_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is that of a live timespec.
    let failed = unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    assert_eq!(failed, 0, "this system counts processor time");
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).expect("less than a second"))
}

/// Requests a second that the connections get answered.
async fn throughput(address: SocketAddr, requests: u64) -> f64 {
    let left = Arc::new(AtomicU64::new(requests));
    let began = Instant::now();
    let tasks = (0..AT_ONCE).map(|_| {
        let left = left.clone();
        tokio::spawn(async move {
            let stream = tokio::net::TcpStream::connect(address).await.expect("it listens");
            let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.expect("it speaks HTTP");
            tokio::spawn(connection);
            while left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok() {
                let body = r#"{"model":"m","prompt":"Once upon a time, there was an accountant","max_tokens":100}"#;
                let request = Request::post("/v1/completions")
                    .header("host", "bench")
                    .header("authorization", format!("Bearer {KEY}"))
                    .header("content-type", "application/json")
                    .body(Full::new(Bytes::from_static(body.as_bytes())))
                    .expect("it is well formed");
                let response: Response<_> = sender.send_request(request).await.expect("it answers");
                assert_eq!(response.status(), 200);
                response.into_body().collect().await.expect("the body arrives");
            }
        })
    });
    for done in join_all(tasks.collect::<Vec<_>>()).await {
        done.expect("no task panics");
    }
    requests as f64 / began.elapsed().as_secs_f64()
}

fn main() {
    let is_short = !std::env::args().any(|argument| argument == "--bench"); // `cargo test` runs it to see that it still does
    let folder = tempfile::tempdir().expect("a folder can be made");
    let ledger = format!("sqlite:{}", folder.path().join("ledger.db").display());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let (on, off) = (House::open(&ledger), House::open("off"));

    let mut criterion = Criterion::default().configure_from_args();
    let mut group = criterion.benchmark_group("authenticate to settle, processor time a request");
    for (name, house) in [("SQLite", &on), ("no ledger", &off)] {
        let layers = house.layers();
        group.bench_function(name, |bencher| {
            bencher.iter_custom(|requests| {
                let before = processor_time();
                runtime.block_on(answer(&layers, requests));
                processor_time() - before
            });
        });
    }
    group.finish();

    let (with, without) = (on.serve(), off.serve());
    let (rounds, requests) = if is_short { (1, 200) } else { (7, 20_000) };
    let mut rates: [Vec<f64>; 2] = Default::default();
    for _ in 0..rounds {
        for (gateway, rates) in [&with, &without].into_iter().zip(&mut rates) {
            rates.push(runtime.block_on(throughput(gateway.address(), requests)));
        }
    }
    let mut ratios: Vec<f64> = rates[0].iter().zip(&rates[1]).map(|(with, without)| with / without).collect();
    for list in rates.iter_mut().chain([&mut ratios]) {
        list.sort_unstable_by(f64::total_cmp);
    }
    let middle = rounds / 2;
    println!(
        "over HTTP, {AT_ONCE} connections, medians of {rounds}: {:.0} requests/s with the ledger, {:.0} without",
        rates[0][middle], rates[1][middle]
    );
    println!("with / without: {:.3} ({:.3} to {:.3})", ratios[middle], ratios[0], ratios[rounds - 1]);
    with.close();
    without.close();
}
