//! Drawing tokens: temperature → top-k → top-p → min-p → argmax(logit / T + Gumbel noise).
//!
//! The noise of token `id` is `−ln(−ln(u))` with `u = (⌊bits / 2^32⌋ + 1/2) / 2^32` of
//! `bits = mix(mix(mix(seed + G) ^ (choice · 2^32 + position)) + (id + 1) · G)`, where `G = 0x9E3779B97F4A7C15` and `mix` is
//! the finalizer of splitmix64. So a draw depends on the logits and these numbers only: not on the batch, a preemption or a
//! replay.

use super::activation::grown;
use super::exp::exp;
use super::isa::{Path, per_path};
use super::pool::Pieces;
use super::{Scratch, Turn};
use crate::call::TokenId;

/// How one token is drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Draw {
    /// 0 takes the likeliest token, the lowest id among equals.
    pub temperature: f32,
    /// Keeps this many of the likeliest tokens, the lower id first among equals; 0 keeps all.
    pub top_k: u32,
    /// Keeps the likeliest of what is left until their share of it reaches this, at least one.
    pub top_p: f32,
    /// Keeps tokens at least this likely compared with the likeliest one; 0 keeps all.
    pub min_p: f32,
    /// The request's seed.
    pub seed: u64,
    /// Which of the request's choices.
    pub choice: u32,
    /// The position of the token that is drawn.
    pub position: u32,
}

/// The largest noise there is: u = 1 − 2^−33 gives 33 · ln 2 = 22.874.
const MOST_NOISE: f64 = 22.88;

impl Turn<'_> {
    /// Replaces `out` by one token for each of `draws`, drawn from its row of `logits`, `[draws.len(), vocabulary]`.
    ///
    /// NaN counts as −∞; where nothing is above −∞ the token is 0.
    ///
    /// # Panics
    /// If `logits` has another size.
    pub fn sample(&self, logits: &[f32], vocabulary: usize, draws: &[Draw], scratch: &mut Scratch, out: &mut Vec<TokenId>) {
        assert_eq!(logits.len(), draws.len() * vocabulary, "sample: logits are [{}, {vocabulary}]", draws.len());
        out.clear();
        out.resize(draws.len(), 0);
        let candidates = Pieces::new(grown(&mut scratch.candidates, draws.len(), Vec::new()));
        let path = self.path();
        self.rows(out, 1, logits.len(), &|rows, out| {
            // SAFETY: threads have disjoint rows, and each row its own candidates.
            let candidates = unsafe { candidates.get(rows.clone()) };
            for ((row, out), candidates) in rows.zip(out).zip(candidates) {
                let logits = &logits[row * vocabulary..][..vocabulary];
                let (best, top) = largest(path, logits);
                let draw = &draws[row];
                *out = if draw.temperature > 0.0 && top.is_finite() { drawn(path, logits, best, draw, candidates) } else { best };
            }
        });
    }
}

impl Turn<'_> {
    /// The natural logarithms of the probabilities of `id` and of the `top` likeliest tokens (the lower id first among
    /// equals) by one row of logits. What is outside of the row, or NaN, has probability 0.
    pub fn log_probabilities(&self, logits: &[f32], id: TokenId, top: u32) -> (f32, Box<[(TokenId, f32)]>) {
        let path = self.path();
        let (_, largest) = largest(path, logits);
        let log_mass = mass(path, logits, largest, 1.0).ln();
        let log_probability = |logit: f32| if logit.is_nan() { f32::NEG_INFINITY } else { logit - largest - log_mass };
        let mut likeliest: Vec<(f32, u32)> = Vec::with_capacity(top as usize + 1);
        for (&logit, other) in logits.iter().zip(0..) {
            let full = likeliest.len() == top as usize;
            if top == 0 || logit.is_nan() || full && likeliest.last().is_some_and(|last| logit <= last.0) {
                continue;
            }
            let place = likeliest.partition_point(|known| known.0 >= logit);
            likeliest.insert(place, (logit, other));
            likeliest.truncate(top as usize);
        }
        let of_id = logits.get(id as usize).map_or(f32::NEG_INFINITY, |&logit| log_probability(logit));
        (of_id, likeliest.into_iter().map(|(logit, id)| (id, log_probability(logit))).collect())
    }
}

per_path! {
    /// The lowest id of the largest logit, and the logit; NaN is passed over.
    fn largest(logits: &[f32]) -> (TokenId, f32) {
        let mut lanes = [f32::NEG_INFINITY; 8];
        let (eights, rest) = logits.as_chunks::<8>();
        for logits in eights.iter().map(|eight| &eight[..]).chain([rest]) {
            for (lane, logit) in lanes.iter_mut().zip(logits) {
                *lane = if *logit > *lane { *logit } else { *lane };
            }
        }
        let top = lanes.into_iter().fold(f32::NEG_INFINITY, |a, b| if b > a { b } else { a });
        let id = if top > f32::NEG_INFINITY { logits.iter().position(|&logit| logit == top) } else { None };
        (id.unwrap_or(0) as TokenId, top)
    }
}

/// Draws at a temperature above 0; `best` is the likeliest token.
fn drawn(path: Path, logits: &[f32], best: TokenId, draw: &Draw, candidates: &mut Vec<(f32, u32)>) -> TokenId {
    let top = logits[best as usize];
    let stream = mix(mix(draw.seed.wrapping_add(G)) ^ (u64::from(draw.choice) << 32 | u64::from(draw.position)));
    if draw.top_p < 1.0 || draw.top_k > 0 || draw.min_p > 0.0 {
        keep(path, logits, top, draw, candidates);
        return noisiest(candidates.iter().copied(), best, stream);
    }
    let scaled = logits.iter().map(|&logit| scaled(logit, top, draw.temperature));
    noisiest(scaled.zip(0..), best, stream)
}

/// The candidate whose scaled logit plus noise is largest; `best`, whose scaled logit is 0, is one of them.
fn noisiest(candidates: impl Iterator<Item = (f32, u32)>, best: TokenId, stream: u64) -> TokenId {
    let mut winner = (gumbel(stream, best), best);
    for (scaled, id) in candidates {
        // Most tokens are so unlikely that no noise can make them win; that saves their logarithms. NaN is one of them.
        if f64::from(scaled) + MOST_NOISE > winner.0 {
            let noisy = f64::from(scaled) + gumbel(stream, id);
            if noisy > winner.0 || noisy == winner.0 && id < winner.1 {
                winner = (noisy, id);
            }
        }
    }
    winner.1
}

/// How far a logit is below the largest, in units of the temperature.
#[inline(always)]
fn scaled(logit: f32, top: f32, temperature: f32) -> f32 {
    (logit - top) / temperature
}

per_path! {
    /// Σ e^scaled, in 8 lanes; NaN counts as nothing.
    fn mass(logits: &[f32], top: f32, temperature: f32) -> f32 {
        let mut lanes = [0f32; 8];
        let (eights, rest) = logits.as_chunks::<8>();
        for logits in eights.iter().map(|eight| &eight[..]).chain([rest]) {
            for (lane, &logit) in lanes.iter_mut().zip(logits) {
                *lane += exp(scaled(logit, top, temperature));
            }
        }
        lanes.into_iter().fold(0.0, |sum, lane| sum + lane)
    }
}

/// Leaves the tokens of top-k, top-p and min-p in `kept`, likeliest first.
fn keep(path: Path, logits: &[f32], top: f32, draw: &Draw, kept: &mut Vec<(f32, u32)>) {
    if (1..logits.len()).contains(&(draw.top_k as usize)) {
        likeliest(logits, top, draw, kept);
        if draw.top_p < 1.0 {
            let mass = kept.iter().map(|(scaled, _)| f64::from(exp(*scaled))).sum::<f64>();
            cut(kept, f64::from(draw.top_p) * mass);
        }
    } else if draw.top_p < 1.0 {
        nucleus(path, logits, top, draw, kept);
    } else {
        kept.clear();
        kept.extend(logits.iter().map(|&logit| scaled(logit, top, draw.temperature)).zip(0..));
    }
    if draw.min_p > 0.0 {
        let least = draw.min_p.ln();
        kept.retain(|(scaled, _)| *scaled >= least); // the likeliest has 0, so one is left
    }
}

/// Leaves the tokens of top-k in `kept`, likeliest first.
fn likeliest(logits: &[f32], top: f32, draw: &Draw, kept: &mut Vec<(f32, u32)>) {
    kept.clear();
    kept.extend(logits.iter().map(|&logit| scaled(logit, top, draw.temperature)).zip(0..).filter(|(scaled, _)| !scaled.is_nan()));
    let count = (draw.top_k as usize).min(kept.len());
    if count < kept.len() {
        kept.select_nth_unstable_by(count, by_likelihood);
        kept.truncate(count);
    }
    kept.sort_unstable_by(by_likelihood);
}

fn by_likelihood(a: &(f32, u32), b: &(f32, u32)) -> std::cmp::Ordering {
    b.0.total_cmp(&a.0).then(a.1.cmp(&b.1))
}

/// Cuts `kept`, likeliest first, behind the token that makes its mass reach `wanted`.
fn cut(kept: &mut Vec<(f32, u32)>, wanted: f64) {
    let mut reached = 0.0;
    let unreached = kept.iter().take_while(|(scaled, _)| {
        let before = reached;
        reached += f64::from(exp(*scaled));
        before < wanted
    });
    let count = unreached.count().max(1);
    kept.truncate(count);
}

/// Leaves the tokens of top-p in `kept`, likeliest first.
fn nucleus(path: Path, logits: &[f32], top: f32, draw: &Draw, kept: &mut Vec<(f32, u32)>) {
    let mass = f64::from(mass(path, logits, top, draw.temperature));
    let wanted = f64::from(draw.top_p) * mass;
    // Tokens each below (1 − top_p) / vocabulary of the mass have less than 1 − top_p together, so none is needed; half of
    // that leaves room for rounding. Only the others have to be sorted.
    let needed = (0.5 * (1.0 - f64::from(draw.top_p)) * mass / logits.len() as f64).ln() as f32;
    let all = logits.iter().map(|&logit| scaled(logit, top, draw.temperature)).zip(0..);
    kept.clear();
    kept.extend(all.filter(|&(scaled, _)| scaled == 0.0 || scaled > needed));
    kept.sort_unstable_by(by_likelihood);
    cut(kept, wanted);
}

const G: u64 = 0x9E37_79B9_7F4A_7C15;

/// The finalizer of splitmix64.
fn mix(z: u64) -> u64 {
    let z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ z >> 31
}

fn gumbel(stream: u64, id: TokenId) -> f64 {
    let bits = mix(stream.wrapping_add((u64::from(id) + 1).wrapping_mul(G)));
    let u = ((bits >> 32) as f64 + 0.5) / 4_294_967_296.0;
    -(-u.ln()).ln()
}
