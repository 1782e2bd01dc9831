//! The operations of a forward pass.

/// `out[m, rows] = x[m, columns] · weightᵀ` with `weight[rows, columns]`, row-major.
pub fn matmul(x: &[f32], weight: &[f32], columns: usize) -> Vec<f32> {
    let row = |x: &[f32], w: &[f32]| x.iter().zip(w).map(|(&x, &w)| f64::from(x) * f64::from(w)).sum::<f64>() as f32;
    x.chunks_exact(columns).flat_map(|x| weight.chunks_exact(columns).map(move |w| row(x, w))).collect()
}

/// `x / sqrt(mean(x²) + epsilon) · weight`, row by row; a row is as long as `weight`.
pub fn rms_norm(x: &[f32], weight: &[f32], epsilon: f32) -> Vec<f32> {
    let mut out = Vec::with_capacity(x.len());
    for x in x.chunks_exact(weight.len()) {
        let mean = x.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / x.len() as f64;
        let scale = 1.0 / (mean + f64::from(epsilon)).sqrt();
        out.extend(x.iter().zip(weight).map(|(&x, &w)| (f64::from(x) * scale * f64::from(w)) as f32));
    }
    out
}

/// Rotates the first `rotated` elements of each head in place: elements `i` and `i + rotated / 2` turn by
/// `position · base^(−2i / rotated) / factors[i]`. `x` is `[positions, heads, head_dim]`.
pub fn rope(x: &mut [f32], heads: usize, positions: &[u32], rotated: usize, base: f32, factors: Option<&[f32]>) {
    let head_dim = x.len() / positions.len() / heads;
    for (x, &position) in x.chunks_exact_mut(heads * head_dim).zip(positions) {
        for head in x.chunks_exact_mut(head_dim) {
            for i in 0..rotated / 2 {
                let factor = factors.map_or(1.0, |factors| f64::from(factors[i]));
                let angle = f64::from(position) * f64::from(base).powf(-2.0 * i as f64 / rotated as f64) / factor;
                let (a, b) = (f64::from(head[i]), f64::from(head[i + rotated / 2]));
                head[i] = (a * angle.cos() - b * angle.sin()) as f32;
                head[i + rotated / 2] = (a * angle.sin() + b * angle.cos()) as f32;
            }
        }
    }
}

/// `exp(x) / Σ exp(x)`.
pub fn softmax(x: &[f32]) -> Vec<f32> {
    let top = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let e: Vec<f64> = x.iter().map(|&x| (f64::from(x) - f64::from(top)).exp()).collect();
    let sum: f64 = e.iter().sum();
    e.iter().map(|e| (e / sum) as f32).collect()
}

/// Causal attention of one sequence. `q` is `[rows, heads, head_dim]`, its row `r` at position `start + r`; `k` and `v`
/// are `[start + rows, kv_heads, head_dim]`. Query head `h` reads kv head `h / (heads / kv_heads)`.
pub fn attention(q: &[f32], k: &[f32], v: &[f32], start: usize, heads: usize, head_dim: usize, scale: f32) -> Vec<f32> {
    let rows = q.len() / heads / head_dim;
    let kv_heads = k.len() / head_dim / (start + rows);
    let mut out = Vec::with_capacity(q.len());
    for (i, q) in q.chunks_exact(head_dim).enumerate() {
        let (row, kv_head) = (i / heads, i % heads / (heads / kv_heads));
        let at = |position: usize| (position * kv_heads + kv_head) * head_dim;
        let dot = |k: &[f32]| q.iter().zip(k).map(|(&q, &k)| f64::from(q) * f64::from(k)).sum::<f64>() as f32;
        let scores: Vec<f32> = (0..=start + row).map(|j| dot(&k[at(j)..][..head_dim]) * scale).collect();
        let p = softmax(&scores);
        out.extend((0..head_dim).map(|d| p.iter().enumerate().map(|(j, &p)| f64::from(p) * f64::from(v[at(j) + d])).sum::<f64>() as f32));
    }
    out
}

/// `silu(gate) · up` with `silu(x) = x / (1 + exp(−x))`.
pub fn silu_mul(gate: &[f32], up: &[f32]) -> Vec<f32> {
    gate.iter().zip(up).map(|(&g, &u)| (f64::from(g) / (1.0 + (-f64::from(g)).exp()) * f64::from(u)) as f32).collect()
}
