//! What changes logits before a token is drawn from them: bias, penalties, withheld tokens.

use crate::call::TokenId;
use crate::engine::Shaping;
use std::collections::BTreeMap;

/// A sequence's [`Shaping`] with the tokens it counts.
pub(super) struct Shaper {
    shaping: Shaping,
    /// Tokens of the prompt and the output, and how often they are in the output. In the order of ids, so that sums don't
    /// depend on a hash.
    seen: BTreeMap<TokenId, u32>,
}

// === impl Shaper ===

impl Shaper {
    /// Counts the tokens that a sequence has so far, the first `prompt` of them its prompt's.
    pub(super) fn new(shaping: Shaping, tokens: &[TokenId], prompt: usize) -> Self {
        let mut shaper = Self { shaping, seen: BTreeMap::new() };
        if shaper.counts() {
            let (prompt, output) = tokens.split_at(prompt.min(tokens.len()));
            shaper.seen.extend(prompt.iter().map(|id| (*id, 0)));
            output.iter().for_each(|id| shaper.drew(*id));
        }
        shaper
    }

    /// The sequence has drawn this token.
    pub(super) fn drew(&mut self, id: TokenId) {
        if self.counts() {
            *self.seen.entry(id).or_default() += 1;
        }
    }

    /// Changes the logits of the token at `position`; `saved` gets what they were, for [`restore`].
    pub(super) fn apply(&self, logits: &mut [f32], position: u32, saved: &mut Vec<(TokenId, f32)>) {
        saved.clear();
        let mut change = |id: TokenId, to: &dyn Fn(f32) -> f32| {
            if let Some(logit) = logits.get_mut(id as usize) {
                saved.push((id, *logit));
                *logit = to(*logit);
            }
        };
        let Shaping { bias, repetition, frequency, presence, withheld, withheld_until } = &self.shaping;
        for (id, bias) in bias {
            change(*id, &|logit| logit + bias);
        }
        for (&id, &count) in &self.seen {
            change(id, &|logit| {
                let repeated = if logit > 0.0 { logit / repetition } else { logit * repetition };
                repeated - frequency * count as f32 - if count > 0 { *presence } else { 0.0 }
            });
        }
        if position < *withheld_until {
            for id in withheld {
                change(*id, &|_| f32::NEG_INFINITY);
            }
        }
    }

    /// Whether it depends on the sequence's own tokens.
    fn counts(&self) -> bool {
        self.shaping.repetition != 1.0 || self.shaping.frequency != 0.0 || self.shaping.presence != 0.0
    }
}

/// Makes the logits what they were; the first change of each was to what the model said.
pub(super) fn restore(logits: &mut [f32], saved: &[(TokenId, f32)]) {
    for (id, logit) in saved.iter().rev() {
        logits[*id as usize] = *logit;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference;
    use proptest::prelude::*;

    fn shaping() -> impl Strategy<Value = Shaping> {
        let bias = prop::collection::btree_map(0..12u32, -100.0f32..100.0, 0..4);
        (bias, prop_oneof![Just(1.0f32), 0.5f32..2.0], -2.0f32..2.0, -2.0f32..2.0, 0..6u32).prop_map(
            |(bias, repetition, frequency, presence, withheld_until)| Shaping {
                bias: bias.into_iter().collect(),
                repetition,
                frequency,
                presence,
                withheld: [3, 11].into(),
                withheld_until,
            },
        )
    }

    proptest! {
        #[test]
        fn logits_are_shaped_as_the_reference_says_and_can_be_restored(
            shaping in shaping(),
            logits in prop::collection::vec(-20.0f32..20.0, 10),
            tokens in prop::collection::vec(0..14u32, 1..30),
            prompt in 0..30usize,
        ) {
            let prompt = prompt.min(tokens.len());
            let mut shaper = Shaper::new(shaping.clone(), &tokens[..prompt], prompt);
            tokens[prompt..].iter().for_each(|id| shaper.drew(*id));
            let position = tokens.len() as u32;
            let (mut shaped, mut saved) = (logits.clone(), Vec::new());
            shaper.apply(&mut shaped, position, &mut saved);
            let mut expected = logits.clone();
            reference::bias(&mut expected, &shaping.bias);
            let (repetition, frequency, presence) = (shaping.repetition, shaping.frequency, shaping.presence);
            reference::penalize(&mut expected, &tokens[..prompt], &tokens[prompt..], repetition, frequency, presence);
            if position < shaping.withheld_until {
                expected[3] = f32::NEG_INFINITY;
            }
            prop_assert_eq!(&shaped, &expected);
            // A preempted sequence starts anew with all its tokens.
            let again = Shaper::new(shaping, &tokens, prompt);
            let mut anew = logits.clone();
            again.apply(&mut anew, position, &mut Vec::new());
            prop_assert_eq!(&anew, &expected);
            restore(&mut shaped, &saved);
            prop_assert_eq!(shaped, logits);
        }
    }
}
