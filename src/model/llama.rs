//! The `llama` architecture (Llama, SmolLM2, Mistral): hyperparameters, weights and the forward pass.

use super::gguf::{Gguf, Tensor};
use super::load::LoadError;
use super::quantize::{quantize, stored};
use super::source::Progress;
use crate::call::TokenId;
use crate::config::Quantize;
use crate::cpu::{KvCache, Matrix, RopeTable, Scratch, Span, Turn};
use crate::reference::dequantize;
use std::collections::HashSet;

/// What a llama file says about its shape.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shape {
    /// Transformer blocks.
    pub layers: usize,
    /// Width of the residual stream.
    pub embedding: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; query heads are shared out over them.
    pub kv_heads: usize,
    /// Width of one head.
    pub head_dim: usize,
    /// Width of the feed-forward's hidden layer.
    pub feed_forward: usize,
    /// Rows of the embedding; may exceed the tokenizer's vocabulary.
    pub vocabulary: usize,
    /// Positions the model was trained for.
    pub context: usize,
    /// Added to the mean square in RMSNorm.
    pub epsilon: f32,
    /// Base of the rotary frequencies.
    pub rope_base: f32,
    /// Every rotary frequency is divided by this (linear scaling); 1 without.
    pub rope_scale: f32,
}

/// A llama's weights, packed for the device.
pub struct Llama {
    shape: Shape,
    embedding: Matrix,
    layers: Vec<Layer>,
    norm: Vec<f32>,
    /// `None`: the embedding is the head too.
    head: Option<Matrix>,
    rope: RopeTable,
}

struct Layer {
    attention_norm: Vec<f32>,
    query: Matrix,
    key: Matrix,
    value: Matrix,
    output: Matrix,
    feed_forward_norm: Vec<f32>,
    gate: Matrix,
    up: Matrix,
    down: Matrix,
}

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

/// Activations of a step, reused from step to step.
#[derive(Default)]
pub struct Activations {
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
    pub scratch: Scratch,
    /// The wanted logits, `[outputs, vocabulary]`.
    pub logits: Vec<f32>,
}

// === impl Shape ===

impl Shape {
    /// Reads and checks the hyperparameters.
    ///
    /// # Errors
    /// A key is missing, out of range or asks for something this architecture's code doesn't do.
    pub fn read(gguf: &Gguf) -> Result<Self, LoadError> {
        let need = |key: &'static str| -> Result<usize, LoadError> {
            let value = gguf.u64(key)?.ok_or(LoadError::Missing { key })?;
            match usize::try_from(value) {
                Ok(value) if (1..=most(key)).contains(&value) => Ok(value),
                _ => Err(LoadError::Unsupported { what: key, value: value.to_string() }),
            }
        };
        let float = |key, default: Option<f32>| -> Result<f32, LoadError> {
            let value = gguf.f32(key)?.or(default).ok_or(LoadError::Missing { key })?;
            if value.is_finite() && value > 0.0 { Ok(value) } else { Err(LoadError::Unsupported { what: key, value: value.to_string() }) }
        };
        let (embedding, heads) = (need("llama.embedding_length")?, need("llama.attention.head_count")?);
        let optional = |key, default: usize| if gguf.u64(key)?.is_some() { need(key) } else { Ok(default) };
        let shape = Self {
            layers: need("llama.block_count")?,
            embedding,
            heads,
            kv_heads: optional("llama.attention.head_count_kv", heads)?,
            head_dim: optional("llama.attention.key_length", embedding / heads)?,
            feed_forward: need("llama.feed_forward_length")?,
            vocabulary: gguf
                .tensor("token_embd.weight")
                .and_then(|t| t.shape.first().copied())
                .ok_or(LoadError::Missing { key: "token_embd.weight" })?,
            context: need("llama.context_length")?,
            epsilon: float("llama.attention.layer_norm_rms_epsilon", None)?,
            rope_base: float("llama.rope.freq_base", Some(10_000.0))?,
            rope_scale: Self::rope_scale(gguf)?,
        };
        let rotated = optional("llama.rope.dimension_count", shape.head_dim)?;
        if rotated != shape.head_dim || !shape.head_dim.is_multiple_of(2) {
            return Err(LoadError::Unsupported { what: "llama.rope.dimension_count", value: rotated.to_string() });
        }
        if !shape.heads.is_multiple_of(shape.kv_heads) {
            return Err(LoadError::Unsupported { what: "llama.attention.head_count_kv", value: shape.kv_heads.to_string() });
        }
        if let Some(experts) = gguf.u64("llama.expert_count")?.filter(|experts| *experts > 0) {
            return Err(LoadError::Unsupported { what: "llama.expert_count", value: experts.to_string() });
        }
        Ok(shape)
    }

    fn rope_scale(gguf: &Gguf) -> Result<f32, LoadError> {
        match gguf.str("llama.rope.scaling.type")? {
            None | Some("none") => Ok(1.0),
            Some("linear") => Ok(gguf.f32("llama.rope.scaling.factor")?.filter(|factor| *factor > 0.0).unwrap_or(1.0)),
            Some(other) => Err(LoadError::Unsupported { what: "llama.rope.scaling.type", value: other.to_owned() }),
        }
    }
}

// === impl Llama ===

impl Llama {
    /// Packs the weights for the device, tensor by tensor, for sequences of up to `positions` tokens; the file's pages are given back on the way.
    ///
    /// # Errors
    /// A tensor is missing, has another shape than the hyperparameters say, or isn't known.
    pub fn load(gguf: &Gguf, shape: Shape, positions: usize, quantize: Quantize, progress: &dyn Progress) -> Result<Self, LoadError> {
        let mut source = Source { gguf, quantize, used: HashSet::new(), progress };
        let (d, q, kv, ff) = (shape.embedding, shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim, shape.feed_forward);
        let embedding = source.matrix("token_embd.weight", shape.vocabulary, d, None)?;
        let head =
            if gguf.tensor("output.weight").is_some() { Some(source.matrix("output.weight", shape.vocabulary, d, None)?) } else { None };
        let unpermute = |row| halves_to_pairs(row, shape.head_dim);
        let mut layers = Vec::with_capacity(shape.layers.min(1024));
        for layer in 0..shape.layers {
            let name = |part: &str| format!("blk.{layer}.{part}.weight");
            layers.push(Layer {
                attention_norm: source.vector(&name("attn_norm"), d)?,
                query: source.matrix(&name("attn_q"), q, d, Some(&unpermute))?,
                key: source.matrix(&name("attn_k"), kv, d, Some(&unpermute))?,
                value: source.matrix(&name("attn_v"), kv, d, None)?,
                output: source.matrix(&name("attn_output"), d, q, None)?,
                feed_forward_norm: source.vector(&name("ffn_norm"), d)?,
                gate: source.matrix(&name("ffn_gate"), ff, d, None)?,
                up: source.matrix(&name("ffn_up"), ff, d, None)?,
                down: source.matrix(&name("ffn_down"), d, ff, None)?,
            });
        }
        let norm = source.vector("output_norm.weight", d)?;
        let factors = match gguf.tensor("rope_freqs.weight") {
            Some(_) => source.vector("rope_freqs.weight", shape.head_dim / 2)?,
            None => vec![1.0; shape.head_dim / 2],
        };
        let factors: Vec<f32> = factors.iter().map(|factor| factor * shape.rope_scale).collect();
        source.check_all_used()?;
        let rope = RopeTable::new(shape.head_dim, shape.rope_base, Some(&factors), positions);
        Ok(Self { shape, embedding, layers, norm, head, rope })
    }

    /// The hyperparameters.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Bytes the packed weights take.
    pub fn bytes(&self) -> usize {
        let layer = |l: &Layer| [&l.query, &l.key, &l.value, &l.output, &l.gate, &l.up, &l.down].iter().map(|m| m.bytes()).sum::<usize>();
        self.embedding.bytes() + self.head.as_ref().map_or(0, Matrix::bytes) + self.layers.iter().map(layer).sum::<usize>()
    }

    /// One step: writes the batch's K/V to the cache and leaves the wanted logits in `activations.logits`.
    pub fn forward(&self, turn: &Turn<'_>, cache: &mut KvCache, batch: &Batch, activations: &mut Activations) {
        let a = activations;
        let shape = &self.shape;
        a.resize(shape, batch.ids.len());
        let scale = 1.0 / (shape.head_dim as f32).sqrt();
        turn.embed(&self.embedding, &batch.ids, &mut a.hidden);
        for (index, layer) in self.layers.iter().enumerate() {
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
    pub fn logits(&self, turn: &Turn<'_>, outputs: &[usize], activations: &mut Activations) {
        let a = activations;
        a.gather(outputs, self.shape.embedding);
        turn.rms_norm(&a.projected, &self.norm, self.shape.epsilon, &mut a.normed);
        a.logits.resize(outputs.len() * self.shape.vocabulary, 0.0);
        turn.matmul(&a.normed, self.head.as_ref().unwrap_or(&self.embedding), &mut a.scratch, &mut a.logits);
    }
}

/// The most that a hyperparameter may be: several times what the largest published models have, and little enough that no
/// product of them overflows. A file that says more is broken.
fn most(key: &str) -> usize {
    match key {
        "llama.block_count" | "llama.attention.head_count" | "llama.attention.head_count_kv" => 1 << 10,
        "llama.attention.key_length" | "llama.rope.dimension_count" => 1 << 10,
        "llama.embedding_length" => 1 << 17,
        "llama.feed_forward_length" => 1 << 20,
        _ => 1 << 24,
    }
}

/// llama's GGUF rows of Q and K are permuted for adjacent-pair rotation; row `row` of the halves form is this row there.
fn halves_to_pairs(row: usize, head_dim: usize) -> usize {
    let (head, within) = (row / head_dim, row % head_dim);
    let (half, pair) = (within / (head_dim / 2), within % (head_dim / 2));
    head * head_dim + 2 * pair + half
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

/// Tensors of a file, each taken once.
struct Source<'a> {
    gguf: &'a Gguf,
    quantize: Quantize,
    used: HashSet<String>,
    /// Hears of every byte that is packed.
    progress: &'a dyn Progress,
}

// === impl Source ===

impl<'a> Source<'a> {
    fn tensor(&mut self, name: &str, shape: &[usize]) -> Result<Tensor<'a>, LoadError> {
        let tensor = self.gguf.tensor(name).ok_or_else(|| LoadError::MissingTensor { name: name.to_owned() })?;
        if tensor.shape != shape {
            return Err(LoadError::Shape { name: name.to_owned(), expected: shape.to_vec(), found: tensor.shape });
        }
        self.used.insert(name.to_owned());
        Ok(tensor)
    }

    fn matrix(&mut self, name: &str, rows: usize, columns: usize, order: Option<&dyn Fn(usize) -> usize>) -> Result<Matrix, LoadError> {
        let tensor = self.tensor(name, &[rows, columns])?;
        let to = stored(self.quantize, tensor.dtype, &tensor.shape);
        let packed = if to == tensor.dtype {
            Matrix::pack(to, rows, columns, tensor.data, order)?
        } else {
            Matrix::pack(to, rows, columns, &quantize(tensor.dtype, tensor.data, columns, to)?, order)?
        };
        self.gguf.drop_pages(&tensor);
        self.progress.advance(tensor.data.len() as u64);
        Ok(packed)
    }

    fn vector(&mut self, name: &str, length: usize) -> Result<Vec<f32>, LoadError> {
        let tensor = self.tensor(name, &[length])?;
        let mut values = vec![0.0; length];
        dequantize(tensor.dtype, tensor.data, &mut values);
        Ok(values)
    }

    /// A tensor nobody asked for (a bias, an adapter) would change the answer if it were left out silently.
    fn check_all_used(&self) -> Result<(), LoadError> {
        match self.gguf.tensors().find(|tensor| !self.used.contains(tensor.name)) {
            Some(tensor) => Err(LoadError::UnknownTensor { name: tensor.name.to_owned() }),
            None => Ok(()),
        }
    }
}
