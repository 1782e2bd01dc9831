//! A tiny Llama model with random weights, as a GGUF file: small enough for every test, real enough for every code path.
//!
//! It's written by hand, byte by byte, and shares no code with the reader that it tests.

#![allow(dead_code, reason = "each test binary uses its own part of this")]

use half::{bf16, f16};
use std::io::Write;

/// What model to make. The same fields give the same bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TinyModel {
    /// Transformer blocks.
    pub layers: usize,
    /// Query heads; `embedding` is split over them.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// The width of the model.
    pub embedding: usize,
    /// The width of the feed-forward part.
    pub ff: usize,
    /// Tokens, at least; unused ones fill up what the tokenizer doesn't need.
    pub vocabulary: usize,
    /// The context length the file claims.
    pub context: usize,
    /// How matrices are stored: `f32`, `q4_k`, …; embedding and ff must be whole blocks.
    pub dtype: &'static str,
    /// Whether the head has a matrix of its own instead of the embedding's.
    pub output: bool,
    /// Whether the file has `rope_freqs.weight`.
    pub rope_factors: bool,
    /// Where the weights come from.
    pub seed: u64,
}

/// An element type: its name, its number in the file, elements and bytes of a block.
struct Store(&'static str, u32, usize, usize);

const STORES: [Store; 11] = [
    Store("f32", 0, 1, 4),
    Store("f16", 1, 1, 2),
    Store("q4_0", 2, 32, 18),
    Store("q4_1", 3, 32, 20),
    Store("q5_0", 6, 32, 22),
    Store("q5_1", 7, 32, 24),
    Store("q8_0", 8, 32, 34),
    Store("q4_k", 12, 256, 144),
    Store("q5_k", 13, 256, 176),
    Store("q6_k", 14, 256, 210),
    Store("bf16", 30, 1, 2),
];

/// Every element type's name.
pub(crate) const DTYPES: [&str; 11] = ["f32", "f16", "bf16", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q4_k", "q5_k", "q6_k"];

/// Pairs the tokenizer merges, best first; `Ġ` is a space.
const MERGES: [(&str, &str); 13] = [
    ("h", "e"),
    ("Ġ", "t"),
    ("Ġt", "he"),
    ("i", "n"),
    ("a", "n"),
    ("an", "d"),
    ("Ġ", "and"),
    ("e", "r"),
    ("o", "u"),
    ("Ġ", "w"),
    ("l", "l"),
    ("he", "ll"),
    ("hell", "o"),
];

/// The token that ends an answer.
pub(crate) const STOP_TOKEN: u32 = 2;

const CHATML: &str = "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

/// The model as a GGUF file's bytes.
pub(crate) fn llama(model: TinyModel) -> Vec<u8> {
    let mut file = File { random: Random(model.seed), keys: 0, metadata: Vec::new(), tensors: Vec::new() };
    file.hyperparameters(model);
    file.tokenizer(model);
    file.weights(model);
    file.bytes()
}

/// The model as a file, gone with the value.
pub(crate) fn file(model: TinyModel) -> tempfile::TempPath {
    let mut file = tempfile::Builder::new().suffix(".gguf").tempfile().expect("a temporary file can be made");
    file.write_all(&llama(model)).expect("a temporary file can be written");
    file.into_temp_path()
}

// === impl TinyModel ===

impl Default for TinyModel {
    fn default() -> Self {
        Self {
            layers: 2,
            heads: 4,
            kv_heads: 2,
            embedding: 256,
            ff: 512,
            vocabulary: 288,
            context: 2048,
            dtype: "f32",
            output: false,
            rope_factors: false,
            seed: 1,
        }
    }
}

/// A file in the making.
struct File {
    random: Random,
    keys: u64,
    metadata: Vec<u8>,
    tensors: Vec<(String, Vec<usize>, u32, Vec<u8>)>, // shape outermost first
}

// === impl File ===

impl File {
    fn hyperparameters(&mut self, model: TinyModel) {
        self.text("general.architecture", "llama");
        self.text("general.name", "tiny");
        for (key, value) in [
            ("llama.context_length", model.context),
            ("llama.embedding_length", model.embedding),
            ("llama.block_count", model.layers),
            ("llama.feed_forward_length", model.ff),
            ("llama.attention.head_count", model.heads),
            ("llama.attention.head_count_kv", model.kv_heads),
            ("llama.rope.dimension_count", model.embedding / model.heads),
            ("llama.vocab_size", tokens(model).len()),
            ("general.file_type", 0),
        ] {
            self.key(key, 4, &(value as u32).to_le_bytes());
        }
        self.key("llama.attention.layer_norm_rms_epsilon", 6, &1e-5f32.to_le_bytes());
        self.key("llama.rope.freq_base", 6, &10_000f32.to_le_bytes());
    }

    fn tokenizer(&mut self, model: TinyModel) {
        let tokens = tokens(model);
        let kind = |token: &String| match token {
            special if special.starts_with("<|") => 3,
            unused if unused.starts_with("[unused") => 5,
            _ => 1i32,
        };
        let types: Vec<i32> = tokens.iter().map(kind).collect();
        let merges: Vec<String> = MERGES.iter().map(|(left, right)| format!("{left} {right}")).collect();
        self.text("tokenizer.ggml.model", "gpt2");
        self.text("tokenizer.ggml.pre", "smollm");
        self.list("tokenizer.ggml.tokens", 8, tokens.len(), &tokens.iter().flat_map(|token| string(token)).collect::<Vec<u8>>());
        self.list("tokenizer.ggml.token_type", 5, types.len(), &types.iter().flat_map(|kind| kind.to_le_bytes()).collect::<Vec<u8>>());
        self.list("tokenizer.ggml.merges", 8, merges.len(), &merges.iter().flat_map(|merge| string(merge)).collect::<Vec<u8>>());
        for (key, id) in [("unknown", 0u32), ("bos", 1), ("eos", STOP_TOKEN)] {
            self.key(&format!("tokenizer.ggml.{key}_token_id"), 4, &id.to_le_bytes());
        }
        self.key("tokenizer.ggml.add_bos_token", 7, &[0]);
        self.key("tokenizer.ggml.add_space_prefix", 7, &[0]);
        self.text("tokenizer.chat_template", CHATML);
    }

    fn weights(&mut self, model: TinyModel) {
        let TinyModel { embedding, ff, .. } = model;
        let head = embedding / model.heads;
        let vocabulary = tokens(model).len();
        self.matrix("token_embd.weight", vocabulary, embedding, model.dtype);
        for layer in 0..model.layers {
            let name = |part: &str| format!("blk.{layer}.{part}.weight");
            self.norm(&name("attn_norm"), embedding);
            self.matrix(&name("attn_q"), embedding, embedding, model.dtype);
            self.matrix(&name("attn_k"), head * model.kv_heads, embedding, model.dtype);
            self.matrix(&name("attn_v"), head * model.kv_heads, embedding, model.dtype);
            self.matrix(&name("attn_output"), embedding, embedding, model.dtype);
            self.norm(&name("ffn_norm"), embedding);
            self.matrix(&name("ffn_gate"), ff, embedding, model.dtype);
            self.matrix(&name("ffn_up"), ff, embedding, model.dtype);
            self.matrix(&name("ffn_down"), embedding, ff, model.dtype);
        }
        self.norm("output_norm.weight", embedding);
        if model.output {
            self.matrix("output.weight", vocabulary, embedding, model.dtype);
        }
        if model.rope_factors {
            let factors: Vec<u8> = (0..head / 2).flat_map(|i| (1.0 + i as f32 / 4.0).to_le_bytes()).collect();
            self.tensors.push(("rope_freqs.weight".to_owned(), vec![head / 2], 0, factors));
        }
    }

    /// Weights around 1.
    fn norm(&mut self, name: &str, length: usize) {
        let data = (0..length).flat_map(|_| (1.0 + 0.1 * self.random.signed()).to_le_bytes()).collect();
        self.tensors.push((name.to_owned(), vec![length], 0, data));
    }

    /// Random weights with a spread of about 1/√columns, so that activations keep their size.
    fn matrix(&mut self, name: &str, rows: usize, columns: usize, dtype: &str) {
        let Store(_, id, elements, bytes) = STORES.iter().find(|store| store.0 == dtype).expect("a known element type");
        assert_eq!(columns % elements, 0, "rows of {name} are whole blocks of {dtype}");
        let spread = 1.0 / (columns as f32).sqrt();
        let data: Vec<u8> = (0..rows * columns / elements).flat_map(|_| self.random.block(dtype, spread)).collect();
        assert_eq!(data.len(), rows * columns / elements * bytes);
        self.tensors.push((name.to_owned(), vec![rows, columns], *id, data));
    }

    fn key(&mut self, key: &str, kind: u32, value: &[u8]) {
        self.metadata.extend(string(key));
        self.metadata.extend(kind.to_le_bytes());
        self.metadata.extend(value);
        self.keys += 1;
    }

    fn text(&mut self, key: &str, value: &str) {
        self.key(key, 8, &string(value));
    }

    fn list(&mut self, key: &str, kind: u32, count: usize, values: &[u8]) {
        self.key(key, 9, &[&kind.to_le_bytes()[..], &(count as u64).to_le_bytes(), values].concat());
    }

    fn bytes(self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(3u32.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend(self.keys.to_le_bytes());
        out.extend(self.metadata);
        let mut offset = 0u64;
        for (name, shape, id, data) in &self.tensors {
            out.extend(string(name));
            out.extend((shape.len() as u32).to_le_bytes());
            shape.iter().rev().for_each(|length| out.extend((*length as u64).to_le_bytes()));
            out.extend(id.to_le_bytes());
            out.extend(offset.to_le_bytes());
            offset += (data.len() as u64).next_multiple_of(32);
        }
        for (_, _, _, data) in &self.tensors {
            out.resize(out.len().next_multiple_of(32), 0);
            out.extend(data);
        }
        out.resize(out.len().next_multiple_of(32), 0);
        out
    }
}

/// The tokens: three special ones, the 256 bytes in GPT-2's alphabet, what merges make, and unused ones.
fn tokens(model: TinyModel) -> Vec<String> {
    let mut tokens: Vec<String> = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"].map(str::to_owned).to_vec();
    // GPT-2 writes bytes that aren't printable as the characters from U+0100 on, in order.
    let printable = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    let mut next = 0x100;
    for byte in 0..=255u8 {
        let c = if printable(byte) { char::from(byte) } else { char::from_u32(next).expect("below the surrogates") };
        next += u32::from(!printable(byte));
        tokens.push(c.to_string());
    }
    tokens.extend(MERGES.iter().map(|(left, right)| format!("{left}{right}")));
    let unused = tokens.len()..model.vocabulary.max(tokens.len());
    tokens.extend(unused.map(|id| format!("[unused{id}]")));
    tokens
}

fn string(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
}

/// SplitMix64.
struct Random(u64);

// === impl Random ===

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Between −1 and 1.
    fn signed(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    fn raw(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.next() as u8).collect()
    }

    /// A valid block whose elements have about this spread around 0. The divisors are the spreads of the formats' integers.
    fn block(&mut self, dtype: &str, spread: f32) -> Vec<u8> {
        let half = |x: f32| f16::from_f32(x).to_le_bytes();
        let uniform = spread * 3f32.sqrt();
        let d = spread * (1.0 + 0.5 * self.signed());
        match dtype {
            "f32" => (uniform * self.signed()).to_le_bytes().to_vec(),
            "f16" => half(uniform * self.signed()).to_vec(),
            "bf16" => bf16::from_f32(uniform * self.signed()).to_le_bytes().to_vec(),
            "q4_0" => [&half(d / 4.6)[..], &self.raw(16)].concat(),
            "q4_1" => [&half(d / 4.6)[..], &half(-7.5 * d / 4.6), &self.raw(16)].concat(),
            "q5_0" => [&half(d / 9.2)[..], &self.raw(20)].concat(),
            "q5_1" => [&half(d / 9.2)[..], &half(-15.5 * d / 9.2), &self.raw(20)].concat(),
            "q8_0" => [&half(d / 73.0)[..], &self.raw(32)].concat(),
            "q4_k" => [&half(d / 250.0)[..], &half(7.5 * d / 250.0), &self.raw(140)].concat(),
            "q5_k" => [&half(d / 500.0)[..], &half(15.5 * d / 500.0), &self.raw(172)].concat(),
            "q6_k" => {
                let levels = self.raw(192);
                let scales: Vec<u8> = self.raw(16).iter().map(|byte| (*byte as i8 >> 2) as u8).collect();
                [&levels[..], &scales, &half(d / 342.0)].concat()
            }
            other => panic!("no element type is called {other}"),
        }
    }
}
