//! Who gets how many tokens of the next step.

use super::pool::{BlockPool, Violation};
use super::sequence::Sequence;
use super::shares::{Room, Shares, is_overdue, order, prompt_order, victims};
use super::{Ended, Input, Limits, Mask, Plan, Row, Sampled, SeqId, Settings, Start, Stepped};
use crate::call::TokenId;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Holds all sequences and plans steps.
///
/// The rule of a step, under the budget of `Limits::max_batch_tokens`:
/// 1. every running sequence that misses one position (decode) gets it; one that finds no block preempts the last in order;
/// 2. waiting ones are admitted in order, while there is budget for them and the pool has blocks for all their tokens; who has
///    had less than its share takes slot and blocks from those who hold more than theirs;
/// 3. all that miss more than one position (prefill) get what is left, in order.
///
/// The order is: class, the tenant served least by its weight, the shortest prompt, arrival.
///
/// Neither starves the other: all that run fit in half the budget, so decode always fits and prefill has the other half.
///
/// At least one row makes progress if anything is runnable: what runs first in order either has its blocks or takes them from
/// those behind it; what can't be preempted again starts with all blocks it will ever need; and if nothing runs, the whole
/// pool is there for the first that waits.
pub(super) struct Scheduler {
    limits: Limits,
    stop_tokens: Box<[TokenId]>,
    pool: BlockPool,
    /// Sequences without blocks, in `prompt_order` as of the last plan.
    waiting: VecDeque<Sequence>,
    /// Sequences with blocks, all known to the device, in `order` as of the last plan.
    running: Vec<Sequence>,
    /// What the device has to forget with the next plan.
    gone: Vec<SeqId>,
    shares: Shares,
    /// Running sequences that are in prefill, for one plan; kept for its memory.
    prompts: Vec<usize>,
    preemptions: u64,
}

// === impl Scheduler ===

impl Scheduler {
    /// A scheduler with nothing to do.
    pub(super) fn new(limits: Limits, settings: Settings) -> Self {
        Self {
            limits,
            pool: BlockPool::new(limits.blocks, limits.block_tokens.max(1), &settings),
            stop_tokens: settings.stop_tokens,
            waiting: VecDeque::new(),
            running: Vec::new(),
            gone: Vec::new(),
            shares: Shares::default(),
            prompts: Vec::new(),
            preemptions: 0,
        }
    }

    /// The pool.
    pub(super) fn pool(&self) -> &BlockPool {
        &self.pool
    }

    /// The pool, which new sequences need for their keys.
    pub(super) fn pool_mut(&mut self) -> &mut BlockPool {
        &mut self.pool
    }

    /// Sequences that have blocks.
    pub(super) fn running(&self) -> &[Sequence] {
        &self.running
    }

    /// Sequences that have none.
    pub(super) fn waiting(&self) -> &VecDeque<Sequence> {
        &self.waiting
    }

    /// Preemptions so far.
    pub(super) fn preemptions(&self) -> u64 {
        self.preemptions
    }

    /// Queues a new sequence.
    pub(super) fn add(&mut self, sequence: Sequence) {
        self.shares.enter(&sequence.party);
        self.waiting.push_back(sequence); // the next plan finds its place
    }

    /// Forgets a sequence and gives back its blocks, if it is there.
    pub(super) fn cancel(&mut self, seq: SeqId) {
        if let Some(index) = self.running.iter().position(|sequence| sequence.id == seq) {
            let mut sequence = self.running.remove(index);
            sequence.close(&mut self.pool);
            self.shares.leave(&sequence.party);
            self.gone.push(seq);
        }
        let waiting = self.waiting.iter().position(|sequence| sequence.id == seq);
        if let Some(sequence) = waiting.and_then(|index| self.waiting.remove(index)) {
            self.shares.leave(&sequence.party);
        }
    }

    /// Replaces `plan` by the next step; it has no rows if there is nothing to do. `started` gets what begins to run for the
    /// first time, with its cached prompt tokens.
    pub(super) fn plan(&mut self, now: Instant, plan: &mut Plan, started: &mut Vec<(SeqId, u32)>) {
        plan.rows.clear();
        plan.tokens.clear();
        plan.blocks.clear();
        plan.started.clear();
        plan.ended.clear();
        let mut budget = self.limits.max_batch_tokens.max(1) as usize;
        self.rank(now);
        self.plan_decode(&mut budget);
        self.admit(&mut budget, plan, started);
        self.plan_prefill(budget);
        for sequence in self.running.iter().filter(|sequence| sequence.planned > 0) {
            push_row(plan, sequence, self.pool.blocks_for(sequence.computed + sequence.planned));
        }
        if !plan.rows.is_empty() {
            plan.ended.append(&mut self.gone);
        }
    }

    /// Takes over what the step drew, in the order of its rows, and shares its device time out over them by their tokens.
    pub(super) fn commit(&mut self, sampled: &mut Sampled, batch_tokens: u32, out: &mut Stepped) {
        let Self { pool, running, gone, shares, stop_tokens, .. } = self;
        let mut ids = sampled.ids.iter();
        let mut logprobs = sampled.logprobs.drain(..);
        let mut done = 0;
        running.retain_mut(|sequence| {
            let count = std::mem::take(&mut sequence.planned);
            if count == 0 {
                return true;
            }
            let share = share(sampled.device_time, done, done + count, batch_tokens as usize);
            done += count;
            shares.charge(&sequence.party, share);
            out.device_times.push((sequence.id, share));
            let targets = count.min(sequence.prompt.saturating_sub(sequence.computed + 1));
            if sequence.scores_prompt() {
                // After a preemption they are computed again, and told no second time.
                let known = sequence.scored.saturating_sub(sequence.computed);
                out.scored.extend(logprobs.by_ref().take(targets).skip(known).map(|logprob| (sequence.id, logprob)));
                sequence.scored = sequence.scored.max(sequence.computed + targets);
            }
            sequence.advance(count, pool);
            if sequence.missing() > 0 {
                return true;
            }
            let Some(&token) = ids.next() else { return true };
            let logprob = sequence.sampling.logprobs.and_then(|_| logprobs.next());
            let known = sequence.tokens.len();
            let end = sequence.draw(token, stop_tokens);
            if sequence.tokens.len() > known {
                out.tokens.push((sequence.id, token));
                out.logprobs.extend(logprob.map(|logprob| (sequence.id, logprob)));
            }
            if let Some(reason) = end {
                sequence.close(pool);
                gone.push(sequence.id);
                shares.leave(&sequence.party);
                out.ended.push(Ended { seq: sequence.id, reason });
            }
            end.is_none()
        });
    }

    /// Checks every invariant of the pool.
    pub(super) fn check(&self) -> Result<(), Violation> {
        self.pool.check(self.running.iter().chain(&self.waiting).map(|sequence| &sequence.table))
    }

    /// Most sequences that run at once: half the budget is kept for prefill.
    fn most_running(&self) -> usize {
        (self.limits.max_batch_tokens / 2).min(self.limits.max_sequences).max(1) as usize
    }

    /// One position for every sequence that misses one.
    fn plan_decode(&mut self, budget: &mut usize) {
        let mut index = 0;
        while index < self.running.len() {
            if self.running[index].missing() == 1 {
                if !self.make_room(index) {
                    // It was preempted itself; its place is the next one's.
                    continue;
                }
                self.running[index].planned = 1;
                *budget = budget.saturating_sub(1);
            }
            index += 1;
        }
    }

    /// What is left for prompts, in their order. They have all their blocks.
    fn plan_prefill(&mut self, mut budget: usize) {
        self.prompts.clear();
        self.prompts.extend((0..self.running.len()).filter(|&index| self.running[index].planned == 0));
        self.prompts.sort_unstable_by(|&a, &b| prompt_order(&self.running[a], &self.running[b]));
        for &index in &self.prompts {
            let sequence = &mut self.running[index];
            sequence.planned = sequence.missing().min(budget);
            budget -= sequence.planned;
        }
    }

    /// Gives running sequence `index` a block for its last token, preempting the last in order while there is none. False if
    /// that was itself: nothing behind it may be preempted. One that is protected has its blocks already.
    fn make_room(&mut self, index: usize) -> bool {
        while !self.running[index].grow(&mut self.pool) {
            let victim = self.running.iter().rposition(|sequence| !sequence.is_protected()).unwrap_or(index);
            self.preempt(victim);
            if victim == index {
                return false;
            }
        }
        true
    }

    /// Takes blocks and place from running sequence `index`; returns how many positions were planned for it.
    fn preempt(&mut self, index: usize) -> usize {
        let mut sequence = self.running.remove(index);
        let planned = std::mem::take(&mut sequence.planned);
        sequence.preempt(&mut self.pool);
        sequence.uncached = 0; // begun once, no newcomer overtakes it
        self.preemptions += 1;
        self.gone.push(sequence.id);
        let place = self.waiting.partition_point(|other| prompt_order(other, &sequence).is_lt());
        self.waiting.insert(place, sequence);
        planned
    }

    /// Starts waiting sequences. The first one that finds no room ends it, so that nobody overtakes it for ever; one whose
    /// prefix another is computing right now waits for that and holds nobody up.
    fn admit(&mut self, budget: &mut usize, plan: &mut Plan, started: &mut Vec<(SeqId, u32)>) {
        let mut index = 0;
        while let Some(candidate) = self.waiting.get(index) {
            let ahead = self.running.iter().filter(|other| other.planned == 0 && prompt_order(other, candidate).is_lt());
            if ahead.map(Sequence::missing).sum::<usize>() >= *budget {
                break;
            }
            if self.running.iter().any(|other| other.computes_prefix_of(candidate)) {
                index += 1;
                continue;
            }
            let Some(mut sequence) = self.waiting.remove(index) else { break };
            if !self.open(&mut sequence, budget) {
                self.waiting.insert(index, sequence);
                break;
            }
            plan.started.push(start(&sequence, &mut plan.tokens));
            if sequence.preemptions == 0 {
                started.push((sequence.id, sequence.computed as u32));
            }
            let place = self.running.partition_point(|other| order(other, &sequence).is_lt());
            self.running.insert(place, sequence);
        }
    }

    /// Gives a waiting sequence its blocks, where there is a slot and room for it, or those who hold more than their share
    /// make some.
    fn open(&mut self, candidate: &mut Sequence, budget: &mut usize) -> bool {
        let full = self.running.len() >= self.most_running();
        if !full && candidate.open(self.watermark(), &mut self.pool) {
            return true;
        }
        let [total, _, cached, free] = self.pool.counts();
        let blocks = self.pool.blocks_for(candidate.tokens_to_start()) + self.watermark();
        let need = Room { slots: usize::from(full), blocks: blocks.saturating_sub((cached + free) as usize) };
        let of = Room { slots: self.most_running(), blocks: total as usize };
        let most = self.pool.blocks_for(candidate.most_tokens());
        let Some(mut victims) = victims(candidate, most, &self.running, need, of) else { return false };
        victims.sort_unstable_by(|a, b| b.cmp(a)); // from the last on, so that places stay true
        for victim in victims {
            *budget += self.preempt(victim);
        }
        candidate.open(self.watermark(), &mut self.pool)
    }

    /// Blocks that stay free at an admission: each that runs may need one more before any of them ends.
    fn watermark(&self) -> usize {
        if self.running.is_empty() { 0 } else { self.running.len() + 1 }
    }

    /// Puts everybody in its place for this step.
    fn rank(&mut self, now: Instant) {
        let Self { shares, waiting, running, .. } = self;
        shares.settle();
        for sequence in running.iter_mut().chain(waiting.iter_mut()) {
            sequence.rank = shares.rank(sequence, now);
        }
        for sequence in waiting.iter_mut().filter(|sequence| is_overdue(sequence, now)) {
            sequence.uncached = 0;
        }
        running.sort_by(order);
        waiting.make_contiguous().sort_by(prompt_order);
    }
}

/// What the device must know of a sequence.
fn start(sequence: &Sequence, tokens: &mut Vec<TokenId>) -> Start {
    let first = tokens.len() as u32;
    if sequence.sampling.shaping.is_some() {
        tokens.extend_from_slice(&sequence.tokens);
    }
    let (history, prompt) = (first..tokens.len() as u32, sequence.prompt as u32);
    Start { seq: sequence.id, sampling: sequence.sampling.clone(), history, prompt }
}

/// Adds the row of a sequence's planned positions.
fn push_row(plan: &mut Plan, sequence: &Sequence, blocks: usize) {
    let (start, end) = (sequence.computed, sequence.computed + sequence.planned);
    let input = if sequence.sampled {
        Input::Sampled
    } else {
        let first = plan.tokens.len() as u32;
        plan.tokens.extend_from_slice(&sequence.tokens[start..end]);
        Input::Known(first..plan.tokens.len() as u32)
    };
    let target = plan.tokens.len() as u32;
    plan.tokens.extend_from_slice(sequence.targets());
    let score = target..plan.tokens.len() as u32;
    let first = plan.blocks.len() as u32;
    plan.blocks.extend_from_slice(&sequence.table.blocks()[..blocks]);
    plan.rows.push(Row {
        seq: sequence.id,
        start: start as u32,
        count: sequence.planned as u32,
        mask: Mask::Causal,
        input,
        blocks: first..plan.blocks.len() as u32,
        sample: u32::from(end == sequence.tokens.len()),
        score,
    });
}

/// The part of `time` that tokens `from..to` of `total` have. Whatever is rounded off one row goes to a later one, so that
/// all parts together are exactly `time`.
fn share(time: Duration, from: usize, to: usize, total: usize) -> Duration {
    let until = |tokens: usize| time.as_nanos() * tokens as u128 / total.max(1) as u128;
    Duration::from_nanos((until(to) - until(from)) as u64)
}
