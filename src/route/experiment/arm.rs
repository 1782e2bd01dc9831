//! What one variant did in an experiment.

use super::histogram::Histogram;
use crate::call::Usage;
use std::time::Duration;

/// How a request of an experiment ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::route) enum End {
    /// By its variant, in full.
    Answered,
    /// Without an answer, by the server's fault.
    Failed,
    /// Its client hung up.
    Left,
    /// Another variant answered, because its own couldn't.
    Elsewhere,
}

/// One request that has ended.
#[derive(Clone, Debug)]
pub(in crate::route) struct Ended {
    /// Its sticky unit.
    pub(in crate::route) unit: u64,
    pub(in crate::route) end: End,
    pub(in crate::route) ttft: Option<Duration>,
    pub(in crate::route) tpot: Option<Duration>,
    pub(in crate::route) latency: Duration,
    pub(in crate::route) usage: Usage,
    /// In nano-units.
    pub(in crate::route) cost: u64,
}

/// What is compared between two variants: a mean over requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Figure {
    ErrorRate,
    Ttft,
    Tpot,
    Latency,
    OutputTokens,
    Cost,
}

/// All requests of one variant.
#[derive(Clone, Debug)]
pub(super) struct Arm {
    /// Answered, failed or left; those answered elsewhere aren't among them.
    pub(super) requests: u64,
    pub(super) errors: u64,
    pub(super) left: u64,
    pub(super) elsewhere: u64,
    pub(super) usage: Sums,
    pub(super) ttft: Histogram,
    pub(super) tpot: Histogram,
    pub(super) latency: Histogram,
    groups: Box<[Group; GROUPS]>,
}

/// What it used, all together.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sums {
    pub(super) prompt: u64,
    pub(super) cached: u64,
    pub(super) completion: u64,
    pub(super) device: Duration,
    /// In nano-units.
    pub(super) cost: u64,
}

/// The requests of some units: a unit's are always in the same group.
type Group = [Mean; FIGURES];

#[derive(Clone, Copy, Debug, Default)]
struct Mean {
    sum: f64,
    count: f64,
}

/// A mean, how far off it may be, and by how many groups that is known.
#[derive(Clone, Copy, Debug)]
pub(super) struct Estimate {
    pub(super) mean: f64,
    /// Of the mean.
    pub(super) variance: f64,
    /// Degrees of freedom of the variance.
    pub(super) freedom: f64,
}

/// Requests of one unit resemble each other, so that not requests but groups of units vary independently. A fixed number of
/// groups is all that has to be kept.
const GROUPS: usize = 64;
const FIGURES: usize = 6;

// === impl Arm ===

impl Default for Arm {
    fn default() -> Self {
        Self {
            requests: 0,
            errors: 0,
            left: 0,
            elsewhere: 0,
            usage: Sums::default(),
            ttft: Histogram::default(),
            tpot: Histogram::default(),
            latency: Histogram::default(),
            groups: Box::new([Group::default(); GROUPS]),
        }
    }
}

impl Arm {
    pub(super) fn count(&mut self, ended: &Ended) {
        if ended.end == End::Elsewhere {
            self.elsewhere += 1;
            return;
        }
        self.requests += 1;
        self.errors += u64::from(ended.end == End::Failed);
        self.left += u64::from(ended.end == End::Left);
        let Usage { prompt_tokens, cached_tokens, completion_tokens, device_time } = ended.usage;
        let sums = &mut self.usage;
        sums.prompt += u64::from(prompt_tokens);
        sums.cached += u64::from(cached_tokens);
        sums.completion += u64::from(completion_tokens);
        sums.device += device_time;
        sums.cost = sums.cost.saturating_add(ended.cost);
        let answered = ended.end == End::Answered;
        let seconds = |time: Option<Duration>| time.map(|time| time.as_secs_f64());
        let (ttft, tpot, latency) = (seconds(ended.ttft), seconds(ended.tpot), answered.then_some(ended.latency.as_secs_f64()));
        for (histogram, value) in [(&mut self.ttft, ttft), (&mut self.tpot, tpot), (&mut self.latency, latency)] {
            value.into_iter().for_each(|value| histogram.add(value));
        }
        let error = f64::from(u8::from(ended.end == End::Failed));
        let (tokens, cost) = (f64::from(completion_tokens), ended.cost as f64 / 1e9);
        let values = [Some(error), ttft, tpot, latency, answered.then_some(tokens), answered.then_some(cost)];
        let group = &mut self.groups[(ended.unit >> 32) as usize % GROUPS];
        for (mean, value) in group.iter_mut().zip(values) {
            if let Some(value) = value {
                *mean = Mean { sum: mean.sum + value, count: mean.count + 1.0 };
            }
        }
    }

    /// A figure's mean; `None` where it isn't known, or not how far off it may be.
    pub(super) fn estimate(&self, figure: Figure) -> Option<Estimate> {
        let groups = || self.groups.iter().map(|group| group[figure as usize]).filter(|mean| mean.count > 0.0);
        let (sum, count) = groups().fold((0.0, 0.0), |(sum, count), mean| (sum + mean.sum, count + mean.count));
        let known = groups().count() as f64;
        if known < 2.0 {
            return None;
        }
        let mean = sum / count;
        let squares: f64 = groups().map(|group| (group.sum - mean * group.count).powi(2)).sum();
        let mut variance = known / (known - 1.0) * squares / (count * count);
        if figure == Figure::ErrorRate {
            // Few errors or none vary more than they show (Agresti and Caffo).
            let rate = (sum + 1.0) / (count + 2.0);
            variance = variance.max(rate * (1.0 - rate) / (count + 2.0));
        }
        Some(Estimate { mean, variance, freedom: known - 1.0 })
    }
}

// === impl Estimate ===

impl Estimate {
    /// How much more than `control` it is: the difference, and between which two it lies with 95 % confidence (Welch).
    pub(super) fn minus(&self, control: &Estimate) -> (f64, f64, f64) {
        let difference = self.mean - control.mean;
        let variance = self.variance + control.variance;
        let parts = self.variance.powi(2) / self.freedom + control.variance.powi(2) / control.freedom;
        let freedom = if parts > 0.0 { variance * variance / parts } else { self.freedom + control.freedom };
        let half = t_975(freedom) * variance.sqrt();
        (difference, difference - half, difference + half)
    }
}

/// The 97.5th percentile of Student's distribution: Cornish and Fisher's expansion, right to 1 % from three degrees of
/// freedom on; exact for fewer.
fn t_975(freedom: f64) -> f64 {
    const Z: f64 = 1.959_964;
    match freedom {
        _ if freedom < 1.5 => 12.706,
        _ if freedom < 2.5 => 4.303,
        _ => {
            let [z3, z5, z7] = [Z.powi(3), Z.powi(5), Z.powi(7)];
            Z + (z3 + Z) / (4.0 * freedom)
                + (5.0 * z5 + 16.0 * z3 + 3.0 * Z) / (96.0 * freedom.powi(2))
                + (3.0 * z7 + 19.0 * z5 + 17.0 * z3 - 15.0 * Z) / (384.0 * freedom.powi(3))
        }
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    fn ended(unit: u64, end: End, milliseconds: u64) -> Ended {
        let time = Duration::from_millis(milliseconds);
        let usage = Usage { prompt_tokens: 10, cached_tokens: 4, completion_tokens: 5, device_time: time };
        // As a hash spreads it.
        let unit = unit.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        Ended { unit, end, ttft: Some(time), tpot: None, latency: time * 2, usage, cost: 7 }
    }

    #[test]
    fn what_another_variant_answered_counts_apart_and_not_in_the_figures() {
        let mut arm = Arm::default();
        for (unit, end) in [(1, End::Answered), (2, End::Failed), (3, End::Left), (4, End::Elsewhere)] {
            arm.count(&ended(unit, end, 100));
        }
        assert_eq!((arm.requests, arm.errors, arm.left, arm.elsewhere), (3, 1, 1, 1));
        assert_eq!((arm.usage.prompt, arm.usage.cached, arm.usage.completion, arm.usage.cost), (30, 12, 15, 21));
        assert_eq!((arm.ttft.count(), arm.latency.count(), arm.tpot.count()), (3, 1, 0));
    }

    #[test]
    fn students_quantiles_are_those_of_the_tables() {
        for (freedom, expected) in [(1.0, 12.706), (2.0, 4.303), (3.0, 3.182), (5.0, 2.571), (10.0, 2.228), (30.0, 2.042), (1e9, 1.960)] {
            assert!((t_975(freedom) / expected - 1.0).abs() < 0.01, "{freedom}: {}", t_975(freedom));
        }
    }

    /// Of many pairs of equal variants, how often the interval has the true difference, which is none.
    fn coverage(units: u64, requests: u64) -> f64 {
        let mut state = 1_u64;
        let mut random = move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as f64 / f64::from(1_u32 << 31)
        };
        let rounds = 400;
        let covered = (0..rounds).filter(|round| {
            let mut arms = [Arm::default(), Arm::default()];
            for (side, arm) in arms.iter_mut().enumerate() {
                for unit in 0..units {
                    let own = random() * 100.0; // each unit has prompts of its own length
                    let unit = round * 1_000_000 + side as u64 * 1000 + unit;
                    for _ in 0..requests {
                        arm.count(&ended(unit, End::Answered, (100.0 + own + random() * 20.0) as u64));
                    }
                }
            }
            let [one, other] = arms.map(|arm| arm.estimate(Figure::Ttft).unwrap());
            let (_, low, high) = one.minus(&other);
            low <= 0.0 && 0.0 <= high
        });
        covered.count() as f64 / f64::from(rounds as u32)
    }

    #[test]
    fn an_interval_has_the_true_difference_in_95_of_100_also_where_units_differ_more_than_their_requests() {
        for (units, requests) in [(200, 1), (40, 10), (400, 3)] {
            let covered = coverage(units, requests);
            // 400 rounds: a standard deviation of 1.1 %; and groups of few units are a little too sure.
            assert!((0.91..=0.99).contains(&covered), "{units} units, {requests} requests each: {covered}");
        }
    }

    #[test]
    fn without_an_error_the_rate_still_has_an_interval() {
        let mut arm = Arm::default();
        (0..100).for_each(|unit| arm.count(&ended(unit, End::Answered, 1)));
        let estimate = arm.estimate(Figure::ErrorRate).unwrap();
        let (difference, low, high) = estimate.minus(&estimate);
        assert!(difference == 0.0 && low < -0.02 && high > 0.02, "{low} {high}");
    }
}
