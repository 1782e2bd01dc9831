//! The same weights, prompt and seed give the same tokens, whatever else is in the batch, whether the prefix was cached,
//! the prompt chunked or the sequence preempted, and on any number of threads.

mod support;

use roundhouse::config::Shard;
use roundhouse::config::{Class, Name};
use roundhouse::engine::{Engine, Party, Salt, Sampling, SeqId, Settings, Shaping, Stepped, Submission};
use roundhouse::model::load;
use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::time::Instant;

const PROMPTS: [&str; 8] = [
    "The capital of France is",
    "def fibonacci(n):\n    ",
    "Once upon a time, in a village at the foot of a mountain, there lived an old clockmaker who",
    "1, 1, 2, 3, 5, 8,",
    "Dear Sir or Madam,\n\nI am writing to complain about the",
    "Water boils at one hundred degrees Celsius at sea level, but on a high mountain, where the air is thin and the pressure low, it",
    "Q: What is the largest planet?\nA:",
    "안녕하세요, 저는",
];
const TOKENS: u32 = 16;

/// One request: which prompt, and whether it is sampled or greedy.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Request {
    prompt: usize,
    seeded: bool,
}

/// Ids, and the bits of their log-probabilities where wanted.
type Answers = BTreeMap<Request, Vec<(u32, Option<u32>)>>;

fn requests() -> Vec<Request> {
    (0..PROMPTS.len()).flat_map(|prompt| [false, true].map(|seeded| Request { prompt, seeded })).collect()
}

struct Bench {
    engine: Engine,
    prompts: Vec<Vec<u32>>,
    next: u64,
    cached: u32,
}

impl Bench {
    fn new(shard: &Shard, threads: usize) -> Self {
        let loaded = load(shard, &support::smollm2(), &support::device(threads), &support::Silent).expect("the model loads");
        // A few words of a common start make the prompts long enough to be cached and chunked.
        let start = "Continue the text below in the same style, keep to the facts, and stay brief.\n\n";
        let prompts = PROMPTS.iter().map(|prompt| loaded.text.encode(&format!("{start}{prompt}"))).collect();
        let settings = Settings { model: loaded.digest, hash_key: [7; 32], stop_tokens: loaded.text.stop_tokens().into() };
        Self { engine: Engine::new(Box::new(loaded.into_executor()), settings), prompts, next: 0, cached: 0 }
    }

    /// Runs the requests at once and returns what each drew.
    fn run(&mut self, requests: &[Request]) -> Answers {
        let mut of = BTreeMap::new();
        for &request in requests {
            let seq = SeqId(self.next);
            self.next += 1;
            of.insert(seq, request);
            let (temperature, top_p) = if request.seeded { (0.9, 0.95) } else { (0.0, 1.0) };
            let seeded = Sampling { temperature, top_p, seed: 1234 + request.prompt as u64, ..Sampling::greedy() };
            // Every second prompt with everything that can change a draw.
            let shaping =
                Shaping { bias: [(28, 3.0), (216, -5.0)].into(), repetition: 1.2, frequency: 0.4, presence: 0.3, ..Shaping::default() };
            let sampling = if request.prompt % 2 == 1 {
                Sampling { top_k: 50, min_p: 0.02, shaping: Some(Box::new(shaping)), logprobs: Some(3), ..seeded }
            } else {
                seeded
            };
            self.engine.submit(Submission {
                seq,
                prompt: self.prompts[request.prompt].clone().into(),
                output: [].into(),
                max_tokens: TOKENS,
                sampling,
                ignore_stop: false,
                score_prompt: false,
                salt: Salt([0; 16]),
                party: Party { tenant: Name::from("acme"), weight: NonZeroU32::MIN, class: Class::Interactive },
                arrived: Instant::now(),
            });
        }
        let mut answers = Answers::new();
        let mut out = Stepped::default();
        while !self.engine.is_idle() {
            self.engine.step(Instant::now(), &mut out).expect("the device works");
            self.cached += out.started.iter().map(|(_, cached)| cached).sum::<u32>();
            for (seq, id) in &out.tokens {
                let logprob = out.logprobs.iter().find(|(wanting, _)| wanting == seq).map(|(_, logprob)| logprob.logprob.to_bits());
                assert_eq!(logprob.is_some(), of[seq].prompt % 2 == 1);
                answers.entry(of[seq]).or_default().push((*id, logprob));
            }
        }
        let live = self.engine.live();
        assert_eq!(live.blocks_free + live.blocks_cached, live.blocks_total, "all blocks come back");
        answers
    }

    fn alone(&mut self) -> Answers {
        requests().into_iter().flat_map(|request| self.run(&[request])).collect()
    }
}

fn shard(chunk: u32, kv_tokens: u64) -> Shard {
    let mut shard = support::smollm2_shard();
    shard.max_batch_tokens = chunk;
    if kv_tokens < 1024 {
        // Small blocks let sequences grow block by block while others hold the rest.
        shard.kv_cache.block_tokens = NonZeroU32::new(4).expect("4 isn't 0");
    }
    // 30 layers × 3 heads × 64 × K and V × 2 bytes
    shard.kv_cache.memory = kv_tokens * 30 * 3 * 64 * 2 * 2;
    shard
}

#[test]
fn the_same_prompt_and_seed_give_the_same_tokens_in_every_circumstance() {
    let mut bench = Bench::new(&shard(512, 8192), 2);
    // The first of all runs finds nothing cached.
    let first = bench.run(&[Request { prompt: 2, seeded: true }]);
    assert_eq!(bench.cached, 0);
    let alone = bench.alone();
    assert!(bench.cached > 0, "later runs find the common start in the cache");
    assert_eq!(first[&Request { prompt: 2, seeded: true }], alone[&Request { prompt: 2, seeded: true }], "cached or not");
    assert_eq!(alone.len(), 16);
    assert!(alone.values().all(|tokens| !tokens.is_empty()));
    assert!((0..8).any(|prompt| alone[&Request { prompt, seeded: true }] != alone[&Request { prompt, seeded: false }]), "seeds matter");

    assert_eq!(bench.run(&requests()), alone, "in a batch of 16");

    let mut fresh = Bench::new(&shard(512, 8192), 2);
    assert_eq!(fresh.run(&requests()), alone, "in a batch of 16, nothing cached before");

    let mut chunked = Bench::new(&shard(16, 8192), 2);
    assert_eq!(chunked.run(&requests()), alone, "in chunks of 16");

    // 120 tokens hold about three of the sixteen sequences: the rest wait, and what is admitted outgrows the pool.
    let mut tight = Bench::new(&shard(512, 120), 2);
    assert_eq!(tight.run(&requests()), alone, "preempted");
    assert!(tight.engine.live().preemptions > 0, "the pool was tight enough");

    let mut single = Bench::new(&shard(512, 8192), 1);
    assert_eq!(single.run(&requests()), alone, "on one thread");
    let mut single_chunked = Bench::new(&shard(16, 120), 1);
    assert_eq!(single_chunked.run(&requests()), alone, "on one thread, in chunks, preempted");
}
