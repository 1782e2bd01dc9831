//! Rotary position embedding in its "halves" form: element `i` of a head pairs with `i + rotated / 2`.

use super::Turn;
use super::isa::per_path;

/// The cosines and sines of every position a model can reach.
pub struct RopeTable {
    /// Pairs of a head that turn; a head's other elements stay.
    pairs: usize,
    /// For each position the cosines of all pairs, then their sines.
    turns: Vec<f32>,
}

// === impl RopeTable ===

impl RopeTable {
    /// Pair `i` turns by `position · base^(−2i / head_dim) / factors[i]`, for positions `0..positions`. `head_dim` is the
    /// number of a head's elements that turn.
    ///
    /// # Panics
    /// If `head_dim` is odd or there aren't `head_dim / 2` factors.
    pub fn new(head_dim: usize, base: f32, factors: Option<&[f32]>, positions: usize) -> Self {
        assert!(head_dim.is_multiple_of(2), "rope turns pairs, not {head_dim} elements");
        let pairs = head_dim / 2;
        assert!(factors.is_none_or(|factors| factors.len() == pairs), "rope: a factor for each of {pairs} pairs");
        let frequency = |i: usize| {
            let factor = factors.map_or(1.0, |factors| f64::from(factors[i]));
            f64::from(base).powf(-2.0 * i as f64 / head_dim as f64) / factor
        };
        // In f64: in f32 an angle of thousands of radians would already be off by 1e-4.
        let frequencies: Vec<f64> = (0..pairs).map(frequency).collect();
        let mut turns = Vec::with_capacity(positions * head_dim);
        for position in 0..positions {
            turns.extend(frequencies.iter().map(|f| (position as f64 * f).cos() as f32));
            turns.extend(frequencies.iter().map(|f| (position as f64 * f).sin() as f32));
        }
        Self { pairs, turns }
    }

    fn at(&self, position: u32) -> (&[f32], &[f32]) {
        self.turns[position as usize * 2 * self.pairs..][..2 * self.pairs].split_at(self.pairs)
    }
}

impl Turn<'_> {
    /// Rotates every head of `x`, `[positions.len(), heads, head_dim]`, by its row's position.
    ///
    /// # Panics
    /// If `x` isn't such, a head is smaller than what turns, or a position isn't in the table.
    pub fn rope(&self, x: &mut [f32], heads: usize, positions: &[u32], table: &RopeTable) {
        if positions.is_empty() {
            assert!(x.is_empty(), "rope: a position for each row");
            return;
        }
        let width = x.len() / positions.len();
        assert!(x.len() == width * positions.len() && width.is_multiple_of(heads), "rope: x is [{}, {heads}, _]", positions.len());
        let head_dim = width / heads;
        assert!(head_dim >= 2 * table.pairs, "rope: {} of {head_dim} elements turn", 2 * table.pairs);
        let (path, work) = (self.path(), x.len());
        self.rows(x, width, work, &|rows, x| {
            for (x, &position) in x.chunks_exact_mut(width).zip(&positions[rows]) {
                let (cosines, sines) = table.at(position);
                turn_heads(path, x, head_dim, cosines, sines);
            }
        });
    }
}

per_path! {
    fn turn_heads(x: &mut [f32], head_dim: usize, cosines: &[f32], sines: &[f32]) {
        for head in x.chunks_exact_mut(head_dim) {
            let (first, second) = head[..2 * cosines.len()].split_at_mut(cosines.len());
            for (((a, b), cos), sin) in first.iter_mut().zip(second).zip(cosines).zip(sines) {
                (*a, *b) = (*a * cos - *b * sin, *a * sin + *b * cos);
            }
        }
    }
}
