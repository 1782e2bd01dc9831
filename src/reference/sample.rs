//! Drawing a token.

use super::softmax;

/// How a token is drawn; the fields' meanings are those of the engine's `Sampling`.
#[derive(Clone, Copy, Debug)]
pub struct Draw {
    /// 0 takes the likeliest token.
    pub temperature: f32,
    /// 0 keeps all.
    pub top_k: u32,
    /// 1 keeps all.
    pub top_p: f32,
    /// 0 keeps all.
    pub min_p: f32,
    /// The request's seed.
    pub seed: u64,
    /// The choice's index.
    pub choice: u32,
    /// The position of the token that is drawn.
    pub position: u32,
}

/// The token drawn from `logits`: at temperature 0 the likeliest (the lowest id among equals); else temperature, top-k,
/// top-p, min-p, then the largest `logit / temperature + gumbel(seed, choice, position, id)`.
///
/// Top-k keeps that many of the likeliest tokens (the lower id first among equals), top-p the likeliest of those until their
/// share reaches it, at least one, min-p those at least that likely compared with the likeliest. NaN counts as −∞; with nothing
/// above −∞ the answer is 0.
pub fn sample(logits: &[f32], draw: &Draw) -> u32 {
    let logits: Vec<f32> = logits.iter().map(|&x| if x.is_nan() { f32::NEG_INFINITY } else { x }).collect();
    let mut order: Vec<usize> = (0..logits.len()).filter(|&id| logits[id] > f32::NEG_INFINITY).collect();
    order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]).then(a.cmp(&b)));
    let Some(&best) = order.first() else { return 0 };
    if draw.temperature == 0.0 || logits[best] == f32::INFINITY {
        return best as u32;
    }
    if draw.top_k > 0 {
        order.truncate(draw.top_k as usize);
    }
    let scaled: Vec<f32> = order.iter().map(|&id| (logits[id] - logits[best]) / draw.temperature).collect();
    let mut reached = 0.0;
    let below = |p: f32| {
        let before = reached;
        reached += p;
        before < draw.top_p
    };
    let kept = softmax(&scaled).into_iter().map(below).take_while(|&kept| kept).count().max(1);
    let likely = (0..kept).filter(|&i| scaled[i] >= draw.min_p.ln());
    let noisy = |i: usize| (f64::from(scaled[i]) + gumbel(draw.seed, draw.choice, draw.position, order[i] as u32), order[i]);
    likely.map(noisy).reduce(|best, next| if next.0 > best.0 { next } else { best }).map_or(0, |(_, id)| id as u32)
}

/// Adds to single tokens' logits; ids outside of the vocabulary have none.
pub fn bias(logits: &mut [f32], bias: &[(u32, f32)]) {
    for (id, bias) in bias {
        if let Some(logit) = logits.get_mut(*id as usize) {
            *logit += bias;
        }
    }
}

/// Penalties. `repetition` divides the positive logits of tokens in the prompt or the output and multiplies the negative ones (Keskar
/// et al., CTRL, 2019); then `frequency` is subtracted for each time a token is in the output, and `presence` if it is.
pub fn penalize(logits: &mut [f32], prompt: &[u32], output: &[u32], repetition: f32, frequency: f32, presence: f32) {
    for (id, logit) in logits.iter_mut().enumerate() {
        let count = output.iter().filter(|token| **token as usize == id).count();
        if count > 0 || prompt.iter().any(|token| *token as usize == id) {
            *logit = if *logit > 0.0 { *logit / repetition } else { *logit * repetition };
            *logit -= frequency * count as f32;
            *logit -= if count > 0 { presence } else { 0.0 };
        }
    }
}

/// The natural logarithms of the probabilities of all tokens.
pub fn log_probabilities(logits: &[f32]) -> Vec<f64> {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mass: f64 = logits.iter().map(|logit| f64::from(logit - largest).exp()).sum();
    logits.iter().map(|logit| f64::from(logit - largest) - mass.ln()).collect()
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
