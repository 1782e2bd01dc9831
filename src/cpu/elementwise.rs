//! Normalization, residual addition and the gate of the feed-forward block.

use super::Turn;
use super::exp::silu;
use super::isa::per_path;

impl Turn<'_> {
    /// `x / sqrt(mean(x²) + epsilon) · weight`, row by row; a row is as long as `weight`.
    ///
    /// # Panics
    /// If `x` isn't whole rows or `out` has another size.
    pub fn rms_norm(&self, x: &[f32], weight: &[f32], epsilon: f32, out: &mut [f32]) {
        let width = weight.len();
        assert!(x.len() == out.len() && x.len().is_multiple_of(width), "rms_norm: {} to {}, rows of {width}", x.len(), out.len());
        let path = self.path();
        self.rows(out, width, x.len(), &|rows, out| {
            norm_rows(path, &x[rows.start * width..rows.end * width], weight, epsilon, out);
        });
    }

    /// `x += y`.
    ///
    /// # Panics
    /// If their sizes differ.
    pub fn add(&self, x: &mut [f32], y: &[f32]) {
        assert_eq!(x.len(), y.len(), "add: sizes");
        add_all(self.path(), x, y);
    }

    /// `gate = silu(gate) · up` with `silu(x) = x / (1 + e^−x)`.
    ///
    /// # Panics
    /// If their sizes differ.
    pub fn silu_mul(&self, gate: &mut [f32], up: &[f32]) {
        assert_eq!(gate.len(), up.len(), "silu_mul: sizes");
        let (path, work) = (self.path(), gate.len());
        self.rows(gate, 1, work, &|rows, gate| gate_all(path, gate, &up[rows]));
    }
}

per_path! {
    /// Sums run in 8 lanes of every eighth element and are added up in order of the lanes.
    fn norm_rows(x: &[f32], weight: &[f32], epsilon: f32, out: &mut [f32]) {
        for (x, out) in x.chunks_exact(weight.len()).zip(out.chunks_exact_mut(weight.len())) {
            let mut lanes = [0f32; 8];
            let (eights, rest) = x.as_chunks::<8>();
            for x in eights {
                for (lane, x) in lanes.iter_mut().zip(x) {
                    *lane += x * x;
                }
            }
            for (lane, x) in lanes.iter_mut().zip(rest) {
                *lane += x * x;
            }
            let mean = lanes.into_iter().fold(0.0, |sum, lane| sum + lane) / weight.len() as f32;
            let scale = 1.0 / (mean + epsilon).sqrt();
            for ((out, x), weight) in out.iter_mut().zip(x).zip(weight) {
                *out = x * scale * weight;
            }
        }
    }
}

per_path! {
    fn add_all(x: &mut [f32], y: &[f32]) {
        for (x, y) in x.iter_mut().zip(y) {
            *x += y;
        }
    }
}

per_path! {
    fn gate_all(gate: &mut [f32], up: &[f32]) {
        for (gate, up) in gate.iter_mut().zip(up) {
            *gate = silu(*gate) * up;
        }
    }
}
