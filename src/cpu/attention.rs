//! Attention over the paged KV cache, for prefill chunks and decode tokens alike.
//!
//! A query meets its keys in splits of [`SPLIT`], counted from position 0, in ascending order, with a running maximum and
//! sum across them (online softmax). A score's lane is one key, an output's lane one dimension, the sum of a split's weights
//! has 8 lanes by the key's place in the split; keys beyond the query's own position are skipped. So a row's bits depend on
//! its own keys only: not on the chunk, the batch, the block size or the threads.

use super::exp::exp;
use super::isa::{Path, per_path};
use super::pool::Pieces;
use super::{KvCache, Scratch, Span, Turn};
use crate::cpu::activation::grown;
use std::ops::Range;

/// Keys that share one maximum.
const SPLIT: usize = 256;

/// Queries, over heads and neighbouring rows, that share one pass over the keys.
const QUERIES: usize = 16;

/// What all units of one call share.
struct Call<'a> {
    path: Path,
    cache: &'a KvCache,
    layer: usize,
    /// Query heads of one kv head.
    group: usize,
    heads: usize,
    scale: f32,
    q: &'a [f32],
}

/// Neighbouring rows of one sequence and the query heads of one kv head.
struct Unit<'a> {
    /// In the batch.
    rows: Range<usize>,
    /// Position of the first row.
    position: usize,
    kv_head: usize,
    blocks: &'a [u32],
}

/// The state of a unit's queries; query `row · group + head`.
struct Queries<'a> {
    /// `[queries, head_dim]`, scaled.
    q: &'a mut [f32],
    /// `[queries, SPLIT]`: scores, then weights.
    scores: &'a mut [f32],
    /// `[queries, head_dim]`: Σ weight · value so far.
    sums: &'a mut [f32],
    /// The largest score so far.
    tops: &'a mut [f32],
    /// Σ weight so far.
    weights: &'a mut [f32],
    /// Keys of the split that each query sees.
    live: &'a mut [usize],
}

impl Turn<'_> {
    /// Causal attention of a batch's rows, each over its own sequence's keys in `layer`, which must have been written up to
    /// the row's position. `q` and `out` are `[rows, heads, head_dim]`; query head `h` reads kv head `h / (heads / kv_heads)`.
    ///
    /// # Panics
    /// If the spans' rows aren't those of `q` and `out`, the heads don't divide, or a block table is too short.
    #[expect(clippy::too_many_arguments, reason = "an operation of the forward pass with all its inputs")]
    pub fn attention(
        &self,
        cache: &KvCache,
        layer: usize,
        spans: &[Span],
        tables: &[u32],
        q: &[f32],
        heads: usize,
        scale: f32,
        scratch: &mut Scratch,
        out: &mut [f32],
    ) {
        let shape = *cache.shape();
        let rows: usize = spans.iter().map(|span| span.count as usize).sum();
        assert!(heads.is_multiple_of(shape.kv_heads), "attention: {heads} heads on {} kv heads", shape.kv_heads);
        assert_eq!(q.len(), rows * heads * shape.head_dim, "attention: q is [{rows}, {heads}, {}]", shape.head_dim);
        assert_eq!(q.len(), out.len(), "attention: q and out");
        let group = heads / shape.kv_heads;
        let call = Call { path: self.path(), cache, layer, group, heads, scale, q };
        let unit_rows = (QUERIES / group).max(1);
        let threads = self.threads();
        let buffers = Pieces::new(grown(&mut scratch.floats, threads, Vec::new()));
        let out = Pieces::new(out);
        self.run(&|share| {
            // SAFETY: one share, one buffer.
            let buffer = &mut unsafe { buffers.get(share..share + 1) }[0];
            let buffer = grown(buffer, buffer_len(&call, unit_rows), 0.0);
            // Dealt out one by one, so that every thread gets early rows and late ones, which see more keys.
            for (i, unit) in units(spans, tables, unit_rows, shape.kv_heads).enumerate() {
                if i % threads == share {
                    attend(&call, &unit, buffer, &out);
                }
            }
        });
    }
}

/// All units of a batch.
fn units<'a>(spans: &'a [Span], tables: &'a [u32], unit_rows: usize, kv_heads: usize) -> impl Iterator<Item = Unit<'a>> {
    let firsts = spans.iter().scan(0, |row, span| {
        let first = *row;
        *row += span.count as usize;
        Some((span, first))
    });
    firsts.flat_map(move |(span, first)| {
        let blocks = &tables[span.blocks.start as usize..span.blocks.end as usize];
        let count = span.count as usize;
        (0..count).step_by(unit_rows).flat_map(move |at| {
            let rows = first + at..first + (at + unit_rows).min(count);
            let position = span.start as usize + at;
            (0..kv_heads).map(move |kv_head| Unit { rows: rows.clone(), position, kv_head, blocks })
        })
    })
}

/// Floats that one thread needs.
fn buffer_len(call: &Call<'_>, unit_rows: usize) -> usize {
    let queries = unit_rows * call.group;
    queries * (2 * call.cache.shape().head_dim + SPLIT + 2) + call.cache.buffer_len()
}

/// Computes one unit and writes its part of the output.
fn attend(call: &Call<'_>, unit: &Unit<'_>, buffer: &mut [f32], out: &Pieces<'_, f32>) {
    let head_dim = call.cache.shape().head_dim;
    let queries = unit.rows.len() * call.group;
    let (q, buffer) = buffer.split_at_mut(queries * head_dim);
    let (sums, buffer) = buffer.split_at_mut(queries * head_dim);
    let (scores, buffer) = buffer.split_at_mut(queries * SPLIT);
    let (tops, buffer) = buffer.split_at_mut(queries);
    let (weights, buffer) = buffer.split_at_mut(queries);
    let mut live = [0; QUERIES];
    let mut more_live = Vec::new();
    let live = if queries <= QUERIES { &mut live[..queries] } else { grown(&mut more_live, queries, 0) };
    let mut state = Queries { q, scores, sums, tops, weights, live };
    state.begin(call, unit);
    let keys = unit.position + unit.rows.len();
    for first in (0..keys).step_by(SPLIT) {
        split(call, unit, first, keys.min(first + SPLIT), &mut state, &mut buffer[..call.cache.buffer_len()]);
    }
    let width = call.group * head_dim;
    for (i, row) in unit.rows.clone().enumerate() {
        let at = row * call.heads * head_dim + unit.kv_head * width;
        // SAFETY: a unit's rows and heads are its own, and a unit has one thread.
        let out = unsafe { out.get(at..at + width) };
        for (g, out) in out.chunks_exact_mut(head_dim).enumerate() {
            let query = i * call.group + g;
            for (out, sum) in out.iter_mut().zip(&state.sums[query * head_dim..]) {
                *out = sum / state.weights[query];
            }
        }
    }
}

/// Adds the keys of positions `first..end`, one split, to a unit's queries.
fn split(call: &Call<'_>, unit: &Unit<'_>, first: usize, end: usize, state: &mut Queries<'_>, buffer: &mut [f32]) {
    let tokens = call.cache.shape().block_tokens;
    // Runs of positions inside one block: the block, its tokens, their place in the split.
    let runs = || {
        (first / tokens..=(end - 1) / tokens).map(move |b| {
            let (from, to) = (first.max(b * tokens), end.min((b + 1) * tokens));
            (unit.blocks[b], from - b * tokens..to - b * tokens, from - first)
        })
    };
    for (query, live) in state.live.iter_mut().enumerate() {
        *live = (unit.position + query / call.group + 1).saturating_sub(first).min(end - first);
    }
    for (block, run, at) in runs() {
        let keys = call.cache.keys(call.layer, block, unit.kv_head, buffer);
        score_run(call.path, keys, tokens, run, at, state);
    }
    soften(call.path, state);
    for (block, run, at) in runs() {
        let values = call.cache.values(call.layer, block, unit.kv_head, buffer);
        value_run(call.path, values, run, at, state);
    }
}

// === impl Queries ===

impl Queries<'_> {
    fn head_dim(&self) -> usize {
        self.q.len() / self.live.len()
    }

    /// Nothing seen yet.
    fn begin(&mut self, call: &Call<'_>, unit: &Unit<'_>) {
        let width = self.q.len() / unit.rows.len();
        for (to, row) in self.q.chunks_exact_mut(width).zip(unit.rows.clone()) {
            let at = row * call.heads * (width / call.group) + unit.kv_head * width;
            for (to, q) in to.iter_mut().zip(&call.q[at..at + width]) {
                *to = q * call.scale;
            }
        }
        self.sums.fill(0.0);
        self.tops.fill(f32::NEG_INFINITY);
        self.weights.fill(0.0);
    }
}

per_path! {
    /// Scores of all queries with tokens `run` of a block whose first is at `at` in the split.
    fn score_run(keys: &[f32], tokens: usize, run: Range<usize>, at: usize, state: &mut Queries<'_>) {
        let head_dim = state.head_dim();
        let queries = state.live.len();
        for first in (0..queries).step_by(4) {
            let q = &state.q[first * head_dim..];
            let scores = &mut state.scores[first * SPLIT..];
            match queries - first {
                1 => score_lanes::<1>(keys, tokens, run.clone(), at, q, head_dim, scores),
                2 => score_lanes::<2>(keys, tokens, run.clone(), at, q, head_dim, scores),
                3 => score_lanes::<3>(keys, tokens, run.clone(), at, q, head_dim, scores),
                _ => score_lanes::<4>(keys, tokens, run.clone(), at, q, head_dim, scores),
            }
        }
    }
}

#[inline(always)]
fn score_lanes<const C: usize>(keys: &[f32], tokens: usize, run: Range<usize>, at: usize, q: &[f32], head_dim: usize, scores: &mut [f32]) {
    let mut token = run.start;
    while token < run.end {
        let at = at + token - run.start;
        // Whole vectors where the block has them, even if the last tokens aren't wanted.
        token += match tokens - token {
            16.. => score_block::<C, 16>(keys, tokens, token, run.end, at, q, head_dim, scores),
            8.. => score_block::<C, 8>(keys, tokens, token, run.end, at, q, head_dim, scores),
            _ => score_block::<C, 1>(keys, tokens, token, run.end, at, q, head_dim, scores),
        };
    }
}

/// `L` tokens from `token` on for `C` queries; returns `L`. Scores of tokens before `end` are written.
#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "the inner loop of attention")]
fn score_block<const C: usize, const L: usize>(
    keys: &[f32],
    tokens: usize,
    token: usize,
    end: usize,
    at: usize,
    q: &[f32],
    head_dim: usize,
    scores: &mut [f32],
) -> usize {
    let q: [&[f32]; C] = std::array::from_fn(|c| &q[c * head_dim..][..head_dim]);
    let mut sums = [[0f32; L]; C];
    for (d, keys) in keys.chunks_exact(tokens).take(head_dim).enumerate() {
        let keys: &[f32; L] = keys[token..].first_chunk().expect("invariant: L tokens are left in the block");
        for c in 0..C {
            for lane in 0..L {
                sums[c][lane] += q[c][d] * keys[lane];
            }
        }
    }
    let wanted = L.min(end - token);
    for c in 0..C {
        scores[c * SPLIT + at..][..wanted].copy_from_slice(&sums[c][..wanted]);
    }
    L
}

per_path! {
    /// Turns a split's scores into weights relative to the new maximum, and what was summed before too.
    fn soften(state: &mut Queries<'_>) {
        let head_dim = state.head_dim();
        for query in 0..state.live.len() {
            let scores = &mut state.scores[query * SPLIT..][..state.live[query]];
            if scores.is_empty() {
                continue;
            }
            let mut lanes = [f32::NEG_INFINITY; 8];
            let (eights, rest) = scores.as_chunks::<8>();
            for scores in eights.iter().map(|eight| &eight[..]).chain([rest]) {
                for (lane, score) in lanes.iter_mut().zip(scores) {
                    *lane = if *score > *lane { *score } else { *lane };
                }
            }
            let before = state.tops[query];
            let top = lanes.into_iter().fold(before, |a, b| if b > a { b } else { a });
            let mut lanes = [0f32; 8];
            let (eights, rest) = scores.as_chunks_mut::<8>();
            for scores in eights {
                for (lane, score) in lanes.iter_mut().zip(scores) {
                    *score = exp(*score - top);
                    *lane += *score;
                }
            }
            for (lane, score) in lanes.iter_mut().zip(rest) {
                *score = exp(*score - top);
                *lane += *score;
            }
            let fade = exp(before - top);
            state.tops[query] = top;
            state.weights[query] = state.weights[query] * fade + lanes.into_iter().fold(0.0, |sum, lane| sum + lane);
            for sum in &mut state.sums[query * head_dim..][..head_dim] {
                *sum *= fade;
            }
        }
    }
}

per_path! {
    /// Adds weight · value of tokens `run` of a block, whose first is at `at` in the split, to all queries that see them.
    fn value_run(values: &[f32], run: Range<usize>, at: usize, state: &mut Queries<'_>) {
        let head_dim = state.head_dim();
        let queries = state.live.len();
        let values = &values[run.start * head_dim..run.end * head_dim];
        for first in (0..queries).step_by(4) {
            let count = (queries - first).min(4);
            let seen = |query: usize| state.live[query].saturating_sub(at).min(run.len());
            let seen: [usize; 4] = std::array::from_fn(|c| seen(first + c.min(count - 1)));
            let weights = &state.scores[first * SPLIT + at..];
            let sums = &mut state.sums[first * head_dim..];
            // What all of them see together, then each one's rest: the order is ascending for each.
            let common = seen[0].min(seen[1]).min(seen[2]).min(seen[3]);
            let together = &values[..common * head_dim];
            match count {
                1 => value_lanes::<1>(together, head_dim, weights, sums),
                2 => value_lanes::<2>(together, head_dim, weights, sums),
                3 => value_lanes::<3>(together, head_dim, weights, sums),
                _ => value_lanes::<4>(together, head_dim, weights, sums),
            }
            for (c, seen) in seen.into_iter().enumerate().take(count).filter(|(_, seen)| *seen > common) {
                let rest = &values[common * head_dim..seen * head_dim];
                value_lanes::<1>(rest, head_dim, &weights[c * SPLIT + common..], &mut sums[c * head_dim..]);
            }
        }
    }
}

#[inline(always)]
fn value_lanes<const C: usize>(values: &[f32], head_dim: usize, weights: &[f32], sums: &mut [f32]) {
    let mut d = 0;
    while d < head_dim {
        d += match head_dim - d {
            16.. => value_block::<C, 16>(values, head_dim, d, weights, sums),
            8.. => value_block::<C, 8>(values, head_dim, d, weights, sums),
            _ => value_block::<C, 1>(values, head_dim, d, weights, sums),
        };
    }
}

/// `L` dimensions from `d` on for `C` queries; returns `L`.
#[inline(always)]
fn value_block<const C: usize, const L: usize>(values: &[f32], head_dim: usize, d: usize, weights: &[f32], sums: &mut [f32]) -> usize {
    let mut lanes: [[f32; L]; C] = std::array::from_fn(|c| std::array::from_fn(|lane| sums[c * head_dim + d + lane]));
    for (token, values) in values.chunks_exact(head_dim).enumerate() {
        let values: &[f32; L] = values[d..].first_chunk().expect("invariant: L dimensions are left in the head");
        for c in 0..C {
            let weight = weights[c * SPLIT + token];
            for lane in 0..L {
                lanes[c][lane] += weight * values[lane];
            }
        }
    }
    for c in 0..C {
        sums[c * head_dim + d..][..L].copy_from_slice(&lanes[c]);
    }
    L
}
