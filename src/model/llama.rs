//! The `llama` architecture (Llama, SmolLM2, Mistral): hyperparameters, weights and a forward pass for each device.

mod cpu;
mod weights;

use super::gguf::Gguf;
use super::load::LoadError;
pub(super) use cpu::{Activations, Llama};
pub(super) use weights::weight_bytes;

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
