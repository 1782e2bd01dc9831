//! Joins a model to the CPU device as the engine's [`Executor`].

use super::llama::{Activations, Batch, Llama};
use crate::call::TokenId;
use crate::clock::Clock;
use crate::cpu::{Device, Draw, KvCache, Reservation, Span};
use crate::engine::{DeviceError, Executor, Input, Limits, Plan, Row, Sampled, Sampling, SeqId, Ticket};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

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
    last: Option<TokenId>,
}

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
                let Sampling { temperature, top_p, seed, choice } = alive.sampling;
                // A draw is named by the position of the token it yields.
                self.draws.push(Draw { temperature, top_p, seed, choice, position: position + 1 });
            }
        }
        Ok(())
    }

    /// Computes the assembled batch; returns how long the device was busy, waiting for its turn apart.
    fn run(&mut self, plan: &Plan) -> Duration {
        self.drawn.clear();
        let turn = self.device.turn();
        let from = self.clock.now();
        self.llama.forward(&turn, &mut self.cache, &self.batch, &mut self.activations);
        let rows = self.llama.shape().vocabulary;
        let Activations { logits, scratch, .. } = &mut self.activations;
        for logits in logits.chunks_exact_mut(rows) {
            logits[self.vocabulary.min(rows)..].fill(f32::NEG_INFINITY);
        }
        turn.sample(logits, rows, &self.draws, scratch, &mut self.drawn);
        let busy = self.clock.now() - from;
        drop(turn);
        let mut drawn = self.drawn.iter();
        for row in plan.rows.iter().filter(|row| row.sample > 0) {
            let last = drawn.by_ref().take(row.sample as usize).last();
            if let (Some(last), Some(alive)) = (last, self.sequences.get_mut(&row.seq)) {
                alive.last = Some(*last);
            }
        }
        busy
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
            self.sequences.insert(start.seq, Alive { sampling: start.sampling, last: None });
        }
        self.assemble(plan)?;
        let device_time = self.run(plan);
        self.launched += 1;
        self.ready = Some((self.launched, Sampled { ids: self.drawn.clone(), device_time }));
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
