//! SentencePiece BPE (`llama`): characters are joined into the token with the best score, and what has no token falls
//! back to bytes.

use super::TextError;
use super::merge::{Joined, Merger};
use super::vocabulary::{Kind, Tokens, Vocabulary};
use crate::call::TokenId;
use std::collections::HashMap;

/// How SPM writes a space.
const SPACE: &str = "▁";

/// An SPM tokenizer.
#[derive(Debug)]
pub(super) struct Spm {
    pieces: HashMap<Box<str>, Joined>,
    /// The longest piece, in bytes.
    longest: usize,
    /// The token of each byte, where there is one.
    bytes: Box<[Option<TokenId>; 256]>,
    unknown: Option<TokenId>,
    space_prefix: bool,
}

// === impl Spm ===

impl Spm {
    pub(super) fn new(vocabulary: &Vocabulary, tokens: &Tokens) -> Result<Self, TextError> {
        let Vocabulary { tokens: texts, scores, .. } = vocabulary;
        if scores.len() != texts.len() {
            return Err(TextError::Lengths { tokens: texts.len(), what: "token scores", found: scores.len() });
        }
        if let Some((id, _)) = (0..).zip(scores).find(|(_, score)| !score.is_finite()) {
            return Err(TextError::Score { id });
        }
        let mut ordered = scores.clone();
        ordered.sort_unstable_by(|a, b| b.total_cmp(a));
        ordered.dedup();
        let (mut pieces, mut longest) = (HashMap::new(), 0);
        let mut bytes = Box::new([None; 256]);
        for (id, kind) in tokens.kinds() {
            let (text, score) = (texts[id as usize].as_str(), scores[id as usize]);
            match kind {
                // A score's rank, so that equal scores stay equal and the leftmost pair goes first.
                Kind::Normal | Kind::UserDefined => {
                    let rank = ordered.partition_point(|&better| better > score) as u32;
                    longest = longest.max(text.len());
                    pieces.insert(text.into(), Joined { rank, id });
                }
                Kind::Byte => {
                    if let Some(byte) = byte_of(text) {
                        bytes[usize::from(byte)] = Some(id);
                    }
                }
                Kind::Control => {}
            }
        }
        // 0xC0, 0xC1 and those from 0xF5 on occur in no text.
        let total = (0..=0xF4).filter(|byte| !matches!(byte, 0xC0 | 0xC1)).all(|byte: usize| bytes[byte].is_some());
        if !total && vocabulary.unk.is_none() {
            return Err(TextError::NoFallback);
        }
        Ok(Self { pieces, longest, bytes, unknown: vocabulary.unk, space_prefix: vocabulary.add_space_prefix })
    }

    /// Appends the ids of `text`, which begins a prompt or follows a special token.
    pub(super) fn encode(&self, text: &str, merger: &mut Merger, ids: &mut Vec<TokenId>) {
        let prefix = if self.space_prefix { SPACE } else { "" };
        let text = prefix.to_owned() + &text.replace(' ', SPACE);
        merger.clear();
        for character in text.chars() {
            let piece = self.pieces.get(character.encode_utf8(&mut [0; 4]) as &str);
            merger.push(character.len_utf8() as u32, piece.map(|piece| piece.id));
        }
        merger.merge(|left, right| {
            let len = (left.len + right.len) as usize;
            if len > self.longest {
                return None;
            }
            self.pieces.get(&text[left.start as usize..][..len]).copied()
        });
        for symbol in merger.symbols() {
            match symbol.id {
                Some(id) => ids.push(id),
                None => self.fall_back(&text[symbol.start as usize..][..symbol.len as usize], ids),
            }
        }
    }

    /// The bytes of a character without a token; the unknown token where one of them has none either.
    fn fall_back(&self, character: &str, ids: &mut Vec<TokenId>) {
        let before = ids.len();
        for byte in character.bytes() {
            let Some(id) = self.bytes[usize::from(byte)] else {
                ids.truncate(before);
                ids.extend(self.unknown);
                return;
            };
            ids.push(id);
        }
    }
}

/// `<0x0A>` is byte 10.
fn byte_of(text: &str) -> Option<u8> {
    u8::from_str_radix(text.strip_prefix("<0x")?.strip_suffix('>')?, 16).ok()
}

/// The bytes that a token's text stands for.
pub(super) fn decode(text: &str, kind: Kind) -> Vec<u8> {
    match (kind, byte_of(text)) {
        (Kind::Byte, Some(byte)) => vec![byte],
        _ => text.replace(SPACE, " ").into_bytes(),
    }
}

#[cfg(test)]
mod tests;
