//! A model on the CPU device.

use super::llama::{Activations, Llama};
use super::step::{Batch, Compute, Outcome, Step};
use crate::call::TokenId;
use crate::clock::Clock;
use crate::cpu::{Device, KvCache, Reservation, Turn};
use crate::engine::{DeviceError, Logprob};
use std::sync::Arc;
use std::time::Duration;

/// Computes steps on the CPU device.
pub(super) struct OnCpu {
    device: Arc<Device>,
    llama: Llama,
    cache: KvCache,
    /// Ids the tokenizer knows; padding rows of the embedding beyond them are never drawn.
    vocabulary: usize,
    activations: Activations,
    /// What changed logits were before.
    saved: Vec<f32>,
    clock: Clock,
    /// The device's budget stays taken as long as this lives.
    _reserved: Reservation,
}

/// Prompt positions whose logits are computed at once: a prefill's all together would take a hundred megabytes.
const SCORED_AT_ONCE: usize = 16;

// === impl OnCpu ===

impl OnCpu {
    pub(super) fn new(device: Arc<Device>, llama: Llama, cache: KvCache, vocabulary: usize, reserved: Reservation) -> Self {
        let (activations, saved, clock) = (Activations::default(), Vec::new(), Clock::system());
        Self { device, llama, cache, vocabulary, activations, saved, clock, _reserved: reserved }
    }

    /// Padding rows of the embedding are no tokens.
    fn mask(&mut self) {
        let rows = self.llama.shape().vocabulary;
        for logits in self.activations.logits.chunks_exact_mut(rows) {
            logits[self.vocabulary.min(rows)..].fill(f32::NEG_INFINITY);
        }
    }

    /// Changes logits as the step says.
    fn shape(&mut self, step: &Step) {
        let rows = self.llama.shape().vocabulary;
        self.saved.clear();
        for change in &step.changes {
            let logits = &mut self.activations.logits[change.draw as usize * rows..][..rows];
            // Ids outside of the embedding have no logit.
            let logit = logits.get_mut(change.id as usize);
            self.saved.push(logit.as_deref().copied().unwrap_or_default());
            if let Some(logit) = logit {
                *logit = change.of(*logit);
            }
        }
    }

    /// Makes the logits what the model said.
    fn restore(&mut self, step: &Step) {
        let rows = self.llama.shape().vocabulary;
        for (change, saved) in step.changes.iter().zip(&self.saved) {
            let logits = &mut self.activations.logits[change.draw as usize * rows..][..rows];
            if let Some(logit) = logits.get_mut(change.id as usize) {
                *logit = *saved;
            }
        }
    }

    /// The log-probabilities that the step wants, of draws and of prompts.
    fn logprobs(&mut self, turn: &Turn<'_>, step: &Step, out: &mut Outcome) {
        let rows = self.llama.shape().vocabulary;
        if step.logprobs.iter().any(Option::is_some) {
            self.restore(step);
        }
        let logits = self.activations.logits.chunks_exact(rows);
        for ((logits, wanted), drawn) in logits.zip(&step.logprobs).zip(&out.drawn) {
            out.logprobs.extend(wanted.map(|top| logprob(turn, logits, *drawn, top)));
        }
        // Only now, since this replaces the logits of the draws.
        for scores in step.scores.chunks(SCORED_AT_ONCE) {
            let outputs: Vec<usize> = scores.iter().map(|score| score.at).collect();
            self.llama.logits(turn, &outputs, &mut self.activations);
            self.mask();
            let logits = self.activations.logits.chunks_exact(rows);
            out.scored.extend(logits.zip(scores).map(|(logits, score)| logprob(turn, logits, score.id, score.top)));
        }
    }
}

fn logprob(turn: &Turn<'_>, logits: &[f32], id: TokenId, top: u32) -> Logprob {
    let (logprob, top) = turn.log_probabilities(logits, id, top);
    Logprob { id, logprob, top }
}

impl Compute for OnCpu {
    fn compute(&mut self, step: &Step, out: &mut Outcome) -> Result<Duration, DeviceError> {
        out.logprobs.clear();
        out.scored.clear();
        let device = self.device.clone();
        let turn = device.turn(); // waiting for it isn't the device's time
        let from = self.clock.now();
        self.llama.forward(&turn, &mut self.cache, &step.batch, &mut self.activations);
        self.mask();
        self.shape(step);
        let Activations { logits, scratch, .. } = &mut self.activations;
        turn.sample(logits, self.llama.shape().vocabulary, &step.draws, scratch, &mut out.drawn);
        self.logprobs(&turn, step, out);
        Ok(self.clock.now() - from)
    }

    fn logits(&mut self, batch: &Batch) -> Result<&[f32], DeviceError> {
        let turn = self.device.turn();
        self.llama.forward(&turn, &mut self.cache, batch, &mut self.activations);
        Ok(&self.activations.logits)
    }
}
