//! A model's vocabulary as its file has it, checked, and each token's kind and text.

use super::TextError;
use crate::call::{Digest, TokenId};

/// What a model file says about its tokenizer, unchecked; the fields are GGUF's `tokenizer.ggml.*`.
#[derive(Clone, Debug, Default)]
pub struct Vocabulary {
    /// The algorithm: `gpt2` (byte-level BPE) or `llama` (SPM: merges by score).
    pub model: String,
    /// The pre-tokenizer of `gpt2`.
    pub pre: String,
    /// Every token's text, as the algorithm writes it.
    pub tokens: Vec<String>,
    /// Every token's type: 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte. Empty: all normal.
    pub types: Vec<i32>,
    /// Every token's score; only SPM has them.
    pub scores: Vec<f32>,
    /// Pairs of tokens separated by a space, best first; only BPE has them.
    pub merges: Vec<String>,
    /// Begins a text.
    pub bos: Option<TokenId>,
    /// Ends a text.
    pub eos: Option<TokenId>,
    /// Ends a turn.
    pub eot: Option<TokenId>,
    /// Ends a message.
    pub eom: Option<TokenId>,
    /// Stands for what has no token.
    pub unk: Option<TokenId>,
    /// Whether every prompt begins with `bos`.
    pub add_bos: bool,
    /// Whether SPM puts a space before a text.
    pub add_space_prefix: bool,
}

/// What a token is to the tokenizer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Made by merges.
    Normal,
    /// Written by templates and models only: no client's text becomes one, and its own text is never shown.
    Control,
    /// Wherever its text occurs, it is this one token.
    UserDefined,
    /// One byte of a character that has no token (SPM).
    Byte,
}

/// Every token's kind and text.
#[derive(Debug)]
pub(super) struct Tokens {
    kinds: Vec<Kind>,
    bytes: Vec<u8>,
    ends: Vec<usize>, // of each token's text in `bytes`
}

// === impl Vocabulary ===

impl Vocabulary {
    /// Checks what every algorithm relies on: lengths and ids.
    pub(super) fn check(&self) -> Result<(), TextError> {
        let tokens = self.tokens.len();
        if tokens == 0 || TokenId::try_from(tokens).is_err() {
            return Err(TextError::Lengths { tokens, what: "token texts", found: tokens });
        }
        if !self.types.is_empty() && self.types.len() != tokens {
            return Err(TextError::Lengths { tokens, what: "token types", found: self.types.len() });
        }
        for (what, id) in [("bos", self.bos), ("eos", self.eos), ("eot", self.eot), ("eom", self.eom), ("unknown", self.unk)] {
            if let Some(id) = id.filter(|&id| id as usize >= tokens) {
                return Err(TextError::OutOfVocabulary { what, id, tokens });
            }
        }
        Ok(())
    }

    /// The identity of everything that affects ids, the template included.
    pub(super) fn digest(&self, template: Option<&str>) -> Digest {
        let mut hasher = blake3::Hasher::new_derive_key("roundhouse tokenizer and chat template");
        let mut field = |tag: u8, bytes: &[u8]| {
            hasher.update(&[tag]).update(&(bytes.len() as u64).to_le_bytes()).update(bytes);
        };
        field(0, self.model.as_bytes());
        field(1, self.pre.as_bytes());
        self.tokens.iter().for_each(|token| field(2, token.as_bytes()));
        self.types.iter().for_each(|kind| field(3, &kind.to_le_bytes()));
        self.scores.iter().for_each(|score| field(4, &score.to_bits().to_le_bytes()));
        self.merges.iter().for_each(|merge| field(5, merge.as_bytes()));
        for (tag, id) in (6..).zip([self.bos, self.eos, self.eot, self.eom, self.unk]) {
            field(tag, id.map(TokenId::to_le_bytes).as_ref().map_or(&[], |id| id));
        }
        field(11, &[u8::from(self.add_bos), u8::from(self.add_space_prefix)]);
        if let Some(template) = template {
            field(12, template.as_bytes());
        }
        let mut digest = [0; 16];
        hasher.finalize_xof().fill(&mut digest);
        Digest(digest)
    }

    /// Ids, texts and kinds of all tokens.
    fn kinds(&self) -> impl Iterator<Item = (&str, Kind)> {
        let ends = [self.bos, self.eos, self.eot, self.eom];
        (0..).zip(&self.tokens).map(move |(id, text)| {
            let kind = match self.types.get(id as usize) {
                Some(2 | 3) => Kind::Control,
                Some(6) => Kind::Byte,
                // Converters have marked turn markers as user-defined; one that any text could forge would be no marker.
                _ if ends.contains(&Some(id)) => Kind::Control,
                Some(4) if looks_like_control(text) => Kind::Control,
                Some(4) => Kind::UserDefined,
                _ => Kind::Normal,
            };
            (text.as_str(), kind)
        })
    }
}

/// `<|im_start|>`, or the same with the full-width bars of DeepSeek.
fn looks_like_control(text: &str) -> bool {
    (text.starts_with("<|") && text.ends_with("|>")) || (text.starts_with("<｜") && text.ends_with("｜>"))
}

// === impl Tokens ===

impl Tokens {
    /// The tokens of a checked vocabulary; `text_of` turns a normal or byte token into the bytes it stands for.
    pub(super) fn new(vocabulary: &Vocabulary, text_of: impl Fn(&str, Kind) -> Vec<u8>) -> Self {
        let mut tokens = Self { kinds: Vec::new(), bytes: Vec::new(), ends: Vec::new() };
        for (text, kind) in vocabulary.kinds() {
            tokens.kinds.push(kind);
            tokens.bytes.extend(text_of(text, kind));
            tokens.ends.push(tokens.bytes.len());
        }
        tokens
    }

    /// How many there are.
    pub(super) fn len(&self) -> u32 {
        TokenId::try_from(self.kinds.len()).expect("invariant: a checked vocabulary's ids are TokenIds")
    }

    /// All ids with their kinds.
    pub(super) fn kinds(&self) -> impl Iterator<Item = (TokenId, Kind)> {
        (0..).zip(self.kinds.iter().copied())
    }

    /// The kind of one; `None` beyond the vocabulary.
    pub(super) fn kind(&self, id: TokenId) -> Option<Kind> {
        self.kinds.get(id as usize).copied()
    }

    /// The bytes it stands for; of a control token the text that templates write for it.
    pub(super) fn text(&self, id: TokenId) -> &[u8] {
        let id = id as usize;
        let start = if id == 0 { 0 } else { self.ends[id - 1] };
        &self.bytes[start..self.ends[id]]
    }
}
