//! Who goes first, in virtual time: the clock moves by the device time the fake device models.

use super::*;

const SECOND: Duration = Duration::from_secs(1);

/// A bench whose clock is the device's busy time.
struct Race {
    bench: Bench,
    next: u64,
    owners: BTreeMap<SeqId, String>,
    longest_step: Duration,
}

impl Race {
    fn new(limits: Limits) -> Self {
        Self { bench: Bench::new(limits), next: 0, owners: BTreeMap::new(), longest_step: Duration::ZERO }
    }

    fn submit(&mut self, party: &Party, prompt_tokens: u32, max_tokens: u32) -> u64 {
        let seq = self.next;
        self.next += 1;
        // Prompts without a common beginning.
        let ask = Ask { party: party.clone(), salt: seq as u8, ..Ask::new(prompt(seq as u32, prompt_tokens), max_tokens) };
        let submission = Submission {
            seq: SeqId(seq),
            prompt: ask.prompt.into(),
            output: [].into(),
            max_tokens,
            sampling: Bench::sampling(0.0, 0),
            ignore_stop: false,
            score_prompt: false,
            salt: Salt([seq as u8; 16]),
            party: party.clone(),
            arrived: self.bench.epoch + self.bench.now,
        };
        self.bench.engine.submit(submission);
        self.bench.answers.insert(SeqId(seq), Answer::default());
        self.owners.insert(SeqId(seq), party.tenant.to_string());
        seq
    }

    fn step(&mut self) {
        let took = self.bench.step().device_time;
        self.longest_step = self.longest_step.max(took);
        self.bench.now += took;
    }

    /// Virtual time until `seq` has its first token.
    fn ttft(&mut self, seq: u64) -> Duration {
        let from = self.bench.now;
        while self.bench.answer(seq).tokens.is_empty() {
            self.step();
        }
        self.bench.now - from
    }

    fn end(&mut self, seq: u64) {
        while self.bench.answer(seq).reason.is_none() {
            self.step();
        }
    }

    /// Device time of a tenant's sequences so far.
    fn device_time(&self, tenant: &str) -> Duration {
        self.bench.shares.iter().filter(|(seq, _)| self.owners[seq] == tenant).map(|(_, share)| *share).sum()
    }
}

fn interactive(tenant: &str, weight: u32) -> Party {
    party_of(tenant, weight, Class::Interactive)
}

/// One tenant floods with 500 requests, another sends one at a time.
fn flooded(limits: Limits) {
    let (a, b) = (interactive("a", 1), interactive("b", 1));
    let mut alone = Race::new(limits);
    let seq = alone.submit(&b, 40, 20);
    let idle = alone.ttft(seq);

    let mut race = Race::new(limits);
    for _ in 0..500 {
        race.submit(&a, 60, 100);
    }
    for _ in 0..30 {
        race.step();
    }
    for _ in 0..40 {
        let seq = race.submit(&b, 40, 20);
        race.longest_step = Duration::ZERO;
        let ttft = race.ttft(seq);
        assert!(ttft <= idle + 2 * race.longest_step, "{ttft:?} where {idle:?} is idle and a step takes {:?}", race.longest_step);
        race.end(seq);
    }
    assert!(race.bench.engine.live().waiting > 300, "it was flooded to the end");
    race.bench.finish();
}

#[test]
fn a_flood_of_one_tenant_delays_another_by_two_steps_at_most_though_it_holds_all_slots() {
    flooded(Limits { max_sequences: 16, ..ROOMY });
}

#[test]
fn a_flood_of_one_tenant_delays_another_by_two_steps_at_most_though_it_holds_all_blocks() {
    flooded(Limits { blocks: 80, ..ROOMY });
}

#[test]
fn tenants_share_a_saturated_device_by_weight() {
    for limits in [Limits { max_sequences: 16, ..ROOMY }, Limits { blocks: 100, ..ROOMY }] {
        let mut race = Race::new(limits);
        let (a, b) = (interactive("a", 3), interactive("b", 1));
        for index in 0..600 {
            // The heavier one also asks for more at once; that doesn't count.
            race.submit(&a, 80, 60 + index % 40);
            race.submit(&b, 20, 20 + index % 40);
        }
        while race.bench.now < 4 * SECOND {
            race.step();
        }
        let ratio = race.device_time("a").as_secs_f64() / race.device_time("b").as_secs_f64();
        assert!((2.85..=3.15).contains(&ratio), "{ratio} instead of 3");
    }
}

#[test]
fn a_tenant_that_was_away_neither_saves_up_turns_nor_pays_for_having_been_alone() {
    let mut race = Race::new(Limits { max_sequences: 8, ..ROOMY });
    let (a, b) = (interactive("a", 1), interactive("b", 1));
    for _ in 0..400 {
        race.submit(&a, 20, 50);
    }
    while race.bench.now < SECOND {
        race.step();
    }
    let before = race.device_time("a");
    for _ in 0..400 {
        race.submit(&b, 20, 50);
    }
    while race.bench.now < 3 * SECOND {
        race.step();
    }
    let ratio = (race.device_time("a") - before).as_secs_f64() / race.device_time("b").as_secs_f64();
    assert!((0.9..=1.1).contains(&ratio), "{ratio} instead of 1");
}

#[test]
fn batch_waits_for_interactive_requests_and_gives_way_to_them_but_not_for_ever() {
    let mut race = Race::new(Limits { max_sequences: 2, ..ROOMY });
    let (batch, chat) = (party_of("b", 100, Class::Batch), interactive("a", 1));
    let jobs = [race.submit(&batch, 10, 500), race.submit(&batch, 10, 500)];
    race.step();
    let first = race.submit(&chat, 10, 20);
    race.step();
    race.step();
    assert_eq!(race.bench.answer(first).tokens.len(), 2, "it took a slot of batch's");
    assert_eq!(race.bench.engine.live().preemptions, 1);
    // Chat goes on and on with both slots; batch has its turn after a minute.
    let mut chats = vec![race.submit(&chat, 10, 30), race.submit(&chat, 10, 30)];
    race.end(first);
    let before: usize = jobs.iter().map(|job| race.bench.answer(*job).tokens.len()).sum();
    let mut drawn = 0;
    while drawn == 0 && race.bench.now < 300 * SECOND {
        race.step();
        race.bench.now += SECOND;
        for seq in &mut chats {
            if race.bench.answer(*seq).reason.is_some() {
                *seq = race.submit(&chat, 10, 30);
            }
        }
        drawn = jobs.iter().map(|job| race.bench.answer(*job).tokens.len()).sum::<usize>() - before;
    }
    assert!(race.bench.now >= 60 * SECOND, "it went before interactive ones after {:?}", race.bench.now);
    assert!(race.bench.now < 120 * SECOND, "it starved");
}

#[test]
fn short_prompts_go_before_long_ones_of_the_same_tenant_until_those_are_overdue() {
    let mut race = Race::new(Limits { max_batch_tokens: 64, ..ROOMY });
    let a = interactive("a", 1);
    let long = race.submit(&a, 1000, 4);
    let short = race.submit(&a, 60, 4);
    race.step();
    assert_eq!((race.bench.answer(short).tokens.len(), race.bench.answer(long).tokens.len()), (1, 0));
    race.bench.now = 2 * SECOND;
    let later = race.submit(&a, 60, 4);
    race.end(long);
    assert!(race.bench.answer(later).tokens.is_empty() || race.bench.answer(long).reason.is_some());
    race.bench.finish();
}

#[test]
fn two_tenants_with_room_for_one_request_do_not_push_each_other_out_in_turns() {
    let mut race = Race::new(Limits { blocks: 12, ..ROOMY });
    let (a, b) = (interactive("a", 1), interactive("b", 1));
    for _ in 0..20 {
        race.submit(&a, 100, 60);
        race.submit(&b, 100, 60);
    }
    race.bench.finish();
    assert!(race.bench.engine.live().preemptions <= 40, "{:?}", race.bench.engine.live());
}
