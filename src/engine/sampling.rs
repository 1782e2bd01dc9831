//! How tokens are drawn, and how likely the model found them.

use crate::call::TokenId;

/// How one sequence's tokens are drawn. The draw depends on these, the position and the logits, on nothing else.
///
/// The order: [`Shaping`], temperature, top-k, top-p, min-p, draw. Log-probabilities are those of the model itself, before all
/// of this.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// 0 takes the likeliest token, the lowest id among equals.
    pub temperature: f32,
    /// Keeps this many of the likeliest tokens; 0 keeps all.
    pub top_k: u32,
    /// Keeps the smallest set of tokens whose probability reaches this; 1 keeps all.
    pub top_p: f32,
    /// Keeps tokens at least this likely compared with the likeliest one; 0 keeps all.
    pub min_p: f32,
    /// The request's seed.
    pub seed: u64,
    /// The choice's index, so that n choices of one seed differ.
    pub choice: u32,
    /// What changes the logits before; usually nothing.
    pub shaping: Option<Box<Shaping>>,
    /// Whether each drawn token comes with its log-probability, and with those of how many of the likeliest ones.
    pub logprobs: Option<u32>,
}

/// What changes the logits, in the order of its fields. Counts are those of the sequence's own tokens, so that nothing else
/// in the batch, no chunk and no preemption changes a draw.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Shaping {
    /// Added to single tokens' logits.
    pub bias: Box<[(TokenId, f32)]>,
    /// Divides the positive logits of tokens that are in the prompt or the output, and multiplies the negative ones; 1
    /// changes nothing.
    pub repetition: f32,
    /// Subtracted once for each time the token is in the output.
    pub frequency: f32,
    /// Subtracted if the token is in the output.
    pub presence: f32,
    /// Tokens that aren't drawn for positions before `withheld_until`.
    pub withheld: Box<[TokenId]>,
    /// See `withheld`.
    pub withheld_until: u32,
}

/// How likely the model found a token.
#[derive(Clone, Debug, PartialEq)]
pub struct Logprob {
    /// The token.
    pub id: TokenId,
    /// The natural logarithm of its probability.
    pub logprob: f32,
    /// The likeliest tokens and theirs, likeliest first, the lower id first among equals.
    pub top: Box<[(TokenId, f32)]>,
}

// === impl Sampling ===

impl Sampling {
    /// The likeliest token, always.
    pub fn greedy() -> Self {
        Self { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed: 0, choice: 0, shaping: None, logprobs: None }
    }
}

// === impl Shaping ===

impl Shaping {
    /// Whether it changes nothing.
    pub fn is_neutral(&self) -> bool {
        let Self { bias, repetition, frequency, presence, withheld, .. } = self;
        bias.is_empty() && *repetition == 1.0 && *frequency == 0.0 && *presence == 0.0 && withheld.is_empty()
    }
}
