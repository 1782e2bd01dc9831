//! Every element type, K-quants included, says what its dequantized weights say: whole synthetic models against a plain f32
//! forward pass that shares nothing with the kernels.

mod support;

use roundhouse::config::{KvDtype, Weights};
use roundhouse::cpu::Span;
use roundhouse::model::gguf::Gguf;
use roundhouse::model::{Batch, load};
use roundhouse::reference;
use support::tiny_model::{self, DTYPES, TinyModel};

/// The tiny model's fixed hyperparameters.
const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const HEAD_DIM: usize = 64;
const LAYERS: usize = 2;
const EPSILON: f32 = 1e-5;
const BASE: f32 = 10_000.0;

fn weights(gguf: &Gguf, name: &str) -> Vec<f32> {
    let tensor = gguf.tensor(name).unwrap_or_else(|| panic!("the file has {name}"));
    let mut values = vec![0.0; tensor.shape.iter().product()];
    reference::dequantize(tensor.dtype, tensor.data, &mut values);
    values
}

/// Rotates adjacent pairs, as the file's Q and K rows are meant to be rotated.
fn rotate(x: &mut [f32], heads: usize) {
    for (position, row) in x.chunks_exact_mut(heads * HEAD_DIM).enumerate() {
        for head in row.chunks_exact_mut(HEAD_DIM) {
            for (pair, two) in head.chunks_exact_mut(2).enumerate() {
                let angle = position as f32 * BASE.powf(-2.0 * pair as f32 / HEAD_DIM as f32);
                let (sin, cos) = angle.sin_cos();
                let [a, b] = [two[0], two[1]];
                two[0] = a * cos - b * sin;
                two[1] = a * sin + b * cos;
            }
        }
    }
}

fn add(x: &mut [f32], y: &[f32]) {
    x.iter_mut().zip(y).for_each(|(x, y)| *x += y);
}

/// Logits of every position.
fn plain_forward(gguf: &Gguf, ids: &[u32]) -> Vec<f32> {
    let embedding = weights(gguf, "token_embd.weight");
    let width = HEADS * HEAD_DIM;
    let mut x: Vec<f32> = ids.iter().flat_map(|id| embedding[*id as usize * width..][..width].to_vec()).collect();
    let product = |x: &[f32], name: &str, columns| reference::matmul(x, &weights(gguf, name), columns);
    for layer in 0..LAYERS {
        let name = |part: &str| format!("blk.{layer}.{part}.weight");
        let normed = reference::rms_norm(&x, &weights(gguf, &name("attn_norm")), EPSILON);
        let (mut q, mut k) = (product(&normed, &name("attn_q"), width), product(&normed, &name("attn_k"), width));
        let v = product(&normed, &name("attn_v"), width);
        rotate(&mut q, HEADS);
        rotate(&mut k, KV_HEADS);
        let attended = reference::attention(&q, &k, &v, 0, HEADS, HEAD_DIM, 1.0 / (HEAD_DIM as f32).sqrt());
        add(&mut x, &product(&attended, &name("attn_output"), width));
        let normed = reference::rms_norm(&x, &weights(gguf, &name("ffn_norm")), EPSILON);
        let hidden = reference::silu_mul(&product(&normed, &name("ffn_gate"), width), &product(&normed, &name("ffn_up"), width));
        add(&mut x, &product(&hidden, &name("ffn_down"), 2 * width));
    }
    let normed = reference::rms_norm(&x, &weights(gguf, "output_norm.weight"), EPSILON);
    reference::matmul(&normed, &embedding, width)
}

/// Logits of every position from the shard's own runner, `chunk` positions a step.
fn runner_forward(path: &std::path::Path, ids: &[u32], chunk: usize) -> Vec<f32> {
    let mut shard = support::smollm2_shard();
    shard.weights = Weights::File(path.to_owned());
    shard.kv_cache.dtype = KvDtype::F32;
    shard.kv_cache.memory = 64 << 20;
    let mut runner = load(&shard, path, &support::device(2), &support::Silent).expect("the tiny model loads").into_executor();
    let mut logits = Vec::new();
    for (index, ids) in ids.chunks(chunk).enumerate() {
        let start = (index * chunk) as u32;
        let batch = Batch {
            ids: ids.to_vec(),
            positions: (start..start + ids.len() as u32).collect(),
            spans: vec![Span { start, count: ids.len() as u32, blocks: 0..4 }],
            tables: vec![7, 3, 11, 5],
            outputs: (0..ids.len()).collect(),
        };
        logits.extend_from_slice(runner.score(&batch).expect("the device works"));
    }
    logits
}

#[test]
fn every_element_type_gives_the_logits_of_its_dequantized_weights() {
    let ids: Vec<u32> = (0..40).map(|i| (i * 37 + 11) % 256).collect();
    for dtype in DTYPES {
        let file = tiny_model::file(TinyModel { dtype, ..TinyModel::default() });
        let want = plain_forward(&Gguf::open(&file).expect("the tiny model is sound"), &ids);
        let got = runner_forward(&file, &ids, 64);
        assert_eq!(got.len(), want.len(), "{dtype}");
        let error: f64 = got.iter().zip(&want).map(|(a, b)| f64::from(a - b).powi(2)).sum();
        let size: f64 = want.iter().map(|b| f64::from(*b).powi(2)).sum();
        let relative = (error / size).sqrt();
        // Quantized weights meet activations rounded to 8 bits, half a step of 1/127 of each block's largest; floats only
        // differ in the order of sums.
        let allowed = match dtype {
            "f32" | "f16" | "bf16" => 1e-4,
            "q4_k" | "q5_k" | "q6_k" => 5e-2, // one scale for 256 activations instead of 32
            _ => 2e-2,
        };
        assert!(relative < allowed, "{dtype}: relative error {relative}");
        let chunked = runner_forward(&file, &ids, 7);
        assert!(got.iter().zip(&chunked).all(|(a, b)| a.to_bits() == b.to_bits()), "{dtype}: chunks change bits");
    }
}
