//! A llama on the CPU device.

use super::Shape;
use super::weights::{Pack, Weights};
use crate::config::Quantize;
use crate::cpu::{KvCache, Matrix, RopeTable, Scratch, Turn};
use crate::model::gguf::Gguf;
use crate::model::load::LoadError;
use crate::model::source::Progress;
use crate::model::step::Batch;
use crate::reference::Dtype;

/// A llama's weights, packed for the CPU device.
pub(in crate::model) struct Llama {
    shape: Shape,
    weights: Weights<Matrix, Vec<f32>>,
    rope: RopeTable,
}

/// Activations of a step, reused from step to step.
#[derive(Default)]
pub(in crate::model) struct Activations {
    hidden: Vec<f32>,
    normed: Vec<f32>,
    query: Vec<f32>,
    key: Vec<f32>,
    value: Vec<f32>,
    attended: Vec<f32>,
    gate: Vec<f32>,
    up: Vec<f32>,
    projected: Vec<f32>,
    /// Room for the kernels' own intermediate values.
    pub(in crate::model) scratch: Scratch,
    /// The wanted logits, `[outputs, vocabulary]`.
    pub(in crate::model) logits: Vec<f32>,
}

/// Packs weights for the CPU device.
struct Packer;

impl Pack for Packer {
    type Matrix = Matrix;
    type Vector = Vec<f32>;

    fn matrix(
        &mut self,
        dtype: Dtype,
        rows: usize,
        columns: usize,
        raw: &[u8],
        order: Option<&dyn Fn(usize) -> usize>,
    ) -> Result<Matrix, LoadError> {
        Ok(Matrix::pack(dtype, rows, columns, raw, order)?)
    }

    fn vector(&mut self, values: Vec<f32>) -> Result<Vec<f32>, LoadError> {
        Ok(values)
    }
}

// === impl Llama ===

impl Llama {
    /// Packs the weights for the device, tensor by tensor, for sequences of up to `positions` tokens; the file's pages are given back on the way.
    ///
    /// # Errors
    /// A tensor is missing, has another shape than the hyperparameters say, or isn't known.
    pub(in crate::model) fn load(
        gguf: &Gguf,
        shape: Shape,
        positions: usize,
        quantize: Quantize,
        progress: &dyn Progress,
    ) -> Result<Self, LoadError> {
        let (weights, factors) = Weights::load(gguf, &shape, quantize, progress, &mut Packer)?;
        let rope = RopeTable::new(shape.head_dim, shape.rope_base, Some(&factors), positions);
        Ok(Self { shape, weights, rope })
    }

    /// The hyperparameters.
    pub(in crate::model) fn shape(&self) -> &Shape {
        &self.shape
    }

    /// One step: writes the batch's K/V to the cache and leaves the wanted logits in `activations.logits`.
    pub(in crate::model) fn forward(&self, turn: &Turn<'_>, cache: &mut KvCache, batch: &Batch, activations: &mut Activations) {
        let a = activations;
        let shape = &self.shape;
        a.resize(shape, batch.ids.len());
        let scale = 1.0 / (shape.head_dim as f32).sqrt();
        turn.embed(&self.weights.embedding, &batch.ids, &mut a.hidden);
        for (index, layer) in self.weights.layers.iter().enumerate() {
            // x += Wo · attention(rope(Wq · norm(x)), rope(Wk · norm(x)), Wv · norm(x))
            turn.rms_norm(&a.hidden, &layer.attention_norm, shape.epsilon, &mut a.normed);
            turn.matmul(&a.normed, &layer.query, &mut a.scratch, &mut a.query);
            turn.matmul(&a.normed, &layer.key, &mut a.scratch, &mut a.key);
            turn.matmul(&a.normed, &layer.value, &mut a.scratch, &mut a.value);
            turn.rope(&mut a.query, shape.heads, &batch.positions, &self.rope);
            turn.rope(&mut a.key, shape.kv_heads, &batch.positions, &self.rope);
            turn.write_kv(cache, index, &batch.spans, &batch.tables, &a.key, &a.value);
            turn.attention(cache, index, &batch.spans, &batch.tables, &a.query, shape.heads, scale, &mut a.scratch, &mut a.attended);
            turn.matmul(&a.attended, &layer.output, &mut a.scratch, &mut a.projected);
            turn.add(&mut a.hidden, &a.projected);
            // x += Wdown · (silu(Wgate · norm(x)) ⊙ Wup · norm(x))
            turn.rms_norm(&a.hidden, &layer.feed_forward_norm, shape.epsilon, &mut a.normed);
            turn.matmul(&a.normed, &layer.gate, &mut a.scratch, &mut a.gate);
            turn.matmul(&a.normed, &layer.up, &mut a.scratch, &mut a.up);
            turn.silu_mul(&mut a.gate, &a.up);
            turn.matmul(&a.gate, &layer.down, &mut a.scratch, &mut a.projected);
            turn.add(&mut a.hidden, &a.projected);
        }
        self.logits(turn, &batch.outputs, a);
    }

    /// Leaves the logits of these positions of the batch that was computed last in `activations.logits`: only where they are
    /// wanted, since the head is the largest matrix of a small model.
    pub(in crate::model) fn logits(&self, turn: &Turn<'_>, outputs: &[usize], activations: &mut Activations) {
        let a = activations;
        a.gather(outputs, self.shape.embedding);
        turn.rms_norm(&a.projected, &self.weights.norm, self.shape.epsilon, &mut a.normed);
        a.logits.resize(outputs.len() * self.shape.vocabulary, 0.0);
        turn.matmul(&a.normed, self.weights.head(), &mut a.scratch, &mut a.logits);
    }
}

// === impl Activations ===

impl Activations {
    fn resize(&mut self, shape: &Shape, tokens: usize) {
        let (q, kv) = (shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim);
        for (buffer, width) in [
            (&mut self.hidden, shape.embedding),
            (&mut self.normed, shape.embedding),
            (&mut self.query, q),
            (&mut self.key, kv),
            (&mut self.value, kv),
            (&mut self.attended, q),
            (&mut self.gate, shape.feed_forward),
            (&mut self.up, shape.feed_forward),
            (&mut self.projected, shape.embedding),
        ] {
            buffer.resize(tokens * width, 0.0);
        }
    }

    /// The wanted rows of `hidden`, into `projected`; `normed` is made as long.
    fn gather(&mut self, rows: &[usize], width: usize) {
        self.projected.clear();
        for row in rows {
            self.projected.extend_from_slice(&self.hidden[row * width..(row + 1) * width]);
        }
        self.normed.resize(rows.len() * width, 0.0);
    }
}
