//! What changes logits before a token is drawn from them: bias, penalties, withheld tokens.

use super::step::Change;
use crate::call::TokenId;
use crate::engine::Shaping;
use std::collections::BTreeMap;

/// A sequence's [`Shaping`] with the tokens it counts.
pub(super) struct Shaper {
    shaping: Shaping,
    /// All tokens that it does something to. In the order of ids, so that nothing depends on a hash.
    tokens: BTreeMap<TokenId, Shaped>,
}

/// What is to be known of a token.
#[derive(Default)]
struct Shaped {
    bias: f32,
    withheld: bool,
    /// Whether it is in the prompt or the output.
    seen: bool,
    /// How often it is in the output.
    count: u32,
}

// === impl Shaper ===

impl Shaper {
    /// Counts the tokens that a sequence has so far, the first `prompt` of them its prompt's.
    pub(super) fn new(shaping: Shaping, tokens: &[TokenId], prompt: usize) -> Self {
        let mut shaper = Self { tokens: BTreeMap::new(), shaping };
        for (id, bias) in &shaper.shaping.bias {
            shaper.tokens.entry(*id).or_default().bias += bias;
        }
        for id in &shaper.shaping.withheld {
            shaper.tokens.entry(*id).or_default().withheld = true;
        }
        if shaper.counts() {
            let (prompt, output) = tokens.split_at(prompt.min(tokens.len()));
            prompt.iter().for_each(|id| shaper.tokens.entry(*id).or_default().seen = true);
            output.iter().for_each(|id| shaper.drew(*id));
        }
        shaper
    }

    /// The sequence has drawn this token.
    pub(super) fn drew(&mut self, id: TokenId) {
        if self.counts() {
            let token = self.tokens.entry(id).or_default();
            token.seen = true;
            token.count += 1;
        }
    }

    /// What changes the logits of draw `draw`, which is of the token at `position`.
    pub(super) fn changes(&self, draw: u32, position: u32, changes: &mut Vec<Change>) {
        let Shaping { repetition, frequency, presence, withheld_until, .. } = self.shaping;
        changes.extend(self.tokens.iter().filter_map(|(&id, token)| {
            let withheld = token.withheld && position < withheld_until;
            (withheld || token.seen || token.bias != 0.0).then_some(Change {
                draw,
                id,
                add: if withheld { f32::NEG_INFINITY } else { token.bias },
                repetition: if token.seen { repetition } else { 1.0 },
                minus: [frequency * token.count as f32, if token.count > 0 { presence } else { 0.0 }],
            })
        }));
    }

    /// Whether it depends on the sequence's own tokens.
    fn counts(&self) -> bool {
        self.shaping.repetition != 1.0 || self.shaping.frequency != 0.0 || self.shaping.presence != 0.0
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
        fn logits_are_changed_as_the_reference_says(
            shaping in shaping(),
            logits in prop::collection::vec(-20.0f32..20.0, 10),
            tokens in prop::collection::vec(0..14u32, 1..30),
            prompt in 0..30usize,
        ) {
            let prompt = prompt.min(tokens.len());
            let mut shaper = Shaper::new(shaping.clone(), &tokens[..prompt], prompt);
            tokens[prompt..].iter().for_each(|id| shaper.drew(*id));
            let position = tokens.len() as u32;
            let shaped = |shaper: &Shaper| {
                let (mut shaped, mut changes) = (logits.clone(), Vec::new());
                shaper.changes(3, position, &mut changes);
                assert!(changes.is_sorted_by(|a, b| a.id < b.id), "each token is changed once");
                for change in changes {
                    assert_eq!(change.draw, 3);
                    if let Some(logit) = shaped.get_mut(change.id as usize) {
                        *logit = change.of(*logit);
                    }
                }
                shaped
            };
            let mut expected = logits.clone();
            reference::bias(&mut expected, &shaping.bias);
            let (repetition, frequency, presence) = (shaping.repetition, shaping.frequency, shaping.presence);
            reference::penalize(&mut expected, &tokens[..prompt], &tokens[prompt..], repetition, frequency, presence);
            if position < shaping.withheld_until {
                expected[3] = f32::NEG_INFINITY;
            }
            prop_assert_eq!(&shaped(&shaper), &expected);
            // A preempted sequence starts anew with all its tokens.
            prop_assert_eq!(&shaped(&Shaper::new(shaping, &tokens, prompt)), &expected);
        }
    }
}
