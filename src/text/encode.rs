//! A model's tokenizer and chat template behind one door.

use super::TextError;
use super::bpe::{self, Bpe};
use super::detokenize::Detokenizer;
use super::merge::Merger;
use super::special::{self, Part, Special};
use super::spm::{self, Spm};
use super::template::{Template, Turn};
use super::vocabulary::{Kind, Tokens, Vocabulary};
use crate::call::{Digest, Message, TokenId};
use crate::clock::Clock;
use std::borrow::Cow;
use std::sync::Arc;

/// The tokenizer and the chat template of one model.
#[derive(Debug)]
pub struct Text {
    tokens: Tokens,
    algorithm: Algorithm,
    control: Special,
    user_defined: Special,
    template: Option<Template>,
    /// What every prompt begins with.
    bos: Option<TokenId>,
    stop_tokens: Vec<TokenId>,
    longest: usize,
    digest: Digest,
}

#[derive(Debug)]
enum Algorithm {
    Bpe(Bpe),
    Spm(Spm),
}

// === impl Text ===

impl Text {
    /// Builds the tokenizer of a vocabulary and compiles the template.
    ///
    /// # Errors
    /// A vocabulary that contradicts itself or needs what isn't built in, a template that doesn't compile.
    pub fn new(vocabulary: Vocabulary, template: Option<&str>) -> Result<Text, TextError> {
        vocabulary.check()?;
        let (tokens, algorithm) = match vocabulary.model.as_str() {
            "gpt2" => {
                let tokens = Tokens::new(&vocabulary, bpe::decoder());
                let bpe = Bpe::new(&vocabulary, &tokens)?;
                (tokens, Algorithm::Bpe(bpe))
            }
            "llama" => {
                let tokens = Tokens::new(&vocabulary, spm::decode);
                let spm = Spm::new(&vocabulary, &tokens)?;
                (tokens, Algorithm::Spm(spm))
            }
            _ => return Err(TextError::UnknownModel(vocabulary.model)),
        };
        let text_of = |id: Option<TokenId>| id.map_or("", |id| vocabulary.tokens[id as usize].as_str());
        let compiled = template.map(|source| Template::new(source, text_of(vocabulary.bos), text_of(vocabulary.eos), Clock::system()));
        let mut stop_tokens: Vec<_> = [vocabulary.eos, vocabulary.eot, vocabulary.eom].into_iter().flatten().collect();
        stop_tokens.sort_unstable();
        stop_tokens.dedup();
        let plain = tokens.kinds().filter(|&(_, kind)| kind != Kind::Control);
        Ok(Text {
            longest: plain.map(|(id, _)| tokens.text(id).len()).max().unwrap_or(0).max(1),
            control: Special::new(&tokens, Kind::Control)?,
            user_defined: Special::new(&tokens, Kind::UserDefined)?,
            template: compiled.transpose()?,
            bos: vocabulary.bos.filter(|_| vocabulary.add_bos),
            digest: vocabulary.digest(template),
            tokens,
            algorithm,
            stop_tokens,
        })
    }

    /// The identity of tokenizer and template: equal digests give equal ids.
    pub fn digest(&self) -> Digest {
        self.digest
    }

    /// The ids of a prompt to be continued: BOS where the model wants it; control tokens in the text are plain text.
    pub fn encode(&self, text: &str) -> Vec<TokenId> {
        let mut ids = Vec::with_capacity(text.len() / 3 + 1);
        ids.extend(self.bos);
        self.plain(text, &mut Merger::default(), &mut ids);
        ids
    }

    /// The ids of a trusted text: control tokens in it are honoured, and BOS isn't added where it has one.
    pub fn encode_special(&self, text: &str) -> Vec<TokenId> {
        self.marked(text, None)
    }

    /// The ids of a conversation, up to where the model's answer begins. The markers the template itself wrote are
    /// control tokens; those that occur in the messages are plain text. BOS isn't added where the template has written one.
    ///
    /// # Errors
    /// No template; a template that fails, or refuses the messages ([`TextError::Refused`], the client's error).
    pub fn encode_chat(&self, messages: &[Message]) -> Result<Vec<TokenId>, TextError> {
        let template = self.template.as_ref().ok_or(TextError::NoTemplate)?;
        let mark = if special::written(messages).any(|text| self.control.occurs_in(text)) {
            let texts = special::written(messages).chain([template.source()]);
            Some(special::free_mark(texts).ok_or(TextError::Unmarkable)?)
        } else {
            None
        };
        let broken = |text| mark.map_or(Cow::Borrowed(text), |mark| self.control.break_up(text, mark));
        let turns: Vec<_> = messages
            .iter()
            .map(|message| Turn {
                role: broken(&message.role),
                content: broken(&message.content),
                name: message.name.as_deref().map(broken),
            })
            .collect();
        Ok(self.marked(&template.render(&turns)?, mark))
    }

    /// The ids of a text whose control tokens count; `mark` is removed from what is between them.
    fn marked(&self, text: &str, mark: Option<char>) -> Vec<TokenId> {
        let mut merger = Merger::default();
        let mut ids = Vec::with_capacity(text.len() / 3 + 1);
        self.control.split(text, |part| match (part, mark) {
            (Part::Token(id), _) => ids.push(id),
            (Part::Text(text), Some(mark)) if text.contains(mark) => self.plain(&text.replace(mark, ""), &mut merger, &mut ids),
            (Part::Text(text), _) => self.plain(text, &mut merger, &mut ids),
        });
        if let Some(bos) = self.bos.filter(|bos| ids.first() != Some(bos)) {
            ids.insert(0, bos);
        }
        ids
    }

    /// Appends the ids of a text in which no control token counts.
    fn plain(&self, text: &str, merger: &mut Merger, ids: &mut Vec<TokenId>) {
        self.user_defined.split(text, |part| match (part, &self.algorithm) {
            (Part::Token(id), _) => ids.push(id),
            (Part::Text(text), Algorithm::Bpe(bpe)) => bpe.encode(text, merger, ids),
            (Part::Text(text), Algorithm::Spm(spm)) => spm.encode(text, merger, ids),
        });
    }

    /// Whether the model has a chat template.
    pub fn has_template(&self) -> bool {
        self.template.is_some()
    }

    /// The tokens that end an answer, in ascending order.
    pub fn stop_tokens(&self) -> &[TokenId] {
        &self.stop_tokens
    }

    /// The number of tokens; ids are below it.
    pub fn vocabulary_size(&self) -> u32 {
        self.tokens.len()
    }

    /// The most bytes of a client's text that one token stands for, at least 1: L bytes have at least L / this tokens.
    pub fn longest_token_bytes(&self) -> usize {
        self.longest
    }

    /// Turns this model's tokens back into text, from the start of an answer.
    pub fn detokenizer(self: &Arc<Self>) -> Detokenizer {
        Detokenizer::new(self.clone())
    }

    /// A token's own bytes; a control token's are its name, and an unknown one has none.
    pub fn bytes(&self, id: TokenId) -> &[u8] {
        if self.tokens.kind(id).is_some() { self.tokens.text(id) } else { &[] }
    }

    /// What a token adds to an answer: nothing where it is a control token or unknown.
    pub(super) fn shown(&self, id: TokenId) -> &[u8] {
        match self.tokens.kind(id) {
            Some(Kind::Normal | Kind::UserDefined | Kind::Byte) => self.tokens.text(id),
            Some(Kind::Control) | None => &[],
        }
    }
}

#[cfg(test)]
mod tests;
