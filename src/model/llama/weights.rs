//! A llama's tensors, read from their file and packed for a device one by one.

use super::Shape;
use crate::config::Quantize;
use crate::model::gguf::{Gguf, Tensor};
use crate::model::load::LoadError;
use crate::model::quantize::{quantize, stored};
use crate::model::source::Progress;
use crate::reference::{Dtype, dequantize};
use std::collections::HashSet;

/// All weights of a llama, as a device holds matrices and vectors.
pub(in crate::model) struct Weights<M, V> {
    pub(super) embedding: M,
    pub(super) layers: Vec<Layer<M, V>>,
    pub(super) norm: V,
    /// `None`: the embedding is the head too.
    head: Option<M>,
}

/// One transformer block's.
pub(super) struct Layer<M, V> {
    pub(super) attention_norm: V,
    pub(super) query: M,
    pub(super) key: M,
    pub(super) value: M,
    pub(super) output: M,
    pub(super) feed_forward_norm: V,
    pub(super) gate: M,
    pub(super) up: M,
    pub(super) down: M,
}

/// Brings weights to a device.
pub(super) trait Pack {
    type Matrix;
    type Vector;

    /// Row `i` on the device is `raw`'s row `order(i)`.
    fn matrix(
        &mut self,
        dtype: Dtype,
        rows: usize,
        columns: usize,
        raw: &[u8],
        order: Option<&dyn Fn(usize) -> usize>,
    ) -> Result<Self::Matrix, LoadError>;

    fn vector(&mut self, values: Vec<f32>) -> Result<Self::Vector, LoadError>;
}

// === impl Weights ===

impl<M, V> Weights<M, V> {
    /// Reads all tensors, and what each rotary frequency is divided by.
    pub(super) fn load(
        gguf: &Gguf,
        shape: &Shape,
        quantize: Quantize,
        progress: &dyn Progress,
        device: &mut dyn Pack<Matrix = M, Vector = V>,
    ) -> Result<(Self, Vec<f32>), LoadError> {
        let mut source = Source { gguf, quantize, used: HashSet::new(), progress, device };
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
            Some(_) => source.values("rope_freqs.weight", shape.head_dim / 2)?,
            None => vec![1.0; shape.head_dim / 2],
        };
        let factors = factors.iter().map(|factor| factor * shape.rope_scale).collect();
        source.check_all_used()?;
        Ok((Self { embedding, layers, norm, head }, factors))
    }

    /// What makes logits.
    pub(super) fn head(&self) -> &M {
        self.head.as_ref().unwrap_or(&self.embedding)
    }
}

/// Bytes the weights will take, from the file's header alone: `matrix` says how many a matrix of this type, rows and columns
/// takes.
pub(in crate::model) fn weight_bytes(gguf: &Gguf, to: Quantize, matrix: impl Fn(Dtype, usize, usize) -> u64) -> u64 {
    let bytes = |tensor: Tensor<'_>| match *tensor.shape.as_slice() {
        [rows, columns] => matrix(stored(to, tensor.dtype, &tensor.shape), rows, columns),
        _ => tensor.data.len() as u64,
    };
    gguf.tensors().map(bytes).sum()
}

/// llama's GGUF rows of Q and K are permuted for adjacent-pair rotation; row `row` of the halves form is this row there.
fn halves_to_pairs(row: usize, head_dim: usize) -> usize {
    let (head, within) = (row / head_dim, row % head_dim);
    let (half, pair) = (within / (head_dim / 2), within % (head_dim / 2));
    head * head_dim + 2 * pair + half
}

/// Tensors of a file, each taken once.
struct Source<'a, M, V> {
    gguf: &'a Gguf,
    quantize: Quantize,
    used: HashSet<String>,
    /// Hears of every byte that is packed.
    progress: &'a dyn Progress,
    device: &'a mut dyn Pack<Matrix = M, Vector = V>,
}

// === impl Source ===

impl<'a, M, V> Source<'a, M, V> {
    fn tensor(&mut self, name: &str, shape: &[usize]) -> Result<Tensor<'a>, LoadError> {
        let tensor = self.gguf.tensor(name).ok_or_else(|| LoadError::MissingTensor { name: name.to_owned() })?;
        if tensor.shape != shape {
            return Err(LoadError::Shape { name: name.to_owned(), expected: shape.to_vec(), found: tensor.shape });
        }
        self.used.insert(name.to_owned());
        Ok(tensor)
    }

    fn matrix(&mut self, name: &str, rows: usize, columns: usize, order: Option<&dyn Fn(usize) -> usize>) -> Result<M, LoadError> {
        let tensor = self.tensor(name, &[rows, columns])?;
        let to = stored(self.quantize, tensor.dtype, &tensor.shape);
        let packed = if to == tensor.dtype {
            self.device.matrix(to, rows, columns, tensor.data, order)?
        } else {
            self.device.matrix(to, rows, columns, &quantize(tensor.dtype, tensor.data, columns, to)?, order)?
        };
        self.gguf.drop_pages(&tensor);
        self.progress.advance(tensor.data.len() as u64);
        Ok(packed)
    }

    fn vector(&mut self, name: &str, length: usize) -> Result<V, LoadError> {
        let values = self.values(name, length)?;
        self.device.vector(values)
    }

    fn values(&mut self, name: &str, length: usize) -> Result<Vec<f32>, LoadError> {
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
