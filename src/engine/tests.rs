//! What the engine promises, on the fake device: it draws other tokens as soon as paging, caching or chunking goes wrong.
#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use super::fake::{Cost, Fake};
use super::*;
use crate::call::{Finish, TokenId};
use crate::config::Class;
use proptest::prelude::*;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

mod fairness;

/// Above the fake's hashed tokens, so that nothing stops by chance unless a test wants it.
const STOP: TokenId = 256;
const STOPS: u32 = 16;
const ROOMY: Limits = Limits { blocks: 512, block_tokens: 16, max_batch_tokens: 512, max_sequences: 64, max_context: 4096 };

/// What a client got of one sequence.
#[derive(Clone, Debug, Default, PartialEq)]
struct Answer {
    tokens: Vec<TokenId>,
    cached: u32,
    reason: Option<Finish>,
}

/// An engine on a fake device, with all its plans and answers. It checks after every step what has to hold always.
struct Bench {
    engine: Engine,
    plans: Rc<RefCell<Vec<Plan>>>,
    answers: BTreeMap<SeqId, Answer>,
    busy: Duration,
    shares: BTreeMap<SeqId, Duration>,
    epoch: Instant,
    /// What time it is, after the epoch.
    now: Duration,
    stepped: Stepped,
}

impl Bench {
    fn new(limits: Limits) -> Self {
        Self::on(Fake::new(limits), [2; 16])
    }

    /// A bench whose sequences stop by themselves now and then.
    fn stopping(limits: Limits) -> Self {
        Self::on(Fake::new(limits).vocabulary(STOP + STOPS), [2; 16])
    }

    fn on(fake: Fake, model: [u8; 16]) -> Self {
        let plans = Rc::new(RefCell::new(Vec::new()));
        let seen = plans.clone();
        let fake = fake.observed(move |plan| seen.borrow_mut().push(plan.clone()));
        let settings = Settings { model, hash_key: [1; 32], stop_tokens: (STOP..STOP + STOPS).collect() };
        Self {
            engine: Engine::new(Box::new(fake), settings),
            plans,
            answers: BTreeMap::new(),
            busy: Duration::ZERO,
            shares: BTreeMap::new(),
            epoch: Instant::now(),
            now: Duration::ZERO,
            stepped: Stepped::default(),
        }
    }

    /// Submits `ask` as sequence `seq`; arrivals are in the order of `seq`.
    fn submit(&mut self, seq: u64, ask: &Ask) {
        let Ask { prompt, max_tokens, temperature, choice, salt, party } = ask.clone();
        let sampling = Self::sampling(temperature, choice);
        let arrived = self.epoch + self.now + Duration::from_millis(seq);
        let (seq, salt) = (SeqId(seq), Salt([salt; 16]));
        self.engine.submit(Submission {
            seq,
            prompt: prompt.into(),
            output: [].into(),
            max_tokens,
            sampling,
            ignore_stop: false,
            score_prompt: false,
            salt,
            party,
            arrived,
        });
        self.answers.insert(seq, Answer::default());
    }

    fn sampling(temperature: f32, choice: u32) -> Sampling {
        Sampling { temperature, seed: 42, choice, ..Sampling::greedy() }
    }

    fn cancel(&mut self, seq: u64) {
        self.engine.cancel(SeqId(seq));
        self.answers.remove(&SeqId(seq));
    }

    /// One step; returns what it did.
    fn step(&mut self) -> &Stepped {
        self.engine.step(self.epoch + self.now, &mut self.stepped).unwrap();
        let stepped = &self.stepped;
        for (seq, cached) in &stepped.started {
            self.answers.get_mut(seq).expect("only who was asked for starts").cached = *cached;
        }
        for (seq, token) in &stepped.tokens {
            self.answers.get_mut(seq).expect("only who was asked for draws").tokens.push(*token);
        }
        for end in &stepped.ended {
            let answer = self.answers.get_mut(&end.seq).expect("only who was asked for ends");
            assert_eq!(answer.reason.replace(end.reason), None, "{:?} ended twice", end.seq);
        }
        for (seq, share) in &stepped.device_times {
            *self.shares.entry(*seq).or_default() += *share;
        }
        self.busy += stepped.device_time;
        assert_eq!(stepped.device_times.iter().map(|(_, share)| *share).sum::<Duration>(), stepped.device_time);
        let live = self.engine.live();
        assert_eq!(live.blocks_used + live.blocks_cached + live.blocks_free, live.blocks_total);
        stepped
    }

    /// Steps until nothing is left to do; every step gets somewhere, and nothing is held afterwards.
    fn finish(&mut self) {
        while !self.engine.is_idle() {
            let stepped = self.step();
            assert!(stepped.batch_tokens > 0 || !stepped.ended.is_empty(), "a step without progress: {:?}", self.engine.live());
        }
        let live = self.engine.live();
        assert_eq!(live.blocks_cached + live.blocks_free, live.blocks_total, "blocks are lost: {live:?}");
        assert_eq!((live.running, live.waiting, live.waiting_tokens), (0, 0, 0));
        for (seq, answer) in &self.answers {
            assert!(answer.reason.is_some(), "{seq:?} never ended");
        }
        assert_eq!(self.shares.values().sum::<Duration>(), self.busy);
    }

    fn answer(&self, seq: u64) -> &Answer {
        &self.answers[&SeqId(seq)]
    }

    fn last_plan(&self) -> Plan {
        self.plans.borrow().last().unwrap().clone()
    }

    /// Positions computed so far, over all plans.
    fn computed(&self) -> u32 {
        self.plans.borrow().iter().flat_map(|plan| &plan.rows).map(|row| row.count).sum()
    }
}

/// What a client asks for.
#[derive(Clone, Debug, PartialEq)]
struct Ask {
    prompt: Vec<TokenId>,
    max_tokens: u32,
    temperature: f32,
    choice: u32,
    salt: u8,
    party: Party,
}

impl Ask {
    fn new(prompt: impl IntoIterator<Item = TokenId>, max_tokens: u32) -> Self {
        Self {
            prompt: prompt.into_iter().collect(),
            max_tokens,
            temperature: 0.0,
            choice: 0,
            salt: 0,
            party: party_of("acme", 1, Class::Interactive),
        }
    }

    /// Tokens and reason of this alone on a roomy engine with an empty cache.
    fn alone(&self) -> (Vec<TokenId>, Option<Finish>) {
        self.alone_on(Bench::new(ROOMY))
    }

    fn alone_on(&self, mut bench: Bench) -> (Vec<TokenId>, Option<Finish>) {
        bench.submit(0, self);
        bench.finish();
        (bench.answer(0).tokens.clone(), bench.answer(0).reason)
    }
}

fn party_of(tenant: &str, weight: u32, class: Class) -> Party {
    Party { tenant: tenant.into(), weight: weight.try_into().unwrap(), class }
}

fn prompt(seed: u32, len: u32) -> Vec<TokenId> {
    (0..len).map(|index| 1000 + seed * 10_000 + index).collect()
}

fn given(answer: &Answer) -> (Vec<TokenId>, Option<Finish>) {
    (answer.tokens.clone(), answer.reason)
}

// --- The same answer, whatever else happens ---

fn asks() -> Vec<Ask> {
    let greedy = (0..8).map(|index| Ask::new(prompt(index, 20 + 13 * index), 40));
    greedy.clone().chain(greedy.map(|ask| Ask { temperature: 0.8, ..ask })).collect()
}

fn together(limits: Limits, asks: &[Ask]) -> Bench {
    let mut bench = Bench::new(limits);
    for (seq, ask) in asks.iter().enumerate() {
        bench.submit(seq as u64, ask);
    }
    bench.finish();
    for (seq, ask) in asks.iter().enumerate() {
        assert_eq!(given(bench.answer(seq as u64)), ask.alone(), "sequence {seq} under {limits:?}");
    }
    bench
}

#[test]
fn the_answer_is_the_same_alone_and_in_a_batch_of_sixteen() {
    let bench = together(ROOMY, &asks());
    assert_eq!(bench.plans.borrow().iter().map(|plan| plan.rows.len()).max(), Some(16));
    let answers: Vec<_> = asks().iter().map(Ask::alone).collect();
    assert!((0..8).all(|index| answers[index] != answers[index + 8]), "greedy and seeded draws differ");
}

#[test]
fn the_answer_is_the_same_in_chunks_of_any_size() {
    for max_batch_tokens in [1, 2, 3, 16, 17, 32, 100] {
        together(Limits { max_batch_tokens, ..ROOMY }, &asks());
    }
}

#[test]
fn the_answer_is_the_same_after_preemptions() {
    let bench = together(Limits { blocks: 44, block_tokens: 4, ..ROOMY }, &asks());
    assert!(bench.engine.live().preemptions > 3, "{:?}", bench.engine.live());
}

#[test]
fn the_answer_is_the_same_with_a_cached_prefix() {
    let mut bench = Bench::new(ROOMY);
    for round in 0..3 {
        for (index, ask) in asks().iter().enumerate() {
            let seq = round * 16 + index as u64;
            bench.submit(seq, ask);
            bench.finish();
            assert_eq!(given(bench.answer(seq)), ask.alone());
            // The last token is always computed again, so a prompt of whole blocks misses its last one.
            let hit = (ask.prompt.len() as u32 - 1) / 16 * 16;
            assert_eq!(bench.answer(seq).cached, if round == 0 && index < 8 { 0 } else { hit });
        }
    }
}

#[derive(Clone, Debug)]
struct Visit {
    ask: Ask,
    submitted: usize,
    cancelled: Option<usize>,
}

fn visits(most: u32) -> impl Strategy<Value = Vec<Visit>> {
    // Prompts over two tokens, so that many begin alike.
    let party = (prop::sample::select(vec!["a", "b", "c"]), 1..5u32, prop::sample::select(vec![Class::Interactive, Class::Batch]));
    let party = party.prop_map(|(tenant, weight, class)| party_of(tenant, weight, class));
    let ask = (prop::collection::vec(1..3u32, 1..most as usize), 1..40u32, any::<bool>(), 0..2u32, 0..2u8, party);
    let visit = (ask, 0..40usize, prop::option::weighted(0.2, 0..40usize)).prop_map(
        move |((mut prompt, max_tokens, seeded, choice, salt, party), submitted, cancelled)| {
            let half = prompt.len() / 2;
            prompt[..half].fill(1);
            let max_tokens = max_tokens.min(most - prompt.len() as u32);
            let ask = Ask { prompt, max_tokens, temperature: if seeded { 1.0 } else { 0.0 }, choice, salt, party };
            Visit { ask, submitted, cancelled: cancelled.map(|after| submitted + after) }
        },
    );
    prop::collection::vec(visit, 1..24)
}

fn workload() -> impl Strategy<Value = (Limits, Vec<Visit>)> {
    (1..24u32, prop::sample::select(vec![1u32, 2, 4, 16]), 1..48u32, 1..12u32).prop_flat_map(
        |(blocks, block_tokens, max_batch_tokens, max_sequences)| {
            let blocks = blocks.max(2_u32.div_ceil(block_tokens));
            let limits = Limits { blocks, block_tokens, max_batch_tokens, max_sequences, max_context: 256 };
            (Just(limits), visits((blocks * block_tokens).min(100)))
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_comes_and_goes_every_answer_is_the_one_it_gets_alone((limits, visits) in workload()) {
        let mut bench = Bench::stopping(limits);
        for step in 0..=80 {
            for (seq, visit) in visits.iter().enumerate() {
                if visit.submitted == step {
                    bench.submit(seq as u64, &visit.ask);
                }
                if visit.cancelled == Some(step) {
                    bench.cancel(seq as u64);
                }
            }
            let before = bench.plans.borrow().len();
            bench.step();
            let plans = bench.plans.borrow();
            for row in plans[before..].iter().flat_map(|plan| &plan.rows) {
                let cancelled = visits[row.seq.0 as usize].cancelled;
                prop_assert!(cancelled.is_none_or(|cancelled| cancelled > step), "{:?} runs on after it was cancelled", row.seq);
            }
        }
        bench.finish();
        for (seq, answer) in &bench.answers {
            prop_assert_eq!(given(answer), visits[seq.0 as usize].ask.alone_on(Bench::stopping(ROOMY)));
        }
        prop_assert!(bench.engine.live().preemptions <= 2 * visits.len() as u64);
    }
}

// --- How a sequence ends ---

#[test]
fn a_stop_token_ends_a_sequence_and_is_not_part_of_it() {
    let mut bench = Bench::on(Fake::new(ROOMY).saying(vec![10, 11, STOP]), [2; 16]);
    bench.submit(0, &Ask::new([1, 2, 3], 10));
    bench.submit(1, &Ask::new([4], 2));
    bench.finish();
    assert_eq!(given(bench.answer(0)), (vec![10, 11], Some(Finish::Stop)));
    assert_eq!(given(bench.answer(1)), (vec![10, 11], Some(Finish::Length)));
}

#[test]
fn a_sequence_ends_where_the_context_or_the_pool_does() {
    for limits in [Limits { max_context: 32, ..ROOMY }, Limits { blocks: 2, ..ROOMY }] {
        let mut bench = Bench::new(limits);
        bench.submit(0, &Ask::new(prompt(0, 30), u32::MAX));
        bench.submit(1, &Ask::new(prompt(1, 31), 1));
        bench.submit(2, &Ask::new(prompt(2, 32), 1));
        bench.submit(3, &Ask::new([], 1));
        bench.submit(4, &Ask::new([1], 0));
        bench.finish();
        assert_eq!((0..5).map(|seq| bench.answer(seq).tokens.len()).collect::<Vec<_>>(), [2, 1, 0, 0, 0]);
        assert!((0..5).all(|seq| bench.answer(seq).reason == Some(Finish::Length)));
    }
}

#[test]
fn choices_of_one_seed_differ_and_share_the_prompt() {
    let mut bench = Bench::new(ROOMY);
    let ask = Ask { temperature: 1.0, ..Ask::new(prompt(0, 100), 10) };
    for choice in 0..4 {
        bench.submit(choice.into(), &Ask { choice, ..ask.clone() });
    }
    bench.finish();
    let outputs: std::collections::BTreeSet<_> = bench.answers.values().map(|answer| answer.tokens.clone()).collect();
    assert_eq!(outputs.len(), 4);
    // The first computes the prompt, the others wait for its 96 tokens in whole blocks.
    assert_eq!((0..4).map(|seq| bench.answer(seq).cached).collect::<Vec<_>>(), [0, 96, 96, 96]);
    assert_eq!(bench.computed(), 100 + 3 * 4 + 4 * 9);
}

#[test]
fn a_cancelled_sequence_has_no_row_in_the_next_step_and_its_blocks_are_free_at_once() {
    let mut bench = Bench::new(Limits { max_batch_tokens: 64, ..ROOMY });
    bench.submit(0, &Ask::new(prompt(0, 40), 100));
    bench.submit(1, &Ask::new(prompt(1, 300), 100));
    bench.submit(2, &Ask::new(prompt(2, 300), 100));
    bench.step();
    bench.step();
    assert_eq!((bench.engine.live().running, bench.engine.live().waiting), (2, 1));
    bench.cancel(0);
    bench.cancel(1);
    bench.cancel(2);
    bench.cancel(2);
    assert!(bench.engine.is_idle());
    assert_eq!(bench.engine.live().blocks_used, 0);
    let launches = bench.plans.borrow().len();
    assert_eq!(bench.step(), &Stepped::default());
    assert_eq!(bench.plans.borrow().len(), launches, "nothing to do, nothing launched");
    bench.submit(3, &Ask::new([1], 1));
    bench.step();
    assert_eq!(bench.last_plan().ended, [SeqId(0), SeqId(1)]);
    bench.finish();
}

#[test]
fn a_failing_device_is_an_error_of_the_step() {
    let mut bench = Bench::on(Fake::new(ROOMY).failing_at(1), [2; 16]);
    bench.submit(0, &Ask::new([1, 2, 3], 10));
    bench.step();
    assert!(bench.engine.step(bench.epoch, &mut Stepped::default()).is_err());
}

// --- Who goes when ---

#[test]
fn a_long_prefill_does_not_starve_decode() {
    let mut bench = Bench::new(Limits { max_batch_tokens: 64, ..ROOMY });
    for seq in 0..8 {
        bench.submit(seq, &Ask::new(prompt(seq as u32, 4), 200));
    }
    bench.step();
    bench.submit(8, &Ask::new(prompt(8, 2000), 1));
    while bench.answer(8).reason.is_none() {
        let drawing: Vec<u64> = (0..8).filter(|seq| bench.answer(*seq).reason.is_none()).collect();
        let stepped = bench.step().clone();
        assert!(drawing.iter().all(|seq| stepped.device_times.iter().any(|(other, _)| other.0 == *seq)), "{stepped:?}");
        assert!(stepped.batch_tokens <= 64);
    }
}

#[test]
fn many_decodes_do_not_starve_a_prefill() {
    let mut bench = Bench::new(Limits { max_batch_tokens: 16, ..ROOMY });
    for seq in 0..12 {
        bench.submit(seq, &Ask::new(prompt(seq as u32, 1), 300));
    }
    bench.submit(12, &Ask::new(prompt(12, 400), 1));
    bench.cancel(11);
    for _ in 0..3 {
        bench.step();
    }
    // Eight run, half the budget; as soon as one of them makes place the prompt gets what they leave.
    assert_eq!(bench.engine.live().running, 8);
    for seq in [0, 1, 2, 3] {
        bench.cancel(seq);
    }
    let mut steps = 0;
    while bench.answer(12).reason.is_none() {
        bench.step();
        steps += 1;
    }
    assert!(steps <= 400 / 8 + 2, "{steps} steps");
}

#[test]
fn a_request_larger_than_what_is_free_waits_and_then_runs() {
    let mut bench = Bench::new(Limits { blocks: 8, ..ROOMY });
    bench.submit(0, &Ask::new(prompt(0, 60), 40));
    bench.step();
    bench.submit(1, &Ask::new(prompt(1, 120), 8));
    bench.submit(2, &Ask::new(prompt(2, 1), 1));
    bench.step();
    let live = bench.engine.live();
    assert_eq!((live.running, live.waiting, live.preemptions), (1, 1, 0), "a short one may overtake the large one");
    bench.now = Duration::from_secs(3);
    bench.submit(3, &Ask::new(prompt(3, 1), 1));
    bench.step();
    let live = bench.engine.live();
    assert_eq!((live.running, live.waiting, live.preemptions), (1, 2, 0), "but not for ever");
    bench.finish();
    assert_eq!(bench.answer(1).tokens.len(), 8);
}

#[test]
fn nothing_is_admitted_and_then_preempted_in_circles() {
    // One after the other ends and makes place for the last, and the others grow into it again.
    let limits = Limits { blocks: 64, block_tokens: 1, ..ROOMY };
    let asks: Vec<_> = (0..8).map(|seq| Ask::new(prompt(seq, 3), if seq == 7 { 60 } else { 8 + 7 * seq })).collect();
    let bench = together(limits, &asks);
    let plans = bench.plans.borrow();
    let starts = |seq| plans.iter().flat_map(|plan| &plan.started).filter(|start| start.seq.0 == seq).count();
    assert_eq!((0..8).map(starts).max(), Some(3), "started once and preempted twice");
    assert_eq!(bench.engine.live().preemptions, (0..8).map(|seq| starts(seq) as u64 - 1).sum::<u64>());
}

#[test]
fn a_preempted_sequence_is_ended_and_started_anew_on_the_device_and_its_client_sees_nothing() {
    let limits = Limits { blocks: 6, max_batch_tokens: 64, ..ROOMY };
    let mut bench = Bench::new(limits);
    bench.submit(0, &Ask::new(prompt(0, 30), 50));
    bench.submit(1, &Ask::new(prompt(1, 30), 50));
    let mut starts = 0;
    while !bench.engine.is_idle() {
        starts += bench.step().started.len();
    }
    assert_eq!(starts, 2);
    assert_eq!(bench.engine.live().preemptions, 1);
    let plans = bench.plans.borrow();
    let events: Vec<_> = plans
        .iter()
        .flat_map(|plan| plan.ended.iter().map(|seq| (seq.0, "ended")).chain(plan.started.iter().map(|start| (start.seq.0, "started"))))
        .collect();
    assert_eq!(events, [(0, "started"), (1, "started"), (1, "ended"), (0, "ended"), (1, "started")]);
    let again = plans.iter().rev().find(|plan| plan.started.iter().any(|start| start.seq.0 == 1)).unwrap();
    assert!(matches!(again.rows[0].input, Input::Known(_)), "its tokens are computed again: {:?}", again.rows[0]);
}

#[test]
fn the_token_drawn_last_stays_on_the_device() {
    let mut bench = Bench::new(ROOMY);
    bench.submit(0, &Ask::new(prompt(0, 5), 3));
    bench.finish();
    let plans = bench.plans.borrow();
    let inputs: Vec<_> = plans.iter().flat_map(|plan| &plan.rows).map(|row| (row.start, row.count, row.input.clone())).collect();
    assert_eq!(inputs, [(0, 5, Input::Known(0..5)), (5, 1, Input::Sampled), (6, 1, Input::Sampled)]);
}

#[test]
fn the_queue_says_how_much_and_how_long_it_waits() {
    let mut bench = Bench::new(Limits { max_sequences: 1, ..ROOMY });
    bench.submit(10, &Ask::new(prompt(0, 20), 10));
    bench.submit(30, &Ask::new(prompt(1, 50), 10));
    bench.submit(20, &Ask::new(prompt(2, 30), 10));
    let mut stepped = Stepped::default();
    bench.engine.step(bench.epoch + Duration::from_millis(100), &mut stepped).unwrap();
    let live = bench.engine.live();
    assert_eq!((live.running, live.waiting, live.waiting_tokens), (1, 2, 30 + 50 + 1));
    assert_eq!(live.oldest_wait, Duration::from_millis(80), "who came first is first");
}

#[test]
fn device_time_is_shared_by_tokens_to_the_nanosecond() {
    let cost = Cost { step: Duration::from_nanos(100), token: Duration::ZERO, key: Duration::ZERO };
    let mut bench = Bench::on(Fake::new(ROOMY).cost(cost), [2; 16]);
    for (seq, len) in [(0, 1), (1, 1), (2, 5)] {
        bench.submit(seq, &Ask::new(prompt(seq as u32, len), 2));
    }
    let shares: Vec<_> = bench.step().device_times.iter().map(|(_, share)| share.as_nanos()).collect();
    assert_eq!(shares, [14, 14, 72]);
    bench.finish();
}

// --- What is cached ---

#[test]
fn answers_do_not_degrade_with_repeats() {
    let mut bench = Bench::new(Limits { blocks: 12, ..ROOMY });
    let ask = Ask::new(prompt(0, 70), 40);
    let alone = ask.alone();
    for seq in 0..20 {
        bench.submit(seq, &ask);
        bench.finish();
        assert_eq!(given(bench.answer(seq)), alone, "repeat {seq}");
    }
    assert_eq!(bench.answer(19).cached, 64);
}

#[test]
fn a_follow_up_prompt_of_any_length_works_and_finds_what_is_common() {
    let first = Ask::new(prompt(0, 50), 30);
    let (output, _) = first.alone();
    let whole: Vec<_> = first.prompt.iter().chain(&output).copied().collect();
    let mut bench = Bench::new(ROOMY);
    bench.submit(0, &first);
    bench.finish();
    for len in 1..=whole.len() {
        let ask = Ask::new(whole[..len].to_vec(), 3);
        bench.submit(len as u64, &ask);
        bench.finish();
        assert_eq!(given(bench.answer(len as u64)), ask.alone(), "{len} tokens");
        assert_eq!(bench.answer(len as u64).cached, (len as u32 - 1) / 16 * 16, "output is cached like the prompt");
    }
}

#[test]
fn another_salt_never_hits() {
    let mut bench = Bench::new(ROOMY);
    let ask = Ask::new(prompt(0, 64), 4);
    bench.submit(0, &ask);
    bench.submit(1, &Ask { salt: 1, ..ask.clone() });
    bench.finish();
    bench.submit(2, &Ask { salt: 2, ..ask.clone() });
    bench.submit(3, &Ask { salt: 1, ..ask });
    bench.finish();
    assert_eq!((0..4).map(|seq| bench.answer(seq).cached).collect::<Vec<_>>(), [0, 0, 0, 48]);
}

#[test]
fn a_prompt_that_waits_for_a_prefix_goes_on_when_the_one_computing_it_is_gone() {
    let mut bench = Bench::new(Limits { max_batch_tokens: 32, ..ROOMY });
    bench.submit(0, &Ask::new(prompt(0, 200), 4));
    bench.submit(1, &Ask::new(prompt(0, 300), 4));
    bench.submit(2, &Ask::new(prompt(2, 10), 4));
    bench.step();
    bench.step();
    assert_eq!(bench.engine.live().waiting, 1);
    bench.cancel(0);
    bench.finish();
    assert_eq!(bench.answer(1).cached, 48, "what was computed before stays");
}
