//! The forward pass says what an independent reference says, token for token.
//!
//! `numpy-smollm2-135m.json` holds the five likeliest tokens and their log-probabilities at every step of five texts, from a
//! float32 implementation that shares no code with this one.

mod support;

use roundhouse::config::{KvDtype, Quantize, Shard};
use roundhouse::cpu::{Device, Span};
use roundhouse::model::{Batch, load};
use serde::Deserialize;
use std::sync::Arc;

#[derive(Deserialize)]
struct Golden {
    completions: Vec<Completion>,
}

#[derive(Deserialize)]
struct Completion {
    name: String,
    prompt_tokens: Vec<u32>,
    tokens: Vec<u32>,
    /// At every step the likeliest tokens with their log-probabilities.
    top5: Vec<Vec<(u32, f32)>>,
}

fn golden() -> Golden {
    serde_json::from_str(include_str!("fixtures/numpy-smollm2-135m.json")).expect("the fixture is JSON")
}

/// Log-probabilities of every token at every golden step, teacher-forced, `chunk` positions a step, of the texts whose prompt
/// has at most `longest` tokens.
fn log_probabilities(shard: &Shard, device: &Arc<Device>, chunk: usize, longest: usize, mut each: impl FnMut(&Completion, usize, &[f32])) {
    let mut runner = load(shard, &support::smollm2(), device, &support::Silent).expect("the model loads").into_executor();
    let block_tokens = shard.kv_cache.block_tokens.get();
    for completion in golden().completions.into_iter().filter(|completion| completion.prompt_tokens.len() <= longest) {
        let ids: Vec<u32> = completion.prompt_tokens.iter().chain(&completion.tokens).copied().collect();
        let from = completion.prompt_tokens.len() - 1;
        let blocks = (ids.len() as u32).div_ceil(block_tokens);
        for start in (0..ids.len()).step_by(chunk) {
            let end = (start + chunk).min(ids.len());
            let wanted: Vec<usize> = (start..end).filter(|at| (from..from + completion.tokens.len()).contains(at)).collect();
            let batch = Batch {
                ids: ids[start..end].to_vec(),
                positions: (start as u32..end as u32).collect(),
                spans: vec![Span { start: start as u32, count: (end - start) as u32, blocks: 0..blocks }],
                tables: (0..blocks).rev().collect(),
                outputs: wanted.iter().map(|at| at - start).collect(),
            };
            let logits = runner.score(&batch).expect("the device works");
            if wanted.is_empty() {
                continue;
            }
            for (at, logits) in wanted.iter().zip(logits.chunks_exact(logits.len() / wanted.len())) {
                let top = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                let sum: f64 = logits.iter().map(|logit| f64::from(logit - top).exp()).sum();
                let log_sum = top + sum.ln() as f32;
                let log_probabilities: Vec<f32> = logits.iter().map(|logit| logit - log_sum).collect();
                each(&completion, at - from, &log_probabilities);
            }
        }
    }
}

fn argmax(values: &[f32]) -> u32 {
    let best = values.iter().enumerate().fold(0, |best, (i, value)| if *value > values[best] { i } else { best });
    best as u32
}

fn float_path_equals_the_reference(chunk: usize, longest: usize) {
    let mut shard = support::smollm2_shard();
    shard.quantize = Quantize::F32;
    shard.kv_cache.dtype = KvDtype::F32;
    let mut steps = 0;
    log_probabilities(&shard, &support::device(2), chunk, longest, |completion, step, got| {
        let want = &completion.top5[step];
        assert_eq!(argmax(got), want[0].0, "{} step {step}: argmax", completion.name);
        for &(id, log_probability) in want {
            let difference = (got[id as usize] - log_probability).abs();
            assert!(difference < 2e-3, "{} step {step} token {id}: {} instead of {log_probability}", completion.name, got[id as usize]);
        }
        steps += 1;
    });
    let want: usize = golden()
        .completions
        .iter()
        .filter(|completion| completion.prompt_tokens.len() <= longest)
        .map(|completion| completion.top5.len())
        .sum();
    assert_eq!(steps, want);
}

#[test]
fn the_f32_path_has_every_argmax_and_log_probability_of_the_reference() {
    float_path_equals_the_reference(512, usize::MAX);
}

#[test]
fn the_f32_path_is_as_exact_token_by_token_as_in_one_chunk() {
    float_path_equals_the_reference(1, 100);
}

#[test]
fn the_quantized_path_has_the_argmax_of_the_reference_wherever_the_gap_allows() {
    let mut compared = 0;
    log_probabilities(&support::smollm2_shard(), &support::device(2), 512, usize::MAX, |completion, step, got| {
        let want = &completion.top5[step];
        if want[0].1 - want[1].1 > 0.5 {
            assert_eq!(argmax(got), want[0].0, "{} step {step}", completion.name);
            compared += 1;
        }
    });
    assert!(compared > 100, "only {compared} steps had a gap");
}
