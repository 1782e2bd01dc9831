//! One step between the runner and its device: what is computed, what is drawn, and what came of it.

use crate::call::TokenId;
use crate::cpu::{Draw, Span};
use crate::engine::{DeviceError, Logprob};
use std::time::Duration;

/// One step's tokens as the device reads them: rows of one ragged batch.
#[derive(Debug, Default)]
pub struct Batch {
    /// Input tokens, row after row.
    pub ids: Vec<TokenId>,
    /// Their positions in their sequences.
    pub positions: Vec<u32>,
    /// The rows.
    pub spans: Vec<Span>,
    /// Block tables that the rows index.
    pub tables: Vec<u32>,
    /// Indices into `ids` of the positions whose logits are wanted.
    pub outputs: Vec<usize>,
}

/// A batch and what is wanted of it.
#[derive(Default)]
pub(super) struct Step {
    pub(super) batch: Batch,
    /// One for each of the batch's outputs.
    pub(super) draws: Vec<Draw>,
    /// What changes their logits before, in the order of the draws; one draw's ids differ.
    pub(super) changes: Vec<Change>,
    /// Of which draws the log-probability is wanted, and those of how many of the likeliest tokens.
    pub(super) logprobs: Vec<Option<u32>>,
    /// Tokens of prompts whose log-probabilities are wanted.
    pub(super) scores: Vec<Score>,
}

/// A change of one logit, `penalized(logit + add) − minus[0] − minus[1]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Change {
    /// Of which draw.
    pub(super) draw: u32,
    /// Of which token.
    pub(super) id: TokenId,
    pub(super) add: f32,
    /// What a positive logit is divided by and a negative one multiplied by.
    pub(super) repetition: f32,
    pub(super) minus: [f32; 2],
}

/// A token of a prompt whose log-probability is wanted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Score {
    /// Index of the position before it in the batch.
    pub(super) at: usize,
    /// The token.
    pub(super) id: TokenId,
    /// How many of the likeliest tokens' are wanted, too.
    pub(super) top: u32,
}

/// What a step brought.
#[derive(Default)]
pub(super) struct Outcome {
    /// One token for each draw.
    pub(super) drawn: Vec<TokenId>,
    /// Of the draws that want them, by what the model itself said.
    pub(super) logprobs: Vec<Logprob>,
    /// One for each score.
    pub(super) scored: Vec<Logprob>,
}

/// A model on a device.
pub(super) trait Compute: Send {
    /// Computes a step and replaces `out` by what it brought; returns how long the device was busy.
    fn compute(&mut self, step: &Step, out: &mut Outcome) -> Result<Duration, DeviceError>;

    /// The logits of the batch's outputs, `[outputs, rows of the embedding]`.
    fn logits(&mut self, batch: &Batch) -> Result<&[f32], DeviceError>;
}

// === impl Step ===

impl Step {
    pub(super) fn clear(&mut self) {
        let Self { batch, draws, changes, logprobs, scores } = self;
        let Batch { ids, positions, spans, tables, outputs } = batch;
        ids.clear();
        positions.clear();
        spans.clear();
        tables.clear();
        outputs.clear();
        draws.clear();
        changes.clear();
        logprobs.clear();
        scores.clear();
    }
}

// === impl Change ===

impl Change {
    pub(super) fn of(&self, logit: f32) -> f32 {
        let raised = logit + self.add;
        let repeated = if raised > 0.0 { raised / self.repetition } else { raised * self.repetition };
        repeated - self.minus[0] - self.minus[1]
    }
}
