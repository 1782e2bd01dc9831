//! Tokens back to text, one by one. A character may be spread over tokens: its bytes wait until it is complete.

use super::Text;
use crate::call::TokenId;
use std::sync::Arc;

/// The text of one answer as its tokens arrive. All pushes and `finish` together give what the tokens' bytes decode to,
/// each wrong sequence replaced by U+FFFD; where a token's bytes begin with a space, so does its text, at the start of an
/// answer too, because an answer continues its prompt.
#[derive(Clone, Debug)]
pub struct Detokenizer {
    text: Arc<Text>,
    /// The start of a character, at most 3 bytes between pushes.
    pending: Vec<u8>,
}

// === impl Detokenizer ===

impl Detokenizer {
    pub(super) fn new(text: Arc<Text>) -> Self {
        Self { text, pending: Vec::new() }
    }

    /// Appends the text that `id` completes. Control tokens and ids beyond the vocabulary have none.
    pub fn push(&mut self, id: TokenId, out: &mut String) {
        let bytes = self.text.shown(id);
        if self.pending.is_empty() {
            let kept = decode(bytes, out);
            self.pending.extend_from_slice(kept);
        } else {
            self.pending.extend_from_slice(bytes);
            let kept = decode(&self.pending, out).len();
            self.pending.drain(..self.pending.len() - kept);
        }
    }

    /// Ends the answer: a character that never became complete is replaced.
    pub fn finish(&mut self, out: &mut String) {
        if !self.pending.is_empty() {
            self.pending.clear();
            out.push(char::REPLACEMENT_CHARACTER);
        }
    }
}

/// Appends what `bytes` say and returns the start of a character at their end.
fn decode<'b>(mut bytes: &'b [u8], out: &mut String) -> &'b [u8] {
    loop {
        match str::from_utf8(bytes) {
            Ok(text) => {
                out.push_str(text);
                return &[];
            }
            Err(error) => {
                let (valid, rest) = bytes.split_at(error.valid_up_to());
                out.push_str(str::from_utf8(valid).expect("invariant: valid up to there"));
                let Some(wrong) = error.error_len() else { return rest };
                out.push(char::REPLACEMENT_CHARACTER);
                bytes = &rest[wrong..];
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::text::{Text, Vocabulary};
    use proptest::prelude::*;
    use std::sync::Arc;

    /// Bytes as tokens, then a control token and one of three characters.
    fn bytes() -> Arc<Text> {
        let mut tokens: Vec<_> = (0..256).map(|byte| format!("<0x{byte:02X}>")).collect();
        tokens.extend(["</s>".to_owned(), "▁né".to_owned()]);
        let types = [vec![6; 256], vec![3, 1]].concat();
        let vocabulary = Vocabulary { model: "llama".into(), scores: vec![0.0; 258], tokens, types, ..Vocabulary::default() };
        Arc::new(Text::new(vocabulary, None).expect("a vocabulary"))
    }

    #[test]
    fn a_character_spread_over_tokens_appears_when_it_is_complete() {
        let (mut detokenizer, mut out) = (bytes().detokenizer(), String::new());
        for byte in "한".bytes() {
            assert_eq!(out, "");
            detokenizer.push(byte.into(), &mut out);
        }
        assert_eq!(out, "한");
    }

    #[test]
    fn an_incomplete_character_is_replaced_at_the_end_and_only_once() {
        let (mut detokenizer, mut out) = (bytes().detokenizer(), String::new());
        for id in [0xF0, 0x9F, 0x91] {
            detokenizer.push(id, &mut out);
        }
        detokenizer.finish(&mut out);
        detokenizer.finish(&mut out);
        assert_eq!(out, "\u{FFFD}");
    }

    #[test]
    fn control_tokens_and_ids_beyond_the_vocabulary_have_no_text_and_spaces_stay() {
        let (mut detokenizer, mut out) = (bytes().detokenizer(), String::new());
        for id in [256, 257, 258, u32::MAX, 257] {
            detokenizer.push(id, &mut out);
        }
        assert_eq!(out, " né né");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]
        #[test]
        fn all_pushes_together_are_the_lossy_decoding_of_all_bytes(
            input in proptest::collection::vec(prop_oneof![any::<u8>(), Just(0xE2), Just(0x82), Just(0xAC), Just(0xF0), Just(0x9F)], 0..40)
        ) {
            let (mut detokenizer, mut out) = (bytes().detokenizer(), String::new());
            input.iter().for_each(|&byte| detokenizer.push(byte.into(), &mut out));
            detokenizer.finish(&mut out);
            prop_assert_eq!(out, String::from_utf8_lossy(&input));
        }
    }
}
