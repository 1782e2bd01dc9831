//! Percentiles in fixed memory.

/// Seconds, counted in buckets that grow by a twentieth each: what is read from it is right to 2.5 %.
#[derive(Clone, Debug)]
pub(super) struct Histogram {
    buckets: Box<[u32; BUCKETS]>,
    count: u64,
}

/// The upper bound of the first bucket, in seconds.
const LEAST: f64 = 1e-5;
const GROWTH: f64 = 1.05;
/// Up to ten thousand seconds.
const BUCKETS: usize = 426;

// === impl Histogram ===

impl Default for Histogram {
    fn default() -> Self {
        Self { buckets: Box::new([0; BUCKETS]), count: 0 }
    }
}

impl Histogram {
    pub(super) fn add(&mut self, seconds: f64) {
        let bucket = ((seconds / LEAST).ln() / GROWTH.ln()).ceil().clamp(0.0, (BUCKETS - 1) as f64);
        self.buckets[bucket as usize] = self.buckets[bucket as usize].saturating_add(1);
        self.count += 1;
    }

    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// What a part of the values, 0.95, isn't above; `None` without values.
    pub(super) fn quantile(&self, part: f64) -> Option<f64> {
        let rank = (part * self.count as f64).ceil().max(1.0) as u64;
        let mut below = 0;
        let bucket = self.buckets.iter().position(|count| {
            below += u64::from(*count);
            below >= rank
        })?;
        // The middle of the bucket, as it grows.
        Some(LEAST * GROWTH.powf(bucket as f64 - 0.5))
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn percentiles_are_right_to_a_fortieth_over_six_decades() {
        for scale in [1e-4, 1e-2, 1.0, 100.0] {
            let mut histogram = Histogram::default();
            (1..=1000).for_each(|i| histogram.add(f64::from(i) / 1000.0 * scale));
            for part in [0.5, 0.95, 0.99] {
                let (found, exact) = (histogram.quantile(part).unwrap(), part * scale);
                assert!((found / exact - 1.0).abs() < 0.026, "{found} {exact}");
            }
        }
        assert_eq!(Histogram::default().quantile(0.5), None);
    }

    #[test]
    fn what_is_out_of_range_counts_at_its_end() {
        let mut histogram = Histogram::default();
        [0.0, 1e-9, f64::MAX].into_iter().for_each(|seconds| histogram.add(seconds));
        assert!(histogram.quantile(0.5).unwrap() < 1.1e-5);
        assert!(histogram.quantile(1.0).unwrap() > 9_000.0);
    }
}
