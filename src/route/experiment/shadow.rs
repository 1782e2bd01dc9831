//! What variants did with copies of requests, and how likely they found the answers that others gave.

use super::arm::Arm;
use crate::call::TokenLogprob;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// All copies that went to one variant.
#[derive(Clone, Debug, Default)]
pub(super) struct Copies {
    pub(super) arm: Arm,
    /// Those that there was no room for, or that the variant couldn't take.
    pub(super) skipped: u64,
    pub(super) scores: Scores,
}

/// The answers of other variants, scored by one.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Scores {
    pub(super) answers: u64,
    pub(super) sums: Scored,
    /// Of what an answer's tokens are likelier there than where it was given, in the mean: sum and sum of squares.
    pub(super) likelier: (f64, f64),
}

/// One answer, or several, scored by another variant: sums over tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(in crate::route) struct Scored {
    pub(super) tokens: u64,
    /// Of natural logarithms of probabilities at the variant that scores.
    pub(super) logprob: f64,
    /// At the one that answered.
    pub(super) own_logprob: f64,
    /// Tokens whose distribution is known from both.
    pub(super) compared: u64,
    /// Those where both have the same likeliest token.
    pub(super) agreed: u64,
    /// Of KL(answered ‖ scores) in nats; see [`divergence`].
    pub(super) divergence: f64,
}

/// Leave for one copy, given back when it is dropped.
pub(in crate::route) struct Slot(Arc<AtomicUsize>);

/// Copies of one experiment at once: their memory and what they add to a busy batch stay small.
const MOST: usize = 16;

// === impl Scores ===

impl Scores {
    pub(super) fn add(&mut self, scored: &Scored) {
        self.answers += 1;
        let sums = &mut self.sums;
        sums.tokens += scored.tokens;
        sums.logprob += scored.logprob;
        sums.own_logprob += scored.own_logprob;
        sums.compared += scored.compared;
        sums.agreed += scored.agreed;
        sums.divergence += scored.divergence;
        let likelier = (scored.logprob - scored.own_logprob) / scored.tokens.max(1) as f64;
        self.likelier = (self.likelier.0 + likelier, self.likelier.1 + likelier * likelier);
    }
}

// === impl Scored ===

impl Scored {
    /// Compares what the variant that answered says of its tokens with what another one says.
    pub(in crate::route) fn of(own: &[TokenLogprob], other: &[TokenLogprob]) -> Self {
        let mut scored = Scored::default();
        for (own, other) in own.iter().zip(other) {
            let (Some(mine), Some(theirs)) = (own.logprob, other.logprob) else { continue };
            scored.tokens += 1;
            scored.own_logprob += f64::from(mine);
            scored.logprob += f64::from(theirs);
            if let (Some(first), Some(likeliest)) = (own.top.first(), other.top.first()) {
                scored.compared += 1;
                scored.agreed += u64::from(first.0 == likeliest.0);
                scored.divergence += divergence(&own.top, &other.top);
            }
        }
        scored
    }
}

/// KL(p ‖ q) where both distributions are known by their likeliest tokens: those that both have, and all the others together
/// as one. That is less than the whole of it, never more (the data processing inequality), and close to it as long as the
/// likeliest tokens have nearly all of the probability.
fn divergence(p: &[(Box<[u8]>, f32)], q: &[(Box<[u8]>, f32)]) -> f64 {
    let (mut sum, mut rest_p, mut rest_q) = (0.0, 1.0, 1.0);
    for (token, p) in p {
        let Some((_, q)) = q.iter().find(|(other, _)| other == token) else { continue };
        let (p, q) = (f64::from(*p), f64::from(*q));
        sum += p.exp() * (p - q);
        rest_p -= p.exp();
        rest_q -= q.exp();
    }
    // Below a millionth it is rounding.
    if rest_p > 1e-6 {
        sum += rest_p * (rest_p / rest_q.max(1e-6)).ln();
    }
    sum.max(0.0)
}

// === impl Slot ===

impl Slot {
    /// `None` where there are too many at work.
    pub(super) fn take(at_work: &Arc<AtomicUsize>) -> Option<Self> {
        let slot = Slot(at_work.clone());
        (at_work.fetch_add(1, Relaxed) < MOST).then_some(slot)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn top(tokens: &[(&str, f64)]) -> Box<[(Box<[u8]>, f32)]> {
        tokens.iter().map(|(token, p)| (token.as_bytes().into(), p.ln() as f32)).collect()
    }

    fn token(p: f64, tokens: &[(&str, f64)]) -> TokenLogprob {
        TokenLogprob { bytes: b"a"[..].into(), logprob: Some(p.ln() as f32), top: top(tokens) }
    }

    #[test]
    fn the_divergence_of_known_distributions_is_that_of_the_textbook_and_none_from_itself() {
        let (p, q) = ([("a", 0.7), ("b", 0.2), ("c", 0.1)], [("b", 0.5), ("a", 0.4), ("c", 0.1)]);
        let expected = 0.7 * (0.7_f64 / 0.4).ln() + 0.2 * (0.2_f64 / 0.5).ln();
        assert!((divergence(&top(&p), &top(&q)) - expected).abs() < 1e-6);
        assert!(divergence(&top(&p), &top(&p)) < 1e-6);
    }

    #[test]
    fn tokens_that_only_one_knows_are_one_token_together() {
        let (p, q) = ([("a", 0.6), ("b", 0.3)], [("a", 0.5), ("z", 0.2)]);
        let expected = 0.6 * (0.6_f64 / 0.5).ln() + 0.4 * (0.4_f64 / 0.5).ln();
        assert!((divergence(&top(&p), &top(&q)) - expected).abs() < 1e-6);
    }

    #[test]
    fn an_answer_is_scored_by_its_tokens() {
        let own = [token(0.7, &[("a", 0.7), ("b", 0.2)]), token(0.5, &[("x", 0.5)])];
        let other = [token(0.4, &[("b", 0.5), ("a", 0.4)]), token(0.9, &[("x", 0.9)])];
        let scored = Scored::of(&own, &other);
        assert_eq!((scored.tokens, scored.compared, scored.agreed), (2, 2, 1));
        assert!((scored.logprob - (0.4_f64 * 0.9).ln()).abs() < 1e-6 && (scored.own_logprob - 0.35_f64.ln()).abs() < 1e-6);
        assert!(scored.divergence > 0.1);
    }

    #[test]
    fn copies_at_once_are_bounded_and_make_room_when_they_end() {
        let at_work = Arc::default();
        let slots: Vec<_> = (0..MOST).filter_map(|_| Slot::take(&at_work)).collect();
        assert_eq!(slots.len(), MOST);
        assert!(Slot::take(&at_work).is_none() && Slot::take(&at_work).is_none());
        drop(slots);
        assert!(Slot::take(&at_work).is_some());
        assert_eq!(at_work.load(Relaxed), 0);
    }
}
