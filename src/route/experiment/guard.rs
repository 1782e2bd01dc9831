//! A test that may be looked at after every request: is a variant worse than the control?
//!
//! Only bad events are looked at, and of each sticky unit only the first one. If the variant isn't worse, which units meet
//! with one and in what order has nothing to do with their variants, which were drawn by a hash: each is one of the
//! variant's with a known probability, its share. So the product of `P(event | worse by r) / P(event | share)` over the events
//! is a betting game that is fair at best, and so is the mean over several `r`: whoever looks as often as he likes sees it
//! reach `1 / α` with probability α at most (Ville's inequality). What changes for all variants alike, an outage, a busy hour,
//! changes nothing in that; and requests of one unit, which resemble each other, can't count as many.

/// How much worse a variant may be in the bets: odds of an event being the variant's, times these. Near 1 for what shows
/// slowly and large for what shows at once.
const BETS: [f64; 7] = [1.25, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0];
/// The chance that a variant that isn't worse is taken out, over all tests of an experiment, however long it runs.
pub(super) const ALPHA: f64 = 0.05;

/// The test of one variant against the control.
#[derive(Clone, Debug, Default)]
pub(super) struct Guard {
    /// The logarithm of what each bet has made of 1.
    bets: [f64; BETS.len()],
    /// First events of units of the variant, and of the control.
    pub(super) events: (u64, u64),
}

/// Which units had their event. A unit may be mistaken for one that had, which loses an event of whatever variant.
#[derive(Clone, Debug)]
pub(super) struct Seen(Box<[u64; WORDS]>);

/// 8 KiB: an eighth of 8,000 units' events is lost.
const WORDS: usize = 1 << 10;

// === impl Guard ===

impl Guard {
    /// A unit's first event. `share` is the variant's of both, and `tolerated` how many times as frequent it may be there.
    pub(super) fn event(&mut self, of_variant: bool, share: f64, tolerated: f64) {
        let odds = tolerated * share / (1.0 - share);
        for (bet, times) in self.bets.iter_mut().zip(BETS) {
            // P(of the variant) is odds / (1 + odds) at most, and this bet is on `times` the odds.
            let others = (1.0 + odds) / (1.0 + times * odds);
            *bet += if of_variant { (times * others).ln() } else { others.ln() };
        }
        let count = if of_variant { &mut self.events.0 } else { &mut self.events.1 };
        *count += 1;
    }

    /// How much the bets have made of 1 in the mean.
    pub(super) fn evidence(&self) -> f64 {
        self.bets.iter().map(|bet| bet.exp()).sum::<f64>() / BETS.len() as f64
    }
}

// === impl Seen ===

impl Default for Seen {
    fn default() -> Self {
        Self(Box::new([0; WORDS]))
    }
}

impl Seen {
    /// Whether this is the unit's first event.
    pub(super) fn is_first(&mut self, unit: u64) -> bool {
        let (word, bit) = ((unit >> 6) as usize % WORDS, 1 << (unit & 63));
        let first = self.0[word] & bit == 0;
        self.0[word] |= bit;
        first
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bets_on_a_fair_coin_win_nothing_in_the_mean() {
        // All sequences of twelve events, each with its probability at a share of 0.3.
        let mut mean = 0.0;
        for sequence in 0_u32..1 << 12 {
            let mut guard = Guard::default();
            (0..12).for_each(|i| guard.event(sequence >> i & 1 == 1, 0.3, 1.0));
            let ones = sequence.count_ones() as i32;
            mean += guard.evidence() * 0.3_f64.powi(ones) * 0.7_f64.powi(12 - ones);
        }
        assert!((mean - 1.0).abs() < 1e-9, "{mean}");
    }

    #[test]
    fn what_is_tolerated_isn_t_bet_on() {
        let mut strict = Guard::default();
        let mut lenient = Guard::default();
        for of_variant in [true, true, true, false].repeat(20) {
            strict.event(of_variant, 0.5, 1.0);
            lenient.event(of_variant, 0.5, 3.0);
        }
        assert!(strict.evidence() > 1.0 / ALPHA && lenient.evidence() < 1.0, "{} {}", strict.evidence(), lenient.evidence());
        assert_eq!(strict.events, (60, 20));
    }

    #[test]
    fn a_unit_has_one_first_event() {
        let mut seen = Seen::default();
        assert!(seen.is_first(7) && !seen.is_first(7) && seen.is_first(8) && seen.is_first(7 + 64));
    }
}
