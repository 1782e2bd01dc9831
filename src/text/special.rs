//! Special tokens inside text: where their texts occur, and how a client's own are kept from counting.

use super::TextError;
use super::vocabulary::{Kind, Tokens};
use crate::call::{Message, TokenId};
use aho_corasick::{AhoCorasick, MatchKind};
use std::borrow::Cow;

/// Finds the texts of all tokens of one kind.
#[derive(Debug)]
pub(super) struct Special {
    texts: AhoCorasick,
    ids: Vec<TokenId>,
}

/// A part of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part<'t> {
    /// A special token's text.
    Token(TokenId),
    /// Text between two of them, never empty.
    Text(&'t str),
}

// === impl Special ===

impl Special {
    pub(super) fn new(tokens: &Tokens, kind: Kind) -> Result<Self, TextError> {
        // A text of a single byte can't be broken up by a mark, and an empty one would occur everywhere.
        let least = if kind == Kind::Control { 2 } else { 1 };
        let ids = || tokens.kinds().filter(|&(id, found)| found == kind && tokens.text(id).len() >= least).map(|(id, _)| id);
        let texts = AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(ids().map(|id| tokens.text(id)))?;
        Ok(Self { texts, ids: ids().collect() })
    }

    /// Calls `take` with every part of `text`; of overlapping tokens the first counts, of those the longest.
    pub(super) fn split<'t>(&self, text: &'t str, mut take: impl FnMut(Part<'t>)) {
        let mut at = 0;
        for found in self.texts.find_iter(text) {
            if at < found.start() {
                take(Part::Text(&text[at..found.start()]));
            }
            take(Part::Token(self.ids[found.pattern().as_usize()]));
            at = found.end();
        }
        if at < text.len() {
            take(Part::Text(&text[at..]));
        }
    }

    /// Whether one of the texts occurs.
    pub(super) fn occurs_in(&self, text: &str) -> bool {
        self.texts.is_match(text)
    }

    /// `text` with `mark` behind the first character of every special token's text, overlapping ones included: none
    /// occurs any more, and removing every `mark` restores the text.
    pub(super) fn break_up<'t>(&self, text: &'t str, mark: char) -> Cow<'t, str> {
        let mut broken = String::new();
        let mut done = 0;
        let mut from = 0;
        while let Some(found) = self.texts.find(aho_corasick::Input::new(text).range(from..)) {
            let first = text[found.start()..].chars().next().map_or(1, char::len_utf8);
            from = found.start() + first;
            broken.push_str(&text[done..from]);
            broken.push(mark);
            done = from;
        }
        if done == 0 {
            return Cow::Borrowed(text);
        }
        broken.push_str(&text[done..]);
        Cow::Owned(broken)
    }
}

/// One of Unicode's noncharacters U+FDD0 to U+FDEF that occurs in none of the texts.
pub(super) fn free_mark<'t>(texts: impl Iterator<Item = &'t str>) -> Option<char> {
    let mut used = 0u32;
    for character in texts.flat_map(str::chars).filter(|c| ('\u{FDD0}'..='\u{FDEF}').contains(c)) {
        used |= 1 << (u32::from(character) - 0xFDD0);
    }
    char::from_u32(0xFDD0 + used.trailing_ones()).filter(|_| used != u32::MAX)
}

/// Everything in messages that a client wrote.
pub(super) fn written(messages: &[Message]) -> impl Iterator<Item = &str> {
    messages.iter().flat_map(|message| [Some(message.role.as_str()), Some(&message.content), message.name.as_deref()]).flatten()
}
