//! Byte-level BPE (`gpt2`): words become bytes, and the pairs of the merge list are joined in the list's order.

use super::TextError;
use super::merge::{Joined, Merger};
use super::split::Splitter;
use super::vocabulary::{Kind, Tokens, Vocabulary};
use crate::call::TokenId;
use std::collections::HashMap;

/// A byte-level BPE tokenizer.
#[derive(Debug)]
pub(super) struct Bpe {
    splitter: Splitter,
    /// The token of each byte. A byte without one vanishes, as in the reference: some vocabularies lack control characters.
    bytes: Box<[Option<TokenId>; 256]>,
    merges: HashMap<(TokenId, TokenId), Joined>,
    /// Words that are tokens are taken whole, whatever the merges say; only some models do so.
    whole: Option<HashMap<Box<[u8]>, TokenId>>,
}

// === impl Bpe ===

impl Bpe {
    pub(super) fn new(vocabulary: &Vocabulary, tokens: &Tokens) -> Result<Self, TextError> {
        let splitter = Splitter::new(&vocabulary.pre).ok_or_else(|| TextError::UnknownPre(vocabulary.pre.clone()))?;
        let normal = || tokens.kinds().filter(|&(_, kind)| kind == Kind::Normal).map(|(id, _)| id);
        let ids: HashMap<&str, TokenId> = normal().map(|id| (vocabulary.tokens[id as usize].as_str(), id)).collect();

        let mut bytes = Box::new([None; 256]);
        for (byte, character) in (0..=u8::MAX).zip(alphabet()) {
            bytes[usize::from(byte)] = ids.get(character.encode_utf8(&mut [0; 4]) as &str).copied();
        }
        let mut merges = HashMap::with_capacity(vocabulary.merges.len());
        let mut joined = String::new();
        for (rank, merge) in (0..).zip(&vocabulary.merges) {
            let made = merge.split_once(' ').and_then(|(left, right)| {
                joined.clear();
                joined.extend([left, right]);
                Some(((*ids.get(left)?, *ids.get(right)?), *ids.get(joined.as_str())?))
            });
            let (pair, id) = made.ok_or_else(|| TextError::Merge { index: rank as usize, merge: merge.clone() })?;
            merges.entry(pair).or_insert(Joined { rank, id });
        }
        let whole = matches!(vocabulary.pre.as_str(), "llama-bpe" | "llama3");
        let whole = whole.then(|| normal().map(|id| (tokens.text(id).into(), id)).collect());
        Ok(Self { splitter, bytes, merges, whole })
    }

    /// Appends the ids of `text`.
    pub(super) fn encode(&self, text: &str, merger: &mut Merger, ids: &mut Vec<TokenId>) {
        self.splitter.split(text, |word| {
            if let Some(&id) = self.whole.as_ref().and_then(|whole| whole.get(word.as_bytes())) {
                ids.push(id);
                return;
            }
            merger.clear();
            word.bytes().for_each(|byte| merger.push(1, self.bytes[usize::from(byte)]));
            merger.merge(|left, right| self.merges.get(&(left.id?, right.id?)).copied());
            ids.extend(merger.symbols().filter_map(|symbol| symbol.id));
        });
    }
}

/// The character that stands for each byte in the texts of a byte-level vocabulary: printable bytes for themselves, the
/// others in order from U+0100.
pub(super) fn alphabet() -> [char; 256] {
    let mut others = '\u{100}'..;
    std::array::from_fn(|byte| match byte as u8 {
        byte @ (b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF) => char::from(byte),
        _ => others.next().expect("invariant: at most 256 characters are taken"),
    })
}

/// Turns token texts into the bytes they stand for. Only normal tokens are written in the alphabet.
pub(super) fn decoder() -> impl Fn(&str, Kind) -> Vec<u8> {
    let bytes: HashMap<char, u8> = alphabet().into_iter().zip(0..=u8::MAX).collect();
    move |text, kind| match kind {
        // A text outside the alphabet stands for itself.
        Kind::Normal => text.chars().map(|c| bytes.get(&c).copied()).collect::<Option<_>>().unwrap_or_else(|| text.as_bytes().into()),
        Kind::Control | Kind::UserDefined | Kind::Byte => text.as_bytes().into(),
    }
}
