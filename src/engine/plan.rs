//! One step's work as a printable value: a ragged batch that mixes prefill chunks and decode tokens.

use super::{BlockId, Sampling, SeqId};
use crate::call::TokenId;
use std::ops::Range;

/// One step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// The rows of the ragged batch.
    pub rows: Vec<Row>,
    /// Tokens that rows refer to by `Input::Known`.
    pub tokens: Vec<TokenId>,
    /// Block tables that rows refer to by `Row::blocks`: block `i` of a row holds its positions
    /// `i × block_tokens .. (i + 1) × block_tokens`.
    pub blocks: Vec<BlockId>,
    /// Sequences whose first row is in this step (again, after a preemption).
    pub started: Vec<Start>,
    /// Sequences that have ended or were preempted since the last step; the device forgets them before it runs this one.
    pub ended: Vec<SeqId>,
}

/// Consecutive positions of one sequence whose K/V this step computes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Whose.
    pub seq: SeqId,
    /// The first position.
    pub start: u32,
    /// How many positions, at least 1.
    pub count: u32,
    /// Which keys each position sees.
    pub mask: Mask,
    /// Where its tokens are.
    pub input: Input,
    /// Its block table in `Plan::blocks`, covering positions `0 .. start + count`.
    pub blocks: Range<u32>,
    /// How many of its last positions draw a token: 0 inside a prompt, 1 at its end and in decode.
    pub sample: u32,
    /// What its first positions were followed by in the prompt, in `Plan::tokens`, where the log-probabilities of these
    /// tokens are wanted; usually empty.
    pub score: Range<u32>,
}

/// Which keys a position sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mask {
    /// All positions up to its own.
    Causal,
}

/// Where a row's tokens are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// In `Plan::tokens`.
    Known(Range<u32>),
    /// The token this sequence drew last, still on the device; `count` is 1.
    Sampled,
}

/// What the device must know of a sequence before its first row.
#[derive(Clone, Debug, PartialEq)]
pub struct Start {
    /// Whose.
    pub seq: SeqId,
    /// How its tokens are drawn.
    pub sampling: Sampling,
    /// All its tokens so far in `Plan::tokens`, prompt and output, where `sampling` counts them; else empty.
    pub history: Range<u32>,
    /// How many of these are the prompt's.
    pub prompt: u32,
}
