//! One sequence: the tokens of one choice of one request, and how far they are computed.

use super::chain::Key;
use super::pool::{BlockPool, BlockTable};
use super::shares::{Party, Rank};
use super::{Sampling, SeqId};
use crate::call::{Finish, TokenId};
use std::time::Instant;

/// Keeps cached prefixes apart: sequences of different salts never share a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Salt(pub [u8; 16]);

/// A new sequence for the engine.
#[derive(Clone, Debug)]
pub struct Submission {
    /// Its name, never used before.
    pub seq: SeqId,
    /// Its prompt, at least one token.
    pub prompt: Box<[TokenId]>,
    /// Tokens that it has drawn already, elsewhere; usually none.
    pub output: Box<[TokenId]>,
    /// Most tokens to draw, at least 1, those of `output` included.
    pub max_tokens: u32,
    /// How they are drawn.
    pub sampling: Sampling,
    /// Whether a stop token is a token like any other.
    pub ignore_stop: bool,
    /// Whether the log-probabilities of the prompt's tokens are wanted. Such a sequence uses no cached prefix: all its
    /// logits are needed.
    pub score_prompt: bool,
    /// Whose cached prefixes it may use.
    pub salt: Salt,
    /// Who is charged for it.
    pub party: Party,
    /// When its request came.
    pub arrived: Instant,
}

/// A sequence and its regions:
///
/// ```text
///            prompt                    output
/// |-------------------------------|-------------|· · · · · ·|      tokens
/// 0                             prompt         len        limit
/// |------------------|--------------------------|
/// 0     K/V cached  computed     `missing`     len
/// ```
///
/// A step's row gives it K/V for some positions from `computed` on. When `computed` reaches `len` the row draws one token and
/// `len` grows by one, so outside of a step at least one position is always missing: one in decode, more in prefill.
///
/// ```text
/// waiting => running      admitted, with blocks for all its tokens
/// running => waiting      preempted: its blocks are gone, its tokens are kept and computed again
/// running => ended        a stop token, or `len` reached `limit`
/// waiting, running => ended      cancelled
/// ```
///
/// Which of them it is shows in where the scheduler keeps it.
pub(super) struct Sequence {
    pub(super) id: SeqId,
    pub(super) sampling: Sampling,
    ignore_stop: bool,
    score_prompt: bool,
    /// Tokens of its prompt.
    pub(super) prompt: usize,
    /// Tokens of its prompt whose log-probabilities have been told.
    pub(super) scored: usize,
    pub(super) arrived: Instant,
    pub(super) party: Party,
    /// Its place by its party, as of the last plan.
    pub(super) rank: Rank,
    /// Tokens of its prompt that were not cached when it came; 0 once it's overdue.
    pub(super) uncached: usize,
    /// Tokens it has to compute to begin, by what was cached when it began to wait.
    pub(super) ahead: usize,
    /// Prompt, then output.
    pub(super) tokens: Vec<TokenId>,
    /// Positions whose K/V are in the cache.
    pub(super) computed: usize,
    /// `len` at which it ends.
    limit: usize,
    /// The blocks of its K/V; empty while it waits.
    pub(super) table: BlockTable,
    /// Keys of its full blocks, as far as they were needed, after the root.
    keys: Vec<Key>,
    root: Key,
    /// Blocks of its table that are in the index.
    indexed: usize,
    /// Positions in the step that is being planned or runs.
    pub(super) planned: usize,
    /// Whether its last token was drawn by its last row, so that the device still has it.
    pub(super) sampled: bool,
    /// Whether the device has heard of it: false in the plan that starts it.
    pub(super) on_device: bool,
    /// How often it was preempted.
    pub(super) preemptions: u32,
}

// === impl Sequence ===

impl Sequence {
    /// A waiting sequence; `None` if there is nothing to compute or no room for a token within `most` tokens.
    pub(super) fn new(submission: Submission, most: usize, pool: &mut BlockPool) -> Option<Self> {
        let Submission { seq, prompt, output, max_tokens, sampling, ignore_stop, score_prompt, salt, party, arrived } = submission;
        let limit = prompt.len().saturating_add(max_tokens as usize).min(most);
        if prompt.is_empty() || prompt.len() + output.len() >= limit {
            return None;
        }
        let known = prompt.len();
        let mut tokens = prompt.into_vec();
        tokens.extend_from_slice(&output);
        let mut sequence = Self {
            id: seq,
            sampling,
            ignore_stop,
            score_prompt,
            prompt: known,
            scored: 0,
            arrived,
            party,
            rank: Rank::default(),
            uncached: 0,
            ahead: 0,
            tokens,
            computed: 0,
            limit,
            table: BlockTable::default(),
            keys: Vec::new(),
            root: pool.root(&salt),
            indexed: 0,
            planned: 0,
            sampled: false,
            on_device: false,
            preemptions: 0,
        };
        sequence.extend_keys(sequence.hittable(pool), pool);
        sequence.ahead = sequence.tokens.len() - pool.touch(&sequence.keys, &sequence.tokens) * pool.block_tokens();
        sequence.uncached = sequence.ahead;
        Some(sequence)
    }

    /// Known positions whose K/V are missing.
    pub(super) fn missing(&self) -> usize {
        self.tokens.len() - self.computed
    }

    /// Whether it has been preempted so often that it must not be again.
    pub(super) fn is_protected(&self) -> bool {
        self.preemptions >= 2
    }

    /// How many tokens it needs blocks for to start: all it has, or all it will ever have where it can't be preempted again.
    pub(super) fn tokens_to_start(&self) -> usize {
        if self.is_protected() { self.most_tokens() } else { self.tokens.len() }
    }

    /// How many tokens it will ever need blocks for. K/V of the very last token are never needed.
    pub(super) fn most_tokens(&self) -> usize {
        self.limit - 1
    }

    /// Tries to start it with `spare` blocks left over: true if it has its blocks now, the longest cached prefix among them.
    pub(super) fn open(&mut self, spare: usize, pool: &mut BlockPool) -> bool {
        let need = pool.blocks_for(self.tokens_to_start());
        let keys = &self.keys[..self.hittable(pool)];
        let Some((table, cached)) = pool.open(keys, &self.tokens, need, spare) else { return false };
        self.table = table;
        self.indexed = cached;
        self.computed = cached * pool.block_tokens();
        true
    }

    /// Makes sure that its known tokens have blocks; false if the pool has none.
    pub(super) fn grow(&mut self, pool: &mut BlockPool) -> bool {
        self.table.blocks().len() >= pool.blocks_for(self.tokens.len()) || pool.grow(&mut self.table)
    }

    /// Gives its blocks back and keeps its tokens.
    pub(super) fn preempt(&mut self, pool: &mut BlockPool) {
        self.close(pool);
        self.computed = 0;
        self.indexed = 0;
        self.sampled = false;
        self.on_device = false;
        self.preemptions += 1;
        self.extend_keys(self.hittable(pool), pool);
        self.ahead = self.tokens.len() - pool.touch(&self.keys[..self.hittable(pool)], &self.tokens) * pool.block_tokens();
    }

    /// Gives its blocks back.
    pub(super) fn close(&mut self, pool: &mut BlockPool) {
        pool.free(std::mem::take(&mut self.table));
    }

    /// Whether it is about to compute a block that `other` needs too, so that `other` does better to wait for it.
    pub(super) fn computes_prefix_of(&self, other: &Sequence) -> bool {
        self.keys.get(self.indexed).is_some_and(|key| other.keys.get(self.indexed) == Some(key))
    }

    /// Its next `count` positions are computed; blocks that are full now become findable.
    pub(super) fn advance(&mut self, count: usize, pool: &mut BlockPool) {
        self.computed += count;
        self.on_device = true;
        let size = pool.block_tokens();
        self.extend_keys(self.computed / size, pool);
        for block in self.indexed..self.computed / size {
            pool.insert(self.table.blocks()[block], self.keys[block], &self.tokens[block * size..][..size]);
        }
        self.indexed = self.computed / size;
    }

    /// Takes the token that was drawn after its last one; says why it ends, if it ends.
    pub(super) fn draw(&mut self, token: TokenId, stop_tokens: &[TokenId]) -> Option<Finish> {
        if !self.ignore_stop && stop_tokens.contains(&token) {
            return Some(Finish::Stop);
        }
        self.tokens.push(token);
        self.sampled = true;
        (self.tokens.len() >= self.limit).then_some(Finish::Length)
    }

    /// Whether the log-probabilities of its prompt are wanted.
    pub(super) fn scores_prompt(&self) -> bool {
        self.score_prompt
    }

    /// The tokens after the positions planned, as far as they are the prompt's and their log-probabilities are wanted.
    pub(super) fn targets(&self) -> &[TokenId] {
        if !self.score_prompt || self.computed + 1 >= self.prompt {
            return &[];
        }
        &self.tokens[self.computed + 1..(self.computed + self.planned + 1).min(self.prompt)]
    }

    /// Blocks a cached prefix may cover: not the one of its last token, whose logits are needed.
    fn hittable(&self, pool: &BlockPool) -> usize {
        if self.score_prompt {
            return 0;
        }
        (self.tokens.len() - 1) / pool.block_tokens()
    }

    fn extend_keys(&mut self, blocks: usize, pool: &BlockPool) {
        let size = pool.block_tokens();
        for block in self.keys.len()..blocks {
            let parent = self.keys.last().copied().unwrap_or(self.root);
            self.keys.push(pool.child(parent, &self.tokens[block * size..][..size]));
        }
    }
}
