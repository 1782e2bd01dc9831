//! Drawing a token.

use super::softmax;

/// The token drawn from `logits`: at temperature 0 the likeliest (the lowest id among equals); else temperature, then
/// top-p, then the largest `logit / temperature + gumbel(seed, choice, position, id)`.
///
/// Top-p keeps the likeliest tokens (the lower id first among equals) until their probability reaches `top_p`, at least
/// one. NaN counts as −∞; with nothing above −∞ the answer is 0.
pub fn sample(logits: &[f32], temperature: f32, top_p: f32, seed: u64, choice: u32, position: u32) -> u32 {
    let logits: Vec<f32> = logits.iter().map(|&x| if x.is_nan() { f32::NEG_INFINITY } else { x }).collect();
    let mut order: Vec<usize> = (0..logits.len()).filter(|&id| logits[id] > f32::NEG_INFINITY).collect();
    order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]).then(a.cmp(&b)));
    let Some(&best) = order.first() else { return 0 };
    if temperature == 0.0 || logits[best] == f32::INFINITY {
        return best as u32;
    }
    let scaled: Vec<f32> = order.iter().map(|&id| (logits[id] - logits[best]) / temperature).collect();
    let mut reached = 0.0;
    let below = |p: f32| {
        let before = reached;
        reached += p;
        before < top_p
    };
    let kept = softmax(&scaled).into_iter().map(below).take_while(|&kept| kept).count().max(1);
    let drawn = (0..kept).map(|i| (f64::from(scaled[i]) + gumbel(seed, choice, position, order[i] as u32), order[i]));
    drawn.reduce(|best, next| if next.0 > best.0 { next } else { best }).map_or(0, |(_, id)| id as u32)
}

/// The Gumbel noise of one token: `−ln(−ln(u))`, where `u = (bits / 2^32 rounded down + 1/2) / 2^32` of
/// `bits = mix(mix(mix(seed + G) ^ (choice · 2^32 + position)) + (id + 1) · G)`, `G = 0x9E3779B97F4A7C15` and `mix` the
/// finalizer of splitmix64. It depends on nothing else, so a batch, a preemption or a replay can't change a draw.
pub fn gumbel(seed: u64, choice: u32, position: u32, id: u32) -> f64 {
    const G: u64 = 0x9E37_79B9_7F4A_7C15;
    let mix = |mut z: u64| {
        z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ z >> 31
    };
    let stream = mix(mix(seed.wrapping_add(G)) ^ (u64::from(choice) << 32 | u64::from(position)));
    let bits = mix(stream.wrapping_add((u64::from(id) + 1).wrapping_mul(G)));
    let u = ((bits >> 32) as f64 + 0.5) / 4_294_967_296.0;
    -(-u.ln()).ln()
}
