//! The tokenizer's tables and the chat template, from `tokenizer.*`.

use super::{Gguf, GgufError};
use crate::call::TokenId;
use crate::text::Vocabulary;

/// The tokenizer's tables: lists as long as the vocabulary, ids inside it.
///
/// # Errors
/// A table is missing, of another type, of another length, or names a token that isn't there.
pub fn vocabulary(gguf: &Gguf) -> Result<Vocabulary, GgufError> {
    let need = |key: &'static str| gguf.str(key)?.map(str::to_owned).ok_or(GgufError::Missing { key });
    let key = "tokenizer.ggml.tokens";
    let tokens = gguf.strings(key)?.ok_or(GgufError::Missing { key })?;
    let count = tokens.len();
    let long = |key, found| if found == 0 || found == count { Ok(()) } else { Err(GgufError::Length { key, found, tokens: count }) };
    let types = gguf.i32s("tokenizer.ggml.token_type")?.unwrap_or_default();
    long("tokenizer.ggml.token_type", types.len())?;
    let scores = gguf.f32s("tokenizer.ggml.scores")?.unwrap_or_default();
    long("tokenizer.ggml.scores", scores.len())?;
    let id = |key: &'static str| token(gguf, key, count);
    let model = need("tokenizer.ggml.model")?;
    // SPM's own defaults, where a file leaves the flags out.
    let spm = model == "llama";
    Ok(Vocabulary {
        pre: gguf.str("tokenizer.ggml.pre")?.unwrap_or("default").to_owned(),
        merges: gguf.strings("tokenizer.ggml.merges")?.unwrap_or_default(),
        bos: id("tokenizer.ggml.bos_token_id")?,
        eos: id("tokenizer.ggml.eos_token_id")?,
        eot: id("tokenizer.ggml.eot_token_id")?,
        eom: id("tokenizer.ggml.eom_token_id")?,
        unk: id("tokenizer.ggml.unknown_token_id")?,
        add_bos: gguf.bool("tokenizer.ggml.add_bos_token")?.unwrap_or(spm),
        add_space_prefix: gguf.bool("tokenizer.ggml.add_space_prefix")?.unwrap_or(spm),
        model,
        tokens,
        types,
        scores,
    })
}

/// The chat template's source, where the file has one.
///
/// # Errors
/// It isn't text.
pub fn chat_template(gguf: &Gguf) -> Result<Option<&str>, GgufError> {
    gguf.str("tokenizer.chat_template")
}

fn token(gguf: &Gguf, key: &'static str, tokens: usize) -> Result<Option<TokenId>, GgufError> {
    let Some(id) = gguf.u64(key)? else { return Ok(None) };
    match TokenId::try_from(id) {
        Ok(id) if (id as usize) < tokens => Ok(Some(id)),
        _ => Err(GgufError::Token { key, id: i64::try_from(id).unwrap_or(i64::MAX), tokens }),
    }
}
