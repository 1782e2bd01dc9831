//! A device without a model, for tests of the engine and of the whole server.
//!
//! Its "K/V" of a position is the token and a hash over everything before it, stored in the slot of the block table and read
//! back through the table. The token drawn is a hash over all that is read, so that any mistake in paging, caching or chunking
//! changes the output. It refuses plans that break the seam's rules, and its device time is a model, so it is the same
//! every time.

use super::{BlockId, DeviceError, Executor, Input, Limits, Logprob, Plan, Row, Sampled, Sampling, SeqId, Ticket};
use crate::call::TokenId;
use std::collections::{HashMap, VecDeque};
use std::time::Duration;

/// The modelled device time of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cost {
    /// Of the step itself.
    pub step: Duration,
    /// Of each token in it.
    pub token: Duration,
    /// Of each key that each row ends up with.
    pub key: Duration,
}

/// A draw, as an [`Fake::answering`] function sees it.
#[derive(Clone, Debug)]
pub struct Draw<'a> {
    /// Whose.
    pub seq: SeqId,
    /// How it is to be drawn.
    pub sampling: &'a Sampling,
    /// Its prompt.
    pub prompt: &'a [TokenId],
    /// What it has drawn before.
    pub output: &'a [TokenId],
}

type Answer = Box<dyn FnMut(&Draw<'_>) -> Option<TokenId>>;
type Observer = Box<dyn FnMut(&Plan)>;

/// The device.
pub struct Fake {
    limits: Limits,
    vocabulary: u32,
    cost: Cost,
    answer: Option<Answer>,
    observer: Option<Observer>,
    fail_at: Option<u64>,
    /// `block_tokens` slots per block.
    slots: Vec<Option<Slot>>,
    /// Sequences it was told of.
    live: HashMap<SeqId, Known>,
    /// Where each sequence drew first, which is where its prompt ends. Survives preemptions.
    prompts: HashMap<SeqId, usize>,
    launches: u64,
    launched: VecDeque<(u64, Sampled)>,
}

/// The K/V of one position.
#[derive(Clone, Copy)]
struct Slot {
    token: TokenId,
    /// Hash over all tokens up to this one.
    hash: u64,
}

/// What the device knows of a sequence.
struct Known {
    sampling: Sampling,
    /// Positions it has K/V of; unknown before the first row, which may begin behind a cached prefix.
    computed: Option<u32>,
    /// The last token drawn, if the last row drew one.
    drawn: Option<TokenId>,
    /// Its block table as of its last row.
    table: Vec<BlockId>,
}

// === impl Fake ===

impl Fake {
    /// A device that draws hashed tokens below 256, a step taking 1 ms + 10 µs a token + 10 ns a key.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            vocabulary: 256,
            cost: Cost { step: Duration::from_millis(1), token: Duration::from_micros(10), key: Duration::from_nanos(10) },
            answer: None,
            observer: None,
            fail_at: None,
            slots: vec![None; limits.blocks as usize * limits.block_tokens as usize],
            live: HashMap::new(),
            prompts: HashMap::new(),
            launches: 0,
            launched: VecDeque::new(),
        }
    }

    /// Draws hashed tokens below `vocabulary`, at least 1.
    #[must_use]
    pub fn vocabulary(mut self, vocabulary: u32) -> Self {
        self.vocabulary = vocabulary.max(1);
        self
    }

    /// Models device time by `cost`.
    #[must_use]
    pub fn cost(mut self, cost: Cost) -> Self {
        self.cost = cost;
        self
    }

    /// Draws what `answer` says, a stop token for instance; a hashed token where it says `None`.
    #[must_use]
    pub fn answering(mut self, answer: impl FnMut(&Draw<'_>) -> Option<TokenId> + 'static) -> Self {
        self.answer = Some(Box::new(answer));
        self
    }

    /// Draws `tokens` one after the other for every sequence, then hashed ones.
    #[must_use]
    pub fn saying(self, tokens: Vec<TokenId>) -> Self {
        self.answering(move |draw| tokens.get(draw.output.len()).copied())
    }

    /// Shows every plan to `observer` before it runs; an observer that blocks makes the device slow.
    #[must_use]
    pub fn observed(mut self, observer: impl FnMut(&Plan) + 'static) -> Self {
        self.observer = Some(Box::new(observer));
        self
    }

    /// Fails launch number `launch`, counted from 0, and all after it.
    #[must_use]
    pub fn failing_at(mut self, launch: u64) -> Self {
        self.fail_at = Some(launch);
        self
    }

    /// Forgets what has ended, takes note of what starts.
    fn admit(&mut self, plan: &Plan) -> Result<(), DeviceError> {
        for seq in &plan.ended {
            self.live.remove(seq).ok_or_else(|| refused(*seq, "ends and isn't here"))?;
        }
        for start in &plan.started {
            let known = Known { sampling: start.sampling.clone(), computed: None, drawn: None, table: Vec::new() };
            if self.live.insert(start.seq, known).is_some() {
                return Err(refused(start.seq, "starts twice"));
            }
        }
        if self.live.len() > self.limits.max_sequences as usize {
            return Err(DeviceError(format!("{} sequences where {} are possible", self.live.len(), self.limits.max_sequences)));
        }
        for row in &plan.rows {
            let known = self.live.get_mut(&row.seq).ok_or_else(|| refused(row.seq, "has a row and never started"))?;
            let blocks = plan.blocks.get(row.blocks.start as usize..row.blocks.end as usize);
            known.table = blocks.ok_or_else(|| refused(row.seq, "has a table outside of the plan"))?.to_vec();
        }
        Ok(())
    }

    /// Checks what concerns all rows together: the budget, and that nobody writes a block that another holds.
    fn check(&self, plan: &Plan) -> Result<(), DeviceError> {
        let tokens: u32 = plan.rows.iter().map(|row| row.count).sum();
        if plan.rows.is_empty() || tokens > self.limits.max_batch_tokens {
            return Err(DeviceError(format!("{tokens} tokens in {} rows", plan.rows.len())));
        }
        let mut holders = vec![0u32; self.limits.blocks as usize];
        for (seq, known) in &self.live {
            for block in &known.table {
                *holders.get_mut(block.0 as usize).ok_or_else(|| refused(*seq, "has a block outside of the pool"))? += 1;
            }
        }
        for row in &plan.rows {
            let (first, end) = (row.start / self.limits.block_tokens, (row.start + row.count).div_ceil(self.limits.block_tokens));
            let table = &self.live[&row.seq].table;
            if row.count == 0 || end as usize > table.len() || row.start + row.count > self.limits.max_context {
                return Err(refused(row.seq, "has a row that its blocks or the context don't cover"));
            }
            if table[first as usize..end as usize].iter().any(|block| holders[block.0 as usize] != 1) {
                return Err(refused(row.seq, "writes a block that another sequence holds"));
            }
        }
        Ok(())
    }

    /// Writes a row's K/V and draws its token.
    fn run(&mut self, row: &Row, plan: &Plan, into: &mut Sampled) -> Result<(), DeviceError> {
        let known = self.live.get_mut(&row.seq).ok_or_else(|| refused(row.seq, "has a row and never started"))?;
        if known.computed.is_some_and(|computed| computed != row.start) {
            return Err(refused(row.seq, "continues at another position than it has reached"));
        }
        known.computed = Some(row.start + row.count);
        let (drawn, sampling) = (known.drawn.take(), known.sampling.clone());
        let input = match &row.input {
            Input::Known(range) if range.len() == row.count as usize => plan.tokens.get(range.start as usize..range.end as usize),
            Input::Sampled if row.count == 1 => drawn.as_ref().map(std::slice::from_ref),
            _ => None,
        };
        let input = input.ok_or_else(|| refused(row.seq, "has no input for its row"))?;
        let slots: Vec<usize> = (0..row.start + row.count).map(|position| self.slot(row.seq, position)).collect();
        let mut tokens = Vec::with_capacity(slots.len());
        let (mut hash, mut read) = (0, 0);
        for (position, &slot) in slots.iter().enumerate() {
            if let Some(&token) = position.checked_sub(row.start as usize).and_then(|index| input.get(index)) {
                self.slots[slot] = Some(Slot { token, hash: mix(hash, token.into()) });
            }
            let kv = self.slots[slot].ok_or_else(|| refused(row.seq, "reads a position that was never written"))?;
            if kv.hash != mix(hash, kv.token.into()) {
                return Err(refused(row.seq, "reads K/V that belong after other tokens"));
            }
            hash = kv.hash;
            read = mix(read, kv.hash);
            tokens.push(kv.token);
            let scored = position.checked_sub(row.start as usize).filter(|index| *index < row.score.len());
            if let Some(target) = scored.and_then(|index| plan.tokens.get(row.score.start as usize + index)) {
                into.logprobs.push(self.logprob(hash, *target, sampling.logprobs.unwrap_or_default()));
            }
        }
        match row.sample {
            0 => {}
            1 => {
                let wanted = sampling.logprobs;
                let token = self.draw(row.seq, &sampling, read, &tokens);
                self.live.entry(row.seq).and_modify(|known| known.drawn = Some(token));
                into.ids.push(token);
                into.logprobs.extend(wanted.map(|top| self.logprob(hash, token, top)));
            }
            _ => return Err(refused(row.seq, "draws more than one token")),
        }
        Ok(())
    }

    fn draw(&mut self, seq: SeqId, sampling: &Sampling, read: u64, tokens: &[TokenId]) -> TokenId {
        let (prompt, output) = tokens.split_at(tokens.len().min(*self.prompts.entry(seq).or_insert(tokens.len())));
        let scripted = self.answer.as_mut().and_then(|answer| answer(&Draw { seq, sampling, prompt, output }));
        scripted.unwrap_or_else(|| {
            let mut hash = read;
            if sampling.temperature > 0.0 {
                for part in [sampling.seed, sampling.choice.into(), tokens.len() as u64] {
                    hash = mix(hash, part);
                }
            }
            (hash % u64::from(self.vocabulary)) as TokenId
        })
    }

    /// A log-probability that depends on everything before the token and on nothing else.
    fn logprob(&self, before: u64, id: TokenId, top: u32) -> Logprob {
        let of = |id: TokenId| -((mix(before, id.into()) % 1000) as f32) / 100.0;
        let likeliest = (0..top.min(self.vocabulary)).map(|rank| (rank, -(rank as f32))).collect();
        Logprob { id, logprob: of(id), top: likeliest }
    }

    fn slot(&self, seq: SeqId, position: u32) -> usize {
        let block = self.live[&seq].table[(position / self.limits.block_tokens) as usize];
        (block.0 * self.limits.block_tokens + position % self.limits.block_tokens) as usize
    }
}

impl Executor for Fake {
    fn limits(&self) -> Limits {
        self.limits
    }

    fn launch(&mut self, plan: &Plan) -> Result<Ticket, DeviceError> {
        if let Some(observer) = &mut self.observer {
            observer(plan);
        }
        if self.fail_at.is_some_and(|launch| launch <= self.launches) {
            return Err(DeviceError(format!("the fake device fails launch {}, as it was told to", self.launches)));
        }
        self.admit(plan)?;
        self.check(plan)?;
        let mut sampled = Sampled { device_time: self.cost.step, ..Sampled::default() };
        for row in &plan.rows {
            self.run(row, plan, &mut sampled)?;
            sampled.device_time += self.cost.token * row.count + self.cost.key * (row.start + row.count);
        }
        let ticket = self.launches;
        self.launches += 1;
        self.launched.push_back((ticket, sampled));
        Ok(Ticket(ticket))
    }

    fn collect(&mut self, ticket: Ticket, into: &mut Sampled) -> Result<(), DeviceError> {
        match self.launched.pop_front() {
            Some((number, sampled)) if number == ticket.0 => *into = sampled,
            _ => return Err(DeviceError(format!("{ticket:?} isn't the next to be collected"))),
        }
        Ok(())
    }
}

fn refused(seq: SeqId, why: &str) -> DeviceError {
    DeviceError(format!("invalid plan: {seq:?} {why}"))
}

/// Mixes `value` into `hash` (the finalizer of splitmix64).
fn mix(hash: u64, value: u64) -> u64 {
    let mut mixed = hash.rotate_left(5) ^ value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{Mask, Start};

    const LIMITS: Limits = Limits { blocks: 8, block_tokens: 2, max_batch_tokens: 8, max_sequences: 2, max_context: 10 };

    fn start(seq: u64) -> Start {
        Start { seq: SeqId(seq), sampling: Sampling::greedy(), history: 0..0, prompt: 0 }
    }

    /// A step of one row: positions `start..start + count` of sequence 1, drawing a token, with `blocks`.
    fn step(start: u32, count: u32, blocks: &[u32]) -> Plan {
        let blocks: Vec<_> = blocks.iter().copied().map(BlockId).collect();
        let input = Input::Known(0..count);
        let row = Row { seq: SeqId(1), start, count, mask: Mask::Causal, input, blocks: 0..blocks.len() as u32, sample: 1, score: 0..0 };
        Plan { rows: vec![row], tokens: (0..count).collect(), blocks, ..Plan::default() }
    }

    fn first() -> Plan {
        Plan { started: vec![start(1)], ..step(0, 3, &[4, 2]) }
    }

    /// Launches all plans; what is wrong with the last one.
    fn refusal(plans: &[Plan]) -> Option<String> {
        let mut fake = Fake::new(LIMITS);
        let mut results: Vec<_> = plans.iter().map(|plan| fake.launch(plan)).collect();
        let last = results.pop()?;
        assert!(results.iter().all(Result::is_ok), "{results:?}");
        last.err().map(|error| error.0)
    }

    #[test]
    fn plans_that_break_the_rules_are_refused() {
        assert_eq!(refusal(&[first(), step(3, 1, &[4, 2])]), None);
        let mut sampled = step(3, 1, &[4, 2]);
        sampled.rows[0].input = Input::Sampled;
        assert_eq!(refusal(&[first(), sampled.clone()]), None);
        let second = |blocks: &[u32]| {
            let mut plan = Plan { started: vec![start(2)], ..step(0, 2, blocks) };
            plan.rows[0].seq = SeqId(2);
            plan
        };
        let ends = |seq| Plan { ended: vec![SeqId(seq)], ..second(&[5]) };
        assert_eq!(refusal(&[first(), second(&[5])]), None);
        let mut undrawn = first();
        undrawn.rows[0].sample = 0;
        for (plans, why) in [
            (vec![Plan::default()], "0 tokens in 0 rows"),
            (vec![Plan { started: vec![start(1)], ..step(0, 9, &[0, 1, 2, 3, 4]) }], "9 tokens in 1 rows"),
            (vec![step(0, 3, &[4, 2])], "never started"),
            (vec![first(), first()], "starts twice"),
            (vec![first(), ends(3)], "ends and isn't here"),
            (vec![first(), Plan { started: vec![start(2), start(3)], ..second(&[5]) }], "3 sequences where 2 are possible"),
            (vec![first(), step(4, 1, &[4, 2, 0])], "continues at another position"),
            (vec![first(), step(3, 2, &[4, 2])], "don't cover"),
            (vec![first(), step(3, 1, &[4, 9])], "outside of the pool"),
            (vec![first(), second(&[2])], "writes a block that another sequence holds"),
            (vec![first(), step(3, 1, &[2, 4])], "belong after other tokens"),
            (vec![first(), step(3, 1, &[0, 2])], "never written"),
            (vec![undrawn, sampled], "has no input"),
        ] {
            let refusal = refusal(&plans);
            assert!(refusal.as_ref().is_some_and(|refusal| refusal.contains(why)), "{refusal:?} instead of {why}");
        }
    }

    #[test]
    fn steps_are_collected_in_the_order_of_launches() {
        let mut fake = Fake::new(LIMITS);
        let (one, two) = (fake.launch(&first()), fake.launch(&step(3, 1, &[4, 2])));
        let mut sampled = Sampled::default();
        assert!(one.is_ok_and(|one| fake.collect(one, &mut sampled).is_ok()));
        assert_eq!(sampled.device_time, Duration::from_nanos(1_030_030));
        assert!(two.is_ok_and(|two| fake.collect(two, &mut sampled).is_ok()));
        assert!(fake.collect(Ticket(1), &mut sampled).is_err(), "nothing is left to collect");
    }
}
