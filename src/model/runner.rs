//! Joins a model on a device to the engine as its [`Executor`].

use super::shaping::Shaper;
use super::step::{Batch, Compute, Outcome, Score, Step};
use crate::call::TokenId;
use crate::cpu::{Draw, Span};
use crate::engine::{DeviceError, Executor, Input, Limits, Logprob, Plan, Row, Sampled, Sampling, SeqId, Ticket};
use std::collections::HashMap;

/// Runs plans on a device. A step is computed when it is launched; `collect` only hands it over.
pub struct Runner {
    model: Box<dyn Compute>,
    limits: Limits,
    sequences: HashMap<SeqId, Alive>,
    step: Step,
    /// Whose each draw is.
    drawing: Vec<SeqId>,
    outcome: Outcome,
    ready: Option<(u64, Sampled)>,
    launched: u64,
}

/// What the device keeps of a sequence.
struct Alive {
    sampling: Sampling,
    shaper: Option<Shaper>,
    last: Option<TokenId>,
}

// === impl Runner ===

impl Runner {
    pub(super) fn new(model: Box<dyn Compute>, limits: Limits) -> Self {
        Self {
            model,
            limits,
            sequences: HashMap::new(),
            step: Step::default(),
            drawing: Vec::new(),
            outcome: Outcome::default(),
            ready: None,
            launched: 0,
        }
    }

    /// Runs one batch outside any plan and returns its logits, `[outputs, rows of the embedding]`: for scoring a text.
    ///
    /// # Errors
    /// The device failed.
    pub fn score(&mut self, batch: &Batch) -> Result<&[f32], DeviceError> {
        self.model.logits(batch)
    }

    /// The plan as the device reads it.
    fn assemble(&mut self, plan: &Plan) -> Result<(), DeviceError> {
        self.step.clear();
        self.drawing.clear();
        let Step { batch, draws, changes, logprobs, scores } = &mut self.step;
        batch.tables.extend(plan.blocks.iter().map(|block| block.0));
        for row in &plan.rows {
            let alive = self.sequences.get(&row.seq).ok_or_else(|| broken(row, "was never started"))?;
            let first = batch.ids.len();
            match &row.input {
                Input::Known(range) => batch.ids.extend_from_slice(&plan.tokens[range.start as usize..range.end as usize]),
                Input::Sampled => batch.ids.push(alive.last.ok_or_else(|| broken(row, "has drawn nothing yet"))?),
            }
            let end = row.start + row.count;
            batch.positions.extend(row.start..end);
            batch.spans.push(Span { start: row.start, count: row.count, blocks: row.blocks.clone() });
            let Sampling { temperature, top_k, top_p, min_p, seed, choice, logprobs: wanted, .. } = alive.sampling;
            for position in end - row.sample..end {
                batch.outputs.push(batch.ids.len() - (end - position) as usize);
                // A draw is named by the position of the token it yields.
                let draw = Draw { temperature, top_k, top_p, min_p, seed, choice, position: position + 1 };
                if let Some(shaper) = &alive.shaper {
                    shaper.changes(draws.len() as u32, draw.position, changes);
                }
                draws.push(draw);
                logprobs.push(wanted);
                self.drawing.push(row.seq);
            }
            let targets = &plan.tokens[row.score.start as usize..row.score.end as usize];
            let top = wanted.unwrap_or_default();
            scores.extend(targets.iter().zip(first..).map(|(id, at)| Score { at, id: *id, top }));
        }
        Ok(())
    }

    /// Takes note of what was drawn.
    fn drew(&mut self) {
        for (seq, drawn) in self.drawing.iter().zip(&self.outcome.drawn) {
            if let Some(alive) = self.sequences.get_mut(seq) {
                alive.last = Some(*drawn);
                if let Some(shaper) = &mut alive.shaper {
                    shaper.drew(*drawn);
                }
            }
        }
    }

    /// All log-probabilities of the step, row after row: first those of its prompt, then those of what it drew.
    fn logprobs(&mut self, plan: &Plan) -> Vec<Logprob> {
        let (mut scored, mut drawn) = (self.outcome.scored.drain(..), self.outcome.logprobs.drain(..));
        let mut wanted = self.step.logprobs.iter();
        let mut out = Vec::with_capacity(scored.len() + drawn.len());
        for row in &plan.rows {
            out.extend(scored.by_ref().take(row.score.len()));
            let of_row = wanted.by_ref().take(row.sample as usize).flatten().count();
            out.extend(drawn.by_ref().take(of_row));
        }
        out
    }
}

fn broken(row: &Row, what: &str) -> DeviceError {
    DeviceError(format!("the plan's {:?} {what}", row.seq))
}

impl Executor for Runner {
    fn limits(&self) -> Limits {
        self.limits
    }

    fn launch(&mut self, plan: &Plan) -> Result<Ticket, DeviceError> {
        for seq in &plan.ended {
            self.sequences.remove(seq);
        }
        for start in &plan.started {
            let history = &plan.tokens[start.history.start as usize..start.history.end as usize];
            let shaping = start.sampling.shaping.as_deref().cloned();
            let shaper = shaping.map(|shaping| Shaper::new(shaping, history, start.prompt as usize));
            self.sequences.insert(start.seq, Alive { sampling: start.sampling.clone(), shaper, last: None });
        }
        self.assemble(plan)?;
        let device_time = self.model.compute(&self.step, &mut self.outcome)?;
        self.drew();
        let sampled = Sampled { ids: self.outcome.drawn.clone(), logprobs: self.logprobs(plan), device_time };
        self.launched += 1;
        self.ready = Some((self.launched, sampled));
        Ok(Ticket(self.launched))
    }

    fn collect(&mut self, ticket: Ticket, into: &mut Sampled) -> Result<(), DeviceError> {
        match self.ready.take() {
            Some((launched, sampled)) if launched == ticket.0 => {
                *into = sampled;
                Ok(())
            }
            _ => Err(DeviceError(format!("step {} was collected twice or out of order", ticket.0))),
        }
    }
}
