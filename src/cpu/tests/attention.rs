use super::*;
use crate::config::KvDtype;
use crate::cpu::{KvCache, KvShape, Scratch, Span};
use crate::reference;
use proptest::prelude::*;

/// A sequence's inputs over all its positions: q `[len, heads, head_dim]`, k and v `[len, kv_heads, head_dim]`.
struct Sequence {
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    len: usize,
}

#[derive(Clone, Copy, Debug)]
struct Shape {
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    block_tokens: usize,
    dtype: KvDtype,
}

impl Shape {
    fn sequence(&self, len: usize, random: &mut Random) -> Sequence {
        let kv = len * self.kv_heads * self.head_dim;
        // Spread scores, so that a wrong maximum would show.
        let q = random.floats(len * self.heads * self.head_dim).iter().map(|q| q * 6.0).collect();
        Sequence { q, k: random.floats(kv), v: random.floats(kv), len }
    }

    fn scale(&self) -> f32 {
        1.0 / (self.head_dim as f32).sqrt()
    }

    /// Runs all sequences in steps of at most `chunk` of their positions, their blocks interleaved in the pool.
    fn run(&self, device: &Device, sequences: &[&Sequence], chunk: usize) -> Vec<Vec<f32>> {
        let most = sequences.iter().map(|s| s.len.div_ceil(self.block_tokens)).max().unwrap_or(0);
        let shape = KvShape {
            layers: 2,
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
            blocks: most * sequences.len(),
            block_tokens: self.block_tokens,
            dtype: self.dtype,
        };
        let mut cache = poisoned(shape, device);
        let mut scratch = Scratch::new();
        let mut outs = vec![Vec::new(); sequences.len()];
        let longest = sequences.iter().map(|s| s.len).max().unwrap_or(0);
        for start in (0..longest).step_by(chunk) {
            let (mut spans, mut tables) = (Vec::new(), Vec::new());
            let (mut q, mut k, mut v, mut owners) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
            for (i, sequence) in sequences.iter().enumerate().filter(|(_, s)| s.len > start) {
                let end = sequence.len.min(start + chunk);
                let first = tables.len() as u32;
                tables.extend((0..end.div_ceil(self.block_tokens)).map(|b| (b * sequences.len() + i) as u32));
                spans.push(Span { start: start as u32, count: (end - start) as u32, blocks: first..tables.len() as u32 });
                let (wide, narrow) = (self.heads * self.head_dim, self.kv_heads * self.head_dim);
                q.extend_from_slice(&sequence.q[start * wide..end * wide]);
                k.extend_from_slice(&sequence.k[start * narrow..end * narrow]);
                v.extend_from_slice(&sequence.v[start * narrow..end * narrow]);
                owners.push((i, (end - start) * wide));
            }
            let turn = device.turn();
            turn.write_kv(&mut cache, 1, &spans, &tables, &k, &v);
            let mut out = vec![f32::NAN; q.len()];
            turn.attention(&cache, 1, &spans, &tables, &q, self.heads, self.scale(), &mut scratch, &mut out);
            let mut out = out.as_slice();
            for (owner, len) in owners {
                let (own, rest) = out.split_at(len);
                outs[owner].extend_from_slice(own);
                out = rest;
            }
        }
        outs
    }

    fn reference(&self, sequence: &Sequence) -> Vec<f32> {
        let stored = |x: &[f32]| match self.dtype {
            KvDtype::F32 => x.to_vec(),
            KvDtype::F16 => x.iter().map(|&x| half::f16::from_f32(x).to_f32()).collect(),
        };
        reference::attention(&sequence.q, &stored(&sequence.k), &stored(&sequence.v), 0, self.heads, self.head_dim, self.scale())
    }
}

/// A cache in which every slot holds NaN, as an earlier sequence may have left it: nobody may look at what isn't theirs.
fn poisoned(shape: KvShape, device: &Device) -> KvCache {
    let mut cache = KvCache::new(shape);
    let count = shape.blocks * shape.block_tokens;
    let tables: Vec<u32> = (0..shape.blocks as u32).collect();
    let nan = vec![f32::NAN; count * shape.kv_heads * shape.head_dim];
    for layer in 0..shape.layers {
        let span = Span { start: 0, count: count as u32, blocks: 0..shape.blocks as u32 };
        device.turn().write_kv(&mut cache, layer, &[span], &tables, &nan, &nan);
    }
    cache
}

#[test]
fn attention_matches_the_reference_and_no_chunk_batch_or_thread_changes_a_bit() {
    let shapes = [
        Shape { heads: 9, kv_heads: 3, head_dim: 64, block_tokens: 16, dtype: KvDtype::F16 },
        Shape { heads: 4, kv_heads: 4, head_dim: 40, block_tokens: 16, dtype: KvDtype::F32 },
        Shape { heads: 20, kv_heads: 1, head_dim: 26, block_tokens: 24, dtype: KvDtype::F16 },
        Shape { heads: 2, kv_heads: 1, head_dim: 18, block_tokens: 5, dtype: KvDtype::F32 },
    ];
    let mut random = Random(5);
    for shape in shapes {
        // Lengths around the 256-key split.
        let sequences = [1, 255, 256, 300, 531].map(|len| shape.sequence(len, &mut random));
        let all: Vec<&Sequence> = sequences.iter().collect();
        let want = shape.run(&device(Isa::Auto, 2), &all, 1_000);
        for (sequence, got) in sequences.iter().zip(&want) {
            assert_close(got, &shape.reference(sequence), 2e-6);
        }
        for device in devices() {
            for chunk in [16, 300] {
                assert!(shape.run(&device, &all, chunk).iter().zip(&want).all(|(a, b)| bits(a) == bits(b)), "{shape:?}, chunk {chunk}");
            }
            let alone = shape.run(&device, &all[3..4], 7);
            assert!(bits(&alone[0]) == bits(&want[3]), "{shape:?}, alone");
        }
    }
}

#[test]
fn bytes_of_a_block_count_all_layers_keys_and_values() {
    let shape = KvShape { layers: 30, kv_heads: 3, head_dim: 64, blocks: 7, block_tokens: 16, dtype: KvDtype::F16 };
    assert_eq!(shape.bytes_per_block(), 30 * 3 * 64 * 16 * 2 * 2);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, ..ProptestConfig::default() })]

    #[test]
    fn any_shape_and_chunk_gives_the_same_rows(
        seed in any::<u64>(), group in 1..4usize, kv_heads in 1..4usize, pairs in 1..20usize,
        block_tokens in 1..40usize, chunk in 1..50usize, half: bool, lens in prop::collection::vec(1..80usize, 1..4),
    ) {
        let dtype = if half { KvDtype::F16 } else { KvDtype::F32 };
        let shape = Shape { heads: group * kv_heads, kv_heads, head_dim: 2 * pairs, block_tokens, dtype };
        let mut random = Random(seed);
        let sequences: Vec<Sequence> = lens.iter().map(|&len| shape.sequence(len, &mut random)).collect();
        let all: Vec<&Sequence> = sequences.iter().collect();
        let got = shape.run(&device(Isa::Auto, 2), &all, chunk);
        for (sequence, got) in sequences.iter().zip(&got) {
            let alone = shape.run(&device(Isa::Portable, 1), &[sequence], 1);
            prop_assert_eq!(bits(&alone[0]), bits(got));
            assert_close(got, &shape.reference(sequence), 2e-6);
        }
    }
}
