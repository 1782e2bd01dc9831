//! Joins a model to the CPU device as the engine's [`Executor`].

use super::llama::{Activations, Batch, Llama};
use super::shaping::{Shaper, restore};
use crate::call::TokenId;
use crate::clock::Clock;
use crate::cpu::{Device, Draw, KvCache, Reservation, Span, Turn};
use crate::engine::{DeviceError, Executor, Input, Limits, Logprob, Plan, Row, Sampled, Sampling, SeqId, Ticket};
use std::collections::HashMap;
use std::sync::Arc;

/// Runs plans on the CPU device. A step is computed when it is launched; `collect` only hands it over.
pub struct Runner {
    device: Arc<Device>,
    llama: Llama,
    cache: KvCache,
    limits: Limits,
    /// Ids the tokenizer knows; padding rows of the embedding beyond them are never drawn.
    vocabulary: usize,
    sequences: HashMap<SeqId, Alive>,
    batch: Batch,
    draws: Vec<Draw>,
    /// Whose each draw is.
    drawing: Vec<SeqId>,
    /// For each draw, the logits that were shaped.
    shaped: Vec<Vec<(TokenId, f32)>>,
    drawn: Vec<TokenId>,
    activations: Activations,
    ready: Option<(u64, Sampled)>,
    launched: u64,
    clock: Clock,
    /// The device's budget stays taken as long as the runner lives.
    _reserved: Reservation,
}

/// What the device keeps of a sequence.
struct Alive {
    sampling: Sampling,
    shaper: Option<Shaper>,
    last: Option<TokenId>,
}

/// Prompt positions whose logits are computed at once: a prefill's all together would take a hundred megabytes.
const SCORED_AT_ONCE: usize = 16;

// === impl Runner ===

impl Runner {
    pub(super) fn new(device: Arc<Device>, llama: Llama, cache: KvCache, limits: Limits, vocabulary: usize, reserved: Reservation) -> Self {
        Self {
            device,
            llama,
            cache,
            limits,
            vocabulary,
            sequences: HashMap::new(),
            batch: Batch::default(),
            draws: Vec::new(),
            drawing: Vec::new(),
            shaped: Vec::new(),
            drawn: Vec::new(),
            activations: Activations::default(),
            ready: None,
            launched: 0,
            clock: Clock::system(),
            _reserved: reserved,
        }
    }

    /// Runs one batch outside any plan and returns its logits, `[outputs, rows of the embedding]`: for scoring a text.
    pub fn score(&mut self, batch: &Batch) -> &[f32] {
        let turn = self.device.turn();
        self.llama.forward(&turn, &mut self.cache, batch, &mut self.activations);
        &self.activations.logits
    }

    /// The plan's rows as the device reads them.
    fn assemble(&mut self, plan: &Plan) -> Result<(), DeviceError> {
        let batch = &mut self.batch;
        batch.ids.clear();
        batch.positions.clear();
        batch.spans.clear();
        batch.outputs.clear();
        self.draws.clear();
        self.drawing.clear();
        batch.tables.clear();
        batch.tables.extend(plan.blocks.iter().map(|block| block.0));
        for row in &plan.rows {
            let alive = self.sequences.get(&row.seq).ok_or_else(|| broken(row, "was never started"))?;
            match &row.input {
                Input::Known(range) => batch.ids.extend_from_slice(&plan.tokens[range.start as usize..range.end as usize]),
                Input::Sampled => batch.ids.push(alive.last.ok_or_else(|| broken(row, "has drawn nothing yet"))?),
            }
            let end = row.start + row.count;
            batch.positions.extend(row.start..end);
            batch.spans.push(Span { start: row.start, count: row.count, blocks: row.blocks.clone() });
            for position in end - row.sample..end {
                batch.outputs.push(batch.ids.len() - (end - position) as usize);
                let Sampling { temperature, top_k, top_p, min_p, seed, choice, .. } = alive.sampling;
                // A draw is named by the position of the token it yields.
                self.draws.push(Draw { temperature, top_k, top_p, min_p, seed, choice, position: position + 1 });
                self.drawing.push(row.seq);
            }
        }
        Ok(())
    }

    /// Computes the assembled batch; returns how long the device was busy, waiting for its turn apart.
    fn run(&mut self, plan: &Plan) -> Sampled {
        let device = self.device.clone();
        let turn = device.turn();
        let from = self.clock.now();
        self.llama.forward(&turn, &mut self.cache, &self.batch, &mut self.activations);
        self.mask();
        let rows = self.llama.shape().vocabulary;
        self.shape(rows);
        let Activations { logits, scratch, .. } = &mut self.activations;
        turn.sample(logits, rows, &self.draws, scratch, &mut self.drawn);
        let logprobs = self.logprobs(&turn, plan);
        let device_time = self.clock.now() - from;
        drop(turn);
        for (seq, drawn) in self.drawing.iter().zip(&self.drawn) {
            if let Some(alive) = self.sequences.get_mut(seq) {
                alive.last = Some(*drawn);
                if let Some(shaper) = &mut alive.shaper {
                    shaper.drew(*drawn);
                }
            }
        }
        Sampled { ids: self.drawn.clone(), logprobs, device_time }
    }

    /// Padding rows of the embedding are no tokens.
    fn mask(&mut self) {
        let rows = self.llama.shape().vocabulary;
        for logits in self.activations.logits.chunks_exact_mut(rows) {
            logits[self.vocabulary.min(rows)..].fill(f32::NEG_INFINITY);
        }
    }

    /// Shapes the logits of those draws that want it.
    fn shape(&mut self, rows: usize) {
        self.shaped.resize_with(self.shaped.len().max(self.draws.len()), Vec::new);
        for (index, (seq, draw)) in self.drawing.iter().zip(&self.draws).enumerate() {
            self.shaped[index].clear();
            if let Some(shaper) = self.sequences.get(seq).and_then(|alive| alive.shaper.as_ref()) {
                let logits = &mut self.activations.logits[index * rows..][..rows];
                shaper.apply(logits, draw.position, &mut self.shaped[index]);
            }
        }
    }

    /// The log-probabilities that the plan's rows want, by what the model itself said.
    fn logprobs(&mut self, turn: &Turn<'_>, plan: &Plan) -> Vec<Logprob> {
        let wanting = |row: &Row| self.sequences.get(&row.seq).and_then(|alive| alive.sampling.logprobs).is_some();
        if !plan.rows.iter().any(|row| !row.score.is_empty() || row.sample > 0 && wanting(row)) {
            return Vec::new(); // nearly always: a step allocates nothing for what nobody asked for
        }
        let rows = self.llama.shape().vocabulary;
        let (mut of_rows, mut draw, mut first) = (Vec::new(), 0, 0);
        let mut positions = Vec::new();
        for row in &plan.rows {
            let wanted = self.sequences.get(&row.seq).and_then(|alive| alive.sampling.logprobs);
            let mut of_row = Vec::new();
            for _ in 0..row.sample {
                if let Some(top) = wanted {
                    let logits = &mut self.activations.logits[draw * rows..][..rows];
                    restore(logits, &self.shaped[draw]);
                    of_row.push(logprob(turn, logits, self.drawn[draw], top));
                }
                draw += 1;
            }
            positions.extend(
                (first..first + row.score.len()).zip(plan.tokens[row.score.start as usize..row.score.end as usize].iter().copied()),
            );
            first += row.count as usize;
            of_rows.push((row.score.len(), wanted.unwrap_or_default(), of_row));
        }
        // Only now, since this replaces the logits of the draws.
        let mut targets = positions.as_slice();
        let mut out = Vec::new();
        for (scored, top, mut of_row) in of_rows {
            let (own, rest) = targets.split_at(scored);
            targets = rest;
            for piece in own.chunks(SCORED_AT_ONCE) {
                let outputs: Vec<usize> = piece.iter().map(|(position, _)| *position).collect();
                self.llama.logits(turn, &outputs, &mut self.activations);
                self.mask();
                let logits = self.activations.logits.chunks_exact(rows);
                out.extend(logits.zip(piece).map(|(logits, (_, target))| logprob(turn, logits, *target, top)));
            }
            out.append(&mut of_row);
        }
        out
    }
}

fn logprob(turn: &Turn<'_>, logits: &[f32], id: TokenId, top: u32) -> Logprob {
    let (logprob, top) = turn.log_probabilities(logits, id, top);
    Logprob { id, logprob, top }
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
        let sampled = self.run(plan);
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
