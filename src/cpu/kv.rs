//! The paged KV cache.
//!
//! It is `[layers][blocks][kv_heads]` of one head's keys in one block and then its values: keys as `[head_dim][tokens]`, so
//! that a vector lane of scores is one key, values as `[tokens][head_dim]`, so that a lane of the output is one dimension.

use super::Turn;
use crate::config::KvDtype;
use half::f16;
use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};
use std::ops::Range;

/// The shape of a KV cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvShape {
    /// Layers of the model.
    pub layers: usize,
    /// Heads of keys and values.
    pub kv_heads: usize,
    /// Elements of one head, even.
    pub head_dim: usize,
    /// Blocks of the pool.
    pub blocks: usize,
    /// Tokens of one block.
    pub block_tokens: usize,
    /// The type of its elements.
    pub dtype: KvDtype,
}

/// Keys and values of all sequences of a shard.
pub struct KvCache {
    shape: KvShape,
    store: Store,
}

/// One head of one block: keys, then values.
enum Store {
    F32(Vec<f32>),
    /// Bits of `f16`: zeroed memory of plain integers comes untouched from the system.
    F16(Vec<u16>),
}

/// Consecutive rows of a ragged batch that belong to one sequence. Spans follow each other in the order of the rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// The position of its first row.
    pub start: u32,
    /// How many rows it has.
    pub count: u32,
    /// Its block table in the batch's `tables`, covering positions `0..start + count`.
    pub blocks: Range<u32>,
}

// === impl KvShape ===

impl KvShape {
    /// Bytes of one block over all layers, keys and values.
    pub fn bytes_per_block(&self) -> u64 {
        let element = match self.dtype {
            KvDtype::F32 => 4,
            KvDtype::F16 => 2,
        };
        self.layers as u64 * self.kv_heads as u64 * self.unit() as u64 * element
    }

    /// Elements of one head of one block, keys and values.
    fn unit(&self) -> usize {
        2 * self.head_dim * self.block_tokens
    }

    fn unit_at(&self, layer: usize, block: u32, kv_head: usize) -> Range<usize> {
        let block = block as usize;
        assert!(layer < self.layers && block < self.blocks && kv_head < self.kv_heads, "layer {layer}, block {block} of the KV cache");
        let start = ((layer * self.blocks + block) * self.kv_heads + kv_head) * self.unit();
        start..start + self.unit()
    }
}

// === impl KvCache ===

impl KvCache {
    /// An empty cache. Its memory is touched only when it is used.
    pub fn new(shape: KvShape) -> Self {
        let elements = shape.layers * shape.blocks * shape.kv_heads * shape.unit();
        let store = match shape.dtype {
            KvDtype::F32 => Store::F32(vec![0.0; elements]),
            KvDtype::F16 => Store::F16(vec![0; elements]),
        };
        Self { shape, store }
    }

    pub(super) fn shape(&self) -> &KvShape {
        &self.shape
    }

    /// Keys of one head of one block, `[head_dim][tokens]`, as floats: the cache's own memory, or `buffer` with them widened.
    pub(super) fn keys<'a>(&'a self, layer: usize, block: u32, kv_head: usize, buffer: &'a mut [f32]) -> &'a [f32] {
        let unit = self.shape.unit_at(layer, block, kv_head);
        self.floats(unit.start..unit.start + unit.len() / 2, buffer)
    }

    /// Values of one head of one block, `[tokens][head_dim]`; as [`keys`](Self::keys).
    pub(super) fn values<'a>(&'a self, layer: usize, block: u32, kv_head: usize, buffer: &'a mut [f32]) -> &'a [f32] {
        let unit = self.shape.unit_at(layer, block, kv_head);
        self.floats(unit.start + unit.len() / 2..unit.end, buffer)
    }

    fn floats<'a>(&'a self, at: Range<usize>, buffer: &'a mut [f32]) -> &'a [f32] {
        match &self.store {
            Store::F32(store) => &store[at],
            Store::F16(store) => {
                widen(&store[at], buffer);
                buffer
            }
        }
    }

    /// Floats that [`keys`](Self::keys) and [`values`](Self::values) want as a buffer.
    pub(super) fn buffer_len(&self) -> usize {
        match self.store {
            Store::F32(_) => 0,
            Store::F16(_) => self.shape.unit() / 2,
        }
    }

    fn write(&mut self, layer: usize, block: u32, token: usize, kv_head: usize, k: &[f32], v: &[f32]) {
        let (at, tokens) = (self.shape.unit_at(layer, block, kv_head), self.shape.block_tokens);
        match &mut self.store {
            Store::F32(store) => put(&mut store[at], tokens, token, k, v, |x| x),
            Store::F16(store) => put(&mut store[at], tokens, token, k, v, |x| f16::from_f32(x).to_bits()),
        }
    }
}

/// Writes one token's key and value of one head to a unit.
fn put<T>(unit: &mut [T], tokens: usize, token: usize, k: &[f32], v: &[f32], narrow: impl Fn(f32) -> T) {
    let (keys, values) = unit.split_at_mut(tokens * k.len());
    for (key, &k) in keys[token..].iter_mut().step_by(tokens).zip(k) {
        *key = narrow(k);
    }
    for (value, &v) in values[token * v.len()..].iter_mut().zip(v) {
        *value = narrow(v);
    }
}

/// Widens halves to floats; exact, so the same on every path.
fn widen(halves: &[u16], floats: &mut [f32]) {
    halves.reinterpret_cast::<f16>().convert_to_f32_slice(floats);
}

impl Turn<'_> {
    /// Stores `k` and `v`, `[rows, kv_heads, head_dim]`, of a batch's rows in layer `layer` of their sequences' blocks.
    ///
    /// # Panics
    /// If the spans' rows aren't those of `k` and `v`, or a position isn't covered by its block table.
    pub fn write_kv(&self, cache: &mut KvCache, layer: usize, spans: &[Span], tables: &[u32], k: &[f32], v: &[f32]) {
        let KvShape { kv_heads, head_dim, block_tokens, .. } = *cache.shape();
        let rows: usize = spans.iter().map(|span| span.count as usize).sum();
        assert!(k.len() == rows * kv_heads * head_dim && v.len() == k.len(), "write_kv: k and v are [{rows}, {kv_heads}, {head_dim}]");
        let mut heads = k.chunks_exact(head_dim).zip(v.chunks_exact(head_dim));
        for span in spans {
            let table = &tables[span.blocks.start as usize..span.blocks.end as usize];
            for position in (span.start as usize..).take(span.count as usize) {
                let (block, token) = (table[position / block_tokens], position % block_tokens);
                for (kv_head, (k, v)) in (0..kv_heads).zip(&mut heads) {
                    cache.write(layer, block, token, kv_head, k, v);
                }
            }
        }
    }
}
