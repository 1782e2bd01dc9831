//! What routing by cached prefixes is worth: a trace of conversations is replayed against two replicas whose devices sleep
//! for as long as a modelled GPU would work, once by the router and once by turns.
//!
//! `cargo bench --bench prefix_affinity -- --trace FILE [--speed 10] [--blocks 16384] [--rounds 2]`, with a trace in the format of
//! Mooncake's (a JSON object a line: `timestamp` in ms, `input_length`, `output_length`, `hash_ids` of 512-token blocks).
//! Lengths are divided by 16, so that a block of the trace is one of the replicas' 32 tokens. Without a trace a short one
//! is made up, which shows that the bench still runs.

#![expect(clippy::print_stdout, reason = "figures are what it is for")]

use futures_util::future::join_all;
use roundhouse::backend::Backend;
use roundhouse::call::{Call, Outcome, Prompt, Record, Route, Sampling, Task, TokenId};
use roundhouse::clock::Clock;
use roundhouse::config::{Class, Key, Model, Name, SharePrefixes, Tenant};
use roundhouse::engine::{DeviceError, Executor, Limits, Plan, Sampled, Settings, Ticket};
use roundhouse::metrics::Metrics;
use roundhouse::route::{Experiments, Renderings, Router};
use roundhouse::shard::{Parts, Shard};
use roundhouse::text::{Text, Vocabulary};
use std::collections::{BTreeMap, HashSet};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tower::Service;

const SCALE: u64 = 16;
const BLOCK: u64 = 512 / SCALE;
const REPLICAS: [&str; 2] = ["a", "b"];
/// A step of the modelled device, and each token in it.
const STEP: Duration = Duration::from_millis(1);
const TOKEN: Duration = Duration::from_micros(60);

/// A row of a trace.
#[derive(Clone, serde::Deserialize)]
struct Asked {
    timestamp: u64,
    input_length: u64,
    output_length: u64,
    hash_ids: Vec<u64>,
}

/// A device that does nothing for as long as a real one would work.
struct Sleeping {
    limits: Limits,
    drawn: usize,
    busy: Duration,
    total: Arc<AtomicU64>,
}

/// What one replay showed.
struct Shown {
    cached: u64,
    mean: Duration,
    p99: Duration,
    /// Nanoseconds that each replica was busy.
    busy: Vec<u64>,
}

// === impl Sleeping ===

impl Executor for Sleeping {
    fn limits(&self) -> Limits {
        self.limits
    }

    fn launch(&mut self, plan: &Plan) -> Result<Ticket, DeviceError> {
        self.drawn = plan.rows.iter().map(|row| row.sample as usize).sum();
        self.busy = STEP + TOKEN * plan.rows.iter().map(|row| row.count).sum();
        Ok(Ticket(0))
    }

    fn collect(&mut self, _: Ticket, into: &mut Sampled) -> Result<(), DeviceError> {
        std::thread::sleep(self.busy);
        self.total.fetch_add(self.busy.as_nanos() as u64, Relaxed);
        into.ids.clear();
        into.ids.resize(self.drawn, 97);
        into.logprobs.clear();
        into.device_time = self.busy;
        Ok(())
    }
}

// === impl Asked ===

impl Asked {
    /// Its tokens: those of a block are told by the block's id.
    fn prompt(&self) -> Vec<TokenId> {
        let tokens = self.hash_ids.iter().flat_map(|id| (0..BLOCK).map(move |at| ((id * BLOCK + at) % 1_000_003) as TokenId));
        tokens.take((self.input_length / SCALE).max(1) as usize).collect()
    }
}

fn text() -> Arc<Text> {
    let mut tokens: Vec<String> = (0..256).map(|byte| format!("<0x{byte:02X}>")).collect();
    tokens.push("</s>".to_owned());
    let types = [vec![6; 256], vec![3]].concat();
    let scores = vec![0.0; tokens.len()];
    let vocabulary = Vocabulary { model: "llama".into(), tokens, types, scores, eos: Some(256), ..Vocabulary::default() };
    Arc::new(Text::new(vocabulary, None).expect("the vocabulary is sound"))
}

fn shard(name: &str, text: &Arc<Text>, blocks: u32, busy: Arc<AtomicU64>) -> Arc<Shard> {
    let limits = Limits { blocks, block_tokens: BLOCK as u32, max_batch_tokens: 512, max_sequences: 256, max_context: 16 << 10 };
    let parts = Parts {
        name: name.into(),
        text: text.clone(),
        limits,
        settings: Settings { model: [0; 16], hash_key: [1; 32], stop_tokens: [].into() },
        share_prefixes: SharePrefixes::All,
        max_waiting: 10_000,
        stuck_after: Duration::from_secs(60),
        siblings: roundhouse::shard::Siblings::default(),
        build: Box::new(move || Ok(Box::new(Sleeping { limits, drawn: 0, busy: Duration::ZERO, total: busy }))),
        metrics: Metrics::new().shard(&name.into()),
        clock: Clock::system(),
    };
    Shard::start(parts).expect("a thread can be started")
}

fn model() -> Arc<Model> {
    Arc::new(Model {
        name: "model".into(),
        aliases: Vec::new(),
        default_max_tokens: NonZeroU32::MIN,
        prices: None,
        request_timeout: None,
        tokenizer: None,
        variants: BTreeMap::new(),
        rules: Vec::new(),
    })
}

/// Replays the trace, `speed` times as fast as it was. `among` says which replicas may take request number so and so.
async fn replay(trace: &[Asked], speed: f64, blocks: u32, among: impl Fn(usize) -> Arc<[Name]>) -> Shown {
    let text = text();
    let busy: Vec<Arc<AtomicU64>> = REPLICAS.map(|_| Arc::default()).into();
    let shards = REPLICAS.iter().zip(&busy).map(|(name, busy)| {
        let backend: Arc<dyn Backend> = shard(name, &text, blocks, busy.clone());
        (Name::from(*name), backend)
    });
    let clock = Clock::system();
    let experiments = Arc::new(Experiments::new(Metrics::new(), clock.clone()));
    let router = Router::new(Arc::new(shards.collect()), Renderings::default(), experiments, clock);
    let (model, tenant, key) = (model(), Arc::new(Tenant::new("t".into())), Arc::new(Key::new("k".into(), [0; 32])));
    let began = Instant::now();
    let asked = trace.iter().enumerate().map(|(number, asked)| {
        let at = began + Duration::from_secs_f64(asked.timestamp as f64 / 1000.0 / speed);
        let call = Call {
            record: Record::new("req".into(), at, 1),
            tenant: tenant.clone(),
            key: key.clone(),
            class: Class::Interactive,
            model: model.clone(),
            task: Task::Generate,
            asked: Arc::default(),
            messages: Arc::default(),
            prompts: [Prompt::new(asked.prompt(), text.digest())].into(),
            sampling: Arc::new(Sampling { max_tokens: (asked.output_length / SCALE).max(1) as u32, ..Sampling::default() }),
            route: Some(Route { variant: "only".into(), backends: among(number), fallback: Arc::default(), shadow: None }),
            deadline: None,
            first_by: None,
        };
        let mut router = router.clone();
        tokio::spawn(async move {
            tokio::time::sleep_until(at.into()).await;
            let asked = Instant::now();
            let mut reply = router.call(call).await.expect("nothing is refused");
            let first = asked.elapsed();
            while let Some(event) = reply.next().await {
                event.expect("nothing fails");
            }
            let cached = reply.usage().cached_tokens;
            reply.close(Outcome::Done).await;
            (first, u64::from(cached))
        })
    });
    let done = join_all(asked.collect::<Vec<_>>()).await;
    let (mut firsts, cached): (Vec<_>, Vec<_>) = done.into_iter().map(|done| done.expect("no task panics")).unzip();
    firsts.sort_unstable();
    let mean = firsts.iter().sum::<Duration>() / firsts.len() as u32;
    let busy = busy.iter().map(|busy| busy.load(Relaxed)).collect();
    Shown { cached: cached.iter().sum(), mean, p99: firsts[firsts.len() * 99 / 100], busy }
}

/// Cached tokens where one cache without bounds had everything as soon as it was asked for.
fn oracle(trace: &[Asked]) -> u64 {
    let mut seen: HashSet<u64> = HashSet::new();
    let mut cached = 0;
    for asked in trace {
        let hits = asked.hash_ids.iter().take_while(|id| seen.contains(id)).count() as u64;
        cached += hits.min(((asked.input_length / SCALE).max(1) - 1) / BLOCK) * BLOCK;
        seen.extend(&asked.hash_ids);
    }
    cached
}

/// Conversations of a few turns, each turn with all that was said before.
fn made_up() -> Vec<Asked> {
    let turn = |conversation: u64, turn: u64| Asked {
        timestamp: turn * 400 + conversation * 37,
        input_length: (1 + 2 * turn) * 512 + 100,
        output_length: 64,
        hash_ids: [0].into_iter().chain((0..=2 * turn).map(|block| 1 + conversation * 100 + block)).collect(),
    };
    (0..4).flat_map(|number| (0..6).map(move |conversation| turn(conversation, number))).collect()
}

fn argument(name: &str) -> Option<String> {
    let mut arguments = std::env::args().skip_while(|argument| argument != name);
    arguments.nth(1)
}

fn main() {
    let number = |name: &str, default: f64| argument(name).map_or(default, |text| text.parse().expect("a number"));
    let trace: Vec<Asked> = match argument("--trace") {
        Some(file) => {
            let text = std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{file}: {error}"));
            text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))).collect()
        }
        None => made_up(),
    };
    let (speed, blocks) = (number("--speed", 10.0), number("--blocks", 16_384.0) as u32);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let tokens: u64 = trace.iter().map(|asked| asked.input_length / SCALE).sum();
    let oracle = oracle(&trace);
    println!("{} requests, {tokens} prompt tokens, {blocks} blocks of {BLOCK} tokens in each of two replicas", trace.len());
    println!("oracle: {oracle} cached tokens");
    let all: Arc<[Name]> = REPLICAS.map(Name::from).into();
    for round in 0..number("--rounds", 2.0) as u32 {
        let turns = runtime.block_on(replay(&trace, speed, blocks, |number| [all[number % 2].clone()].into()));
        let routed = runtime.block_on(replay(&trace, speed, blocks, |_| all.clone()));
        for (name, shown) in [("by turns", &turns), ("routed", &routed)] {
            let (total, most): (u64, u64) = (shown.busy.iter().sum(), shown.busy.iter().copied().max().unwrap_or_default());
            println!(
                "{round} {name:9} cached {:8} ({:.3} of the oracle's)  TTFT mean {:8.1?} p99 {:8.1?}  busiest {:.1} % of {:.1} s",
                shown.cached,
                shown.cached as f64 / oracle as f64,
                shown.mean,
                shown.p99,
                100.0 * most as f64 / total as f64,
                total as f64 / 1e9
            );
        }
        let (cached, mean) = (routed.cached as f64 / turns.cached as f64, routed.mean.as_secs_f64() / turns.mean.as_secs_f64());
        println!("{round} routed / by turns: cached {cached:.3}, mean TTFT {mean:.3}");
    }
}
