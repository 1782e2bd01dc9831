//! From a weights file and a shard's configuration to something a shard's thread can run.

use super::cpu::OnCpu;
use super::gguf::{Gguf, GgufError, chat_template, vocabulary};
use super::llama::{Llama, Shape, weight_bytes};
use super::quantize::QuantizeError;
use super::runner::Runner;
use super::source::Progress;
use crate::config;
use crate::cpu::{CpuError, Device, KvCache, KvShape, Reservation};
use crate::engine::Limits;
use crate::text::{Text, TextError};
use std::path::Path;
use std::sync::Arc;

/// Why a model can't be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file isn't a sound GGUF.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// A metadata key that the architecture needs isn't there.
    #[error("the file has no `{key}`")]
    Missing {
        /// The key or tensor.
        key: &'static str,
    },
    /// A tensor that the architecture needs isn't there.
    #[error("the file has no tensor `{name}`")]
    MissingTensor {
        /// The tensor.
        name: String,
    },
    /// A tensor that the architecture's code doesn't use; leaving it out would change the answers.
    #[error("the file has a tensor `{name}` that this architecture's code doesn't know")]
    UnknownTensor {
        /// The tensor.
        name: String,
    },
    /// A tensor's shape contradicts the hyperparameters.
    #[error("tensor `{name}` has shape {found:?} where the hyperparameters need {expected:?}")]
    Shape {
        /// The tensor.
        name: String,
        /// By the hyperparameters.
        expected: Vec<usize>,
        /// In the file.
        found: Vec<usize>,
    },
    /// Something the code doesn't do.
    #[error("`{what}` = {value} isn't supported")]
    Unsupported {
        /// The key.
        what: &'static str,
        /// Its value.
        value: String,
    },
    /// The KV cache can't hold a single block.
    #[error("kv_cache.memory = {memory} bytes is less than one block, which takes {block} bytes")]
    TinyKvCache {
        /// As configured.
        memory: u64,
        /// Bytes of one block.
        block: u64,
    },
    /// The tokenizer or the template is unusable.
    #[error(transparent)]
    Text(#[from] TextError),
    /// The device refused: no memory left in its budget, a type it doesn't have.
    #[error(transparent)]
    Device(#[from] CpuError),
    /// A tensor can't be requantized.
    #[error(transparent)]
    Quantize(#[from] QuantizeError),
}

/// A model in memory, ready to be given to a shard's thread.
pub struct Loaded {
    /// Its tokenizer and chat template.
    pub text: Arc<Text>,
    /// What its executor will be able to hold.
    pub limits: Limits,
    /// Identity of weights, quantization, KV type and kind of device: K/V of equal digests are interchangeable, and so are
    /// answers.
    pub digest: [u8; 16],
    device: Arc<Device>,
    llama: Llama,
    kv: KvShape,
    reserved: Reservation,
}

/// The tokenizer and the chat template of a weights file, without its weights.
///
/// # Errors
/// The file can't be read, or has no tokenizer that is built in.
pub fn tokenizer(path: &Path) -> Result<Arc<Text>, LoadError> {
    text(&Gguf::open(path)?)
}

fn text(gguf: &Gguf) -> Result<Arc<Text>, LoadError> {
    Ok(Arc::new(Text::new(vocabulary(gguf)?, chat_template(gguf)?)?))
}

/// Loads the weights at `path` as the shard's configuration says.
///
/// # Errors
/// The file is unsound or needs something that isn't there, or the device's budget has no room for it.
pub fn load(shard: &config::Shard, path: &Path, device: &Arc<Device>, progress: &dyn Progress) -> Result<Loaded, LoadError> {
    let gguf = Gguf::open(path)?;
    let architecture = gguf.architecture()?;
    if architecture != "llama" {
        return Err(LoadError::Unsupported { what: "general.architecture", value: architecture.to_owned() });
    }
    let shape = Shape::read(&gguf)?;
    let text = text(&gguf)?;
    let (kv, limits) = kv_cache(shard, &shape)?;
    // No sequence is longer than the whole pool.
    let positions = shape.context.min(kv.blocks * kv.block_tokens);
    let rope = positions as u64 * shape.head_dim as u64 * size_of::<f32>() as u64;
    let memory = weight_bytes(&gguf, shard.quantize, |dtype, rows, columns| (rows * dtype.row_bytes(columns)) as u64)
        + kv.bytes_per_block() * kv.blocks as u64
        + rope;
    let reserved = device.reserve(memory, shard.name.as_str())?;
    let bytes = gguf.tensors().map(|tensor| tensor.data.len() as u64).sum();
    progress.start(Some(bytes), &format!("loading {}", shard.name));
    let llama = Llama::load(&gguf, shape, positions, shard.quantize, progress)?;
    progress.done();
    Ok(Loaded { text, limits, digest: digest(&gguf, shard), device: device.clone(), llama, kv, reserved })
}

fn kv_cache(shard: &config::Shard, shape: &Shape) -> Result<(KvShape, Limits), LoadError> {
    let block_tokens = shard.kv_cache.block_tokens.get();
    let mut kv = KvShape {
        layers: shape.layers,
        kv_heads: shape.kv_heads,
        head_dim: shape.head_dim,
        blocks: 0,
        block_tokens: block_tokens as usize,
        dtype: shard.kv_cache.dtype,
    };
    let (memory, block) = (shard.kv_cache.memory, kv.bytes_per_block());
    let blocks = u32::try_from(memory / block).unwrap_or(u32::MAX);
    if blocks == 0 {
        return Err(LoadError::TinyKvCache { memory, block });
    }
    kv.blocks = blocks as usize;
    let limits = Limits {
        blocks,
        block_tokens,
        max_batch_tokens: shard.max_batch_tokens,
        max_sequences: shard.max_sequences,
        max_context: u32::try_from(shape.context).unwrap_or(u32::MAX),
    };
    Ok((kv, limits))
}

fn digest(gguf: &Gguf, shard: &config::Shard) -> [u8; 16] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&gguf.digest());
    // The kind of device, too: another kind adds up in another order.
    hasher.update(format!("cpu {:?} {:?}", shard.quantize, shard.kv_cache.dtype).as_bytes());
    let mut digest = [0; 16];
    digest.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
    digest
}

// === impl Loaded ===

impl Loaded {
    /// The executor; allocates the KV cache. Called on the shard's own thread.
    pub fn into_executor(self) -> Runner {
        let vocabulary = self.text.vocabulary_size() as usize;
        let model = OnCpu::new(self.device, self.llama, KvCache::new(self.kv), vocabulary, self.reserved);
        Runner::new(Box::new(model), self.limits)
    }
}
