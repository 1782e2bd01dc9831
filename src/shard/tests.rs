#![expect(clippy::unwrap_used, reason = "a test may stop at a surprise")]

use super::*;
use crate::backend::{Backend, State};
use crate::call::{Call, Error, Event, Finish, Outcome, Prompt, Record, Reply, Sampling, Task, TokenId, Usage};
use crate::clock::{Clock, Hand};
use crate::config::{Key, Model, SharePrefixes, Tenant};
use crate::engine::fake::Fake;
use crate::engine::{Limits, Settings};
use crate::metrics::Metrics;
use crate::model::gguf::{Gguf, chat_template, vocabulary};
use crate::text::Text;
use crate::tiny_model::{self, TinyModel};
use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

const LIMITS: Limits = Limits { blocks: 64, block_tokens: 16, max_batch_tokens: 32, max_sequences: 8, max_context: 512 };
const STUCK_AFTER: Duration = Duration::from_secs(30);
/// How fast the fake device draws doesn't matter; that it draws the letters of this text does.
const SAID: &str = "abcdefghijklmnopqrstuvwxyz";

/// A shard on a fake device.
struct Bench {
    shard: Arc<Shard>,
    metrics: Metrics,
    hand: Hand,
    text: Arc<Text>,
}

impl Bench {
    fn start(max_waiting: u32, fake: impl FnOnce(Fake) -> Fake + Send + 'static) -> Self {
        let text = text();
        let (clock, hand) = Clock::manual(Duration::ZERO);
        let metrics = Metrics::new();
        let shard = Shard::start(Parts {
            name: "smol".into(),
            text: text.clone(),
            limits: LIMITS,
            settings: Settings { model: [0; 16], hash_key: [1; 32], stop_tokens: [].into() },
            share_prefixes: SharePrefixes::Tenant,
            max_waiting,
            stuck_after: STUCK_AFTER,
            siblings: Siblings::default(),
            build: Box::new(move || Ok(Box::new(fake(Fake::new(LIMITS))))),
            metrics: metrics.shard(&"smol".into()),
            clock,
        });
        Self { shard: shard.unwrap(), metrics, hand, text }
    }

    /// One that says the alphabet over and over.
    fn spelling(fake: impl FnOnce(Fake) -> Fake + Send + 'static) -> Self {
        let letters = text().encode(SAID);
        Self::start(100, move |bare| fake(bare.answering(move |draw| letters.get(draw.output.len() % letters.len()).copied())))
    }

    fn call(&self, tenant: &str, prompt: usize, sampling: Sampling) -> Call {
        let model = Model {
            name: "smol".into(),
            aliases: Vec::new(),
            default_max_tokens: NonZeroU32::MIN,
            prices: None,
            request_timeout: None,
            tokenizer: None,
            variants: BTreeMap::new(),
            rules: Vec::new(),
        };
        let ids: Vec<TokenId> = (0..prompt).map(|position| (position % 64) as TokenId).collect();
        Call {
            record: Record::new("req_1".into(), Instant::now(), 1),
            tenant: Arc::new(Tenant::new(tenant.into())),
            class: crate::config::Class::Interactive,
            key: Arc::new(Key::new("ci".into(), [0; 32])),
            model: Arc::new(model),
            task: Task::Generate,
            asked: Arc::default(),
            messages: Arc::default(),
            prompts: [Prompt::new(ids, self.text.digest())].into(),
            sampling: Arc::new(sampling),
            route: None,
            deadline: None,
            first_by: None,
        }
    }

    /// Nanoseconds the device was busy, by the metrics, once the shard has nothing to do any more.
    async fn busy(&self) -> u128 {
        self.idle().await;
        let page = self.metrics.render();
        let line = page.lines().find_map(|line| line.strip_prefix("roundhouse_device_busy_seconds_total{shard=\"smol\"} "));
        (line.unwrap().parse::<f64>().unwrap() * 1e9).round() as u128
    }

    /// Waits until nothing runs or waits; then every block is free.
    async fn idle(&self) {
        while self.shard.sequences() != (0, 0) {
            tokio::task::yield_now().await;
        }
        let (unused, all) = self.shard.blocks();
        assert_eq!(unused, all);
    }
}

fn text() -> Arc<Text> {
    let gguf = Gguf::open(&tiny_model::file(TinyModel::default())).unwrap();
    Arc::new(Text::new(vocabulary(&gguf).unwrap(), chat_template(&gguf).unwrap()).unwrap())
}

/// Waits for leave to run one step; a closed gate lets everything run.
fn wait(gate: &Mutex<mpsc::Receiver<()>>) {
    let _ = gate.lock().unwrap().recv();
}

fn sampling(n: u32, max_tokens: u32, stop: &[&str]) -> Sampling {
    let stop = stop.iter().map(ToString::to_string).collect();
    Sampling { n, max_tokens, temperature: 0.0, stop, ..Sampling::default() }
}

/// Everything a reply says.
async fn read(mut reply: Reply) -> Result<(String, Vec<Finish>, Usage), Error> {
    let (mut said, mut ends) = (String::new(), Vec::new());
    while let Some(event) = reply.next().await {
        match event? {
            Event::Text { text, .. } => said.push_str(&text),
            Event::Finish { reason, .. } => ends.push(reason),
            Event::Echo { .. } | Event::Other { .. } | Event::Usage(_) => {}
        }
    }
    let usage = reply.usage();
    reply.close(Outcome::Done).await;
    Ok((said, ends, usage))
}

#[tokio::test]
async fn the_device_time_of_all_requests_is_the_shard_s_busy_time_also_where_stop_strings_end_them() {
    let bench = Bench::spelling(|fake| fake);
    let asked =
        [(40, sampling(1, 20, &[])), (3, sampling(2, 50, &["fgh"])), (70, sampling(1, 26, &["z"])), (9, sampling(3, 40, &["c", "xyz"]))];
    let replies: Vec<_> = asked.into_iter().map(|(prompt, sampling)| bench.shard.call(bench.call("acme", prompt, sampling))).collect();
    let mut total = 0;
    for reply in replies {
        let (_, _, usage) = read(reply.await.unwrap()).await.unwrap();
        assert!(!usage.device_time.is_zero());
        total += usage.device_time.as_nanos();
    }
    assert_eq!(bench.busy().await, total);
}

#[tokio::test]
async fn a_request_that_is_cut_is_charged_with_all_but_the_step_it_was_cut_in() {
    let (gate, gated) = mpsc::channel::<()>();
    let gated = Mutex::new(gated);
    let bench = Bench::spelling(move |fake| fake.observed(move |_| wait(&gated)));
    let call = bench.call("acme", 100, sampling(1, 400, &[]));
    let record = call.record.clone();
    let calling = bench.shard.call(call);
    for _ in 0..6 {
        gate.send(()).unwrap(); // four of a prompt of 100 tokens, two more
    }
    let mut reply = calling.await.unwrap();
    while !matches!(reply.next().await, Some(Ok(Event::Text { .. }))) {}
    while !matches!(reply.next().await, Some(Ok(Event::Text { .. }))) {}
    assert!(!matches!(record.lock().usage, Usage { completion_tokens: 1.., .. }), "only what the meter counts is in the record");
    drop(reply); // in the seventh step
    drop(gate);
    let charged = record.lock().usage.device_time.as_nanos();
    let last = 1_000_000 + 10_000 + 10 * 107; // a step, a token, its keys: what the fake device says a step takes
    let busy = bench.busy().await;
    assert!(busy - charged <= last + 10, "{charged} of {busy}");
    assert!(charged >= 6_000_000, "{charged}");
}

#[tokio::test]
async fn one_request_that_is_cut_before_its_first_token_is_charged_with_its_prompt() {
    let (gate, gated) = mpsc::channel::<()>();
    let gated = Mutex::new(gated);
    let (seen, planned) = mpsc::channel();
    let bench = Bench::spelling(move |fake| {
        fake.observed(move |_| {
            seen.send(()).unwrap();
            wait(&gated);
        })
    });
    let call = bench.call("acme", 100, sampling(1, 400, &[]));
    let record = call.record.clone();
    let calling = bench.shard.call(call);
    gate.send(()).unwrap();
    gate.send(()).unwrap();
    for _ in 0..3 {
        planned.recv().unwrap();
    }
    drop(calling);
    assert!(record.lock().usage.device_time >= Duration::from_millis(2));
    drop(planned);
}

#[tokio::test]
async fn what_waits_for_a_slow_reader_is_bounded_by_its_output_and_holds_no_block() {
    let bench = Bench::spelling(|fake| fake);
    let mut reply = bench.shard.call(bench.call("acme", 5, sampling(2, 100, &[]))).await.unwrap();
    bench.idle().await; // though nobody has read anything
    let mut events = 0;
    while let Some(event) = reply.next().await {
        event.unwrap();
        events += 1;
    }
    assert_eq!(reply.usage().completion_tokens, 200);
    assert!((200..=200 + 2 * 2 + 2).contains(&events), "{events}: one a token, two at each choice's end, usage before and after");
}

#[tokio::test]
async fn one_request_that_overflows_its_context_ends_alone() {
    let bench = Bench::spelling(|fake| fake);
    // The door refuses it; here somebody forgot to ask.
    let too_long = bench.call("acme", 500, sampling(1, 400, &[]));
    assert!(matches!(bench.shard.supports(&too_long), Err(Error::ContextLength { limit: 512, .. })));
    let far_too_long = bench.call("acme", 600, sampling(1, 4, &[]));
    let others = bench.call("acme", 20, sampling(4, 50, &[]));
    let replies = [too_long, far_too_long, others].map(|call| bench.shard.call(call));
    let [too_long, far_too_long, others] = replies;
    let (_, ends, usage) = read(too_long.await.unwrap()).await.unwrap();
    assert_eq!((ends, usage.completion_tokens), (vec![Finish::Length], 12));
    let (_, ends, usage) = read(far_too_long.await.unwrap()).await.unwrap();
    assert_eq!((ends, usage.completion_tokens), (vec![Finish::Length], 0));
    let (_, ends, usage) = read(others.await.unwrap()).await.unwrap();
    assert_eq!((ends, usage.completion_tokens), (vec![Finish::Length; 4], 200));
    assert_eq!(bench.shard.state(), State::Ready);
    bench.idle().await;
}

#[tokio::test]
async fn a_request_larger_than_the_kv_pool_is_refused_at_the_door() {
    let bench = Bench::spelling(|fake| fake);
    assert_eq!(bench.shard.pool_tokens().min(bench.shard.context()), 512);
    assert!(bench.shard.supports(&bench.call("acme", 500, sampling(1, 12, &[]))).is_ok());
    let refused = bench.shard.supports(&bench.call("acme", 500, sampling(1, 13, &[])));
    assert_eq!(refused, Err(Error::ContextLength { param: "prompt", limit: 512, prompt_tokens: 500, max_tokens: Some(13) }));
}

#[tokio::test]
async fn a_full_queue_refuses_and_says_when_to_come_back() {
    let (gate, gated) = mpsc::channel::<()>();
    let gated = Mutex::new(gated);
    let bench = Bench::start(3, move |fake| fake.observed(move |_| wait(&gated)));
    let ask = |tenant| bench.call(tenant, 5, sampling(1, 8, &[]));
    let (first, second) = (bench.shard.call(ask("acme")), bench.shard.call(bench.call("acme", 5, sampling(2, 8, &[]))));
    assert!(bench.shard.offer(&ask("acme")).room_in > Duration::ZERO);
    let Err(Error::Overloaded { retry_after, .. }) = bench.shard.call(ask("acme")).await else { panic!("it is full") };
    assert!(retry_after > Duration::ZERO);
    assert_eq!(bench.shard.offer(&ask("other")).room_in, Duration::ZERO, "whoever has nothing waiting gets in");
    drop(gate);
    for reply in [first, second] {
        read(reply.await.unwrap()).await.unwrap();
    }
    bench.idle().await;
    assert_eq!(bench.shard.offer(&ask("acme")).room_in, Duration::ZERO);
    read(bench.shard.call(ask("acme")).await.unwrap()).await.unwrap();
}

#[tokio::test]
async fn nothing_runs_and_others_wait_and_the_shard_says_so() {
    let (gate, gated) = mpsc::channel::<()>();
    let gated = Mutex::new(gated);
    let bench = Bench::spelling(move |fake| fake.observed(move |_| wait(&gated)));
    bench.hand.advance(STUCK_AFTER * 2);
    assert_eq!(bench.shard.state(), State::Ready, "nothing to do is nothing to be stuck with");
    let calls: Vec<_> = (0..5).map(|_| bench.shard.call(bench.call("acme", 5, sampling(1, 8, &[])))).collect();
    bench.hand.advance(STUCK_AFTER / 2);
    assert_eq!(bench.shard.state(), State::Ready);
    bench.hand.advance(STUCK_AFTER / 2);
    assert_eq!(bench.shard.state(), State::Stuck);
    drop(gate);
    for call in calls {
        read(call.await.unwrap()).await.unwrap();
    }
    assert_eq!(bench.shard.state(), State::Ready);
}

#[tokio::test]
async fn no_request_hangs_when_its_shard_panics() {
    let mut steps = 0;
    let bench = Bench::start(100, move |fake| {
        fake.observed(move |_| {
            steps += 1;
            assert!(steps < 4, "the device's driver is broken, as this test wants it");
        })
    });
    let begun = bench.shard.call(bench.call("acme", 5, sampling(1, 100, &[])));
    let mut begun = begun.await.unwrap();
    let lost = Error::ShardLost { backend: "smol".into() };
    loop {
        match begun.next().await.expect("it doesn't end as if it were whole") {
            Ok(_) => {}
            Err(error) => break assert_eq!(error, lost),
        }
    }
    assert_eq!(begun.next().await, None);
    assert_eq!(bench.shard.state(), State::Lost);
    let late = bench.shard.call(bench.call("acme", 5, sampling(1, 100, &[]))).await;
    assert_eq!(late.map(drop), Err(lost));
    bench.idle().await; // and what it held is nobody's any more
}

#[tokio::test]
async fn an_offer_says_what_of_the_prompt_is_cached_for_this_tenant_and_costs_the_rest() {
    let bench = Bench::spelling(|fake| fake);
    let asked = || bench.call("acme", 200, sampling(1, 5, &[]));
    let cold = bench.shard.offer(&asked());
    assert_eq!((cold.cached_tokens, cold.in_flight), (Some(0), 0));
    read(bench.shard.call(asked()).await.unwrap()).await.unwrap();
    bench.idle().await;
    let warm = bench.shard.offer(&asked());
    assert_eq!(warm.cached_tokens, Some(192), "the last token is in the thirteenth block");
    let other = bench.shard.offer(&bench.call("other", 200, sampling(1, 5, &[])));
    assert!(other.cached_tokens == Some(0) && other.prefill_time > warm.prefill_time, "{other:?} {warm:?}");
    let echoed = Sampling { echo: true, logprobs: Some(1), ..sampling(1, 5, &[]) };
    assert_eq!(bench.shard.offer(&bench.call("acme", 200, echoed)).cached_tokens, Some(0), "all of it is computed");
    let (_, _, usage) = read(bench.shard.call(asked()).await.unwrap()).await.unwrap();
    assert_eq!(usage.cached_tokens, 192);
}
