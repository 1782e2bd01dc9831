//! Text to tokens and back: a model's tokenizer, its chat template, incremental detokenizing and stop strings.
//!
//! ```text
//! messages ─ template ─► rendered text ─ split at the template's own markers ─► pieces ─ split at user-defined tokens ─►
//!            words (split.rs) or whole pieces ─ merges (merge.rs: bpe.rs by rank, spm.rs by score) ─► token ids
//! token ids ─ detokenize.rs ─► valid UTF-8 ─ stop.rs ─► what the client sees
//! ```
//!
//! What a client writes never becomes a control token: control tokens come from the template's own text alone.

mod bpe;
mod detokenize;
mod encode;
mod merge;
mod special;
mod split;
mod spm;
mod stop;
mod template;
mod vocabulary;

pub use detokenize::Detokenizer;
pub use encode::Text;
pub use stop::StopStrings;
pub use vocabulary::Vocabulary;

/// Why there is no tokenizer, or no prompt for these messages.
#[derive(Debug, thiserror::Error)]
pub enum TextError {
    /// `tokenizer.ggml.model` names an algorithm that isn't built in.
    #[error("the tokenizer model `{0}` isn't supported; `gpt2` (byte-level BPE) and `llama` (SentencePiece BPE) are")]
    UnknownModel(String),
    /// `tokenizer.ggml.pre` names a pre-tokenizer that isn't built in: guessing one would give wrong ids.
    #[error("the pre-tokenizer `{0}` isn't supported; these are: {names}", names = split::NAMES.join(", "))]
    UnknownPre(String),
    /// A list that goes with the tokens has another length than they have, or there are no tokens.
    #[error("the vocabulary has {tokens} tokens and {found} {what}")]
    Lengths {
        /// Tokens of the vocabulary.
        tokens: usize,
        /// Which list.
        what: &'static str,
        /// Its length.
        found: usize,
    },
    /// A special token's id is outside the vocabulary.
    #[error("the {what} token has the id {id}, but the vocabulary has {tokens} tokens")]
    OutOfVocabulary {
        /// Which special token.
        what: &'static str,
        /// Its id.
        id: u32,
        /// Tokens of the vocabulary.
        tokens: usize,
    },
    /// A merge that doesn't make one token out of two.
    #[error("merge {index} of the vocabulary, {merge:?}, isn't two tokens that make a third")]
    Merge {
        /// Its place in the list.
        index: usize,
        /// As the file has it.
        merge: String,
    },
    /// A token's score can't be compared.
    #[error("the score of token {id} isn't a finite number")]
    Score {
        /// The token.
        id: u32,
    },
    /// An SPM vocabulary that could lose text.
    #[error("the vocabulary has neither a token for every byte nor an unknown token, so some text would have no tokens")]
    NoFallback,
    /// The special tokens are too many or too long to be searched for.
    #[error("the vocabulary's special tokens can't be searched for: {0}")]
    Special(#[from] aho_corasick::BuildError),
    /// The chat template doesn't compile.
    #[error("the model's chat template can't be used: {0:#}")]
    Template(#[source] minijinja::Error),
    /// The model has no chat template.
    #[error("the model has no chat template; it can continue a prompt, but not answer messages")]
    NoTemplate,
    /// The chat template failed on these messages, or took too long.
    #[error("the model's chat template failed on these messages: {0:#}")]
    Render(#[source] minijinja::Error),
    /// The chat template itself refused the messages, with this message: an error of the client.
    #[error("{0}")]
    Refused(String),
    /// The messages hold special tokens' texts and every character they could be told apart by: an error of the client.
    #[error("the messages contain a special token's text together with all of the noncharacters U+FDD0 to U+FDEF; remove those")]
    Unmarkable,
}
