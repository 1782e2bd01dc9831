//! Pre-tokenizers: how byte-level BPE cuts a text into words before it merges inside each.
//!
//! The published patterns end in `\s+(?!\S)|\s+`: a run of blanks leaves its last one to the word behind it. The
//! lookahead is done by hand here, so that an engine of linear time suffices and no text, however odd, is cut wrongly
//! because a backtracking engine gave up.

use regex::Regex;

/// The names that [`Splitter::new`] knows.
pub(super) const NAMES: [&str; 7] = ["smollm", "qwen2", "deepseek-r1-qwen", "llama-bpe", "llama3", "gpt-2", "default"];

const GPT2: &str = r"\A(?:'(?:s|t|re|ve|m|ll|d)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+)";
const QWEN2: &str = r"\A(?:(?i:'(?:s|t|re|ve|m|ll|d))|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+)";
const LLAMA3: &str = r"\A(?:(?i:'(?:s|t|re|ve|m|ll|d))|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+)";

/// Cuts text into words.
#[derive(Debug)]
pub(super) struct Splitter {
    /// Matches the word at the start of any text that isn't empty.
    word: Regex,
    /// Whether every digit is cut out first.
    digits_alone: bool,
    /// Whether a run of blanks that ends in a line break is a word of its own.
    breaks: bool,
}

// === impl Splitter ===

impl Splitter {
    /// The pre-tokenizer of that name, if it is known.
    pub(super) fn new(pre: &str) -> Option<Self> {
        let (word, digits_alone, breaks) = match pre {
            "smollm" => (GPT2, true, false),
            "gpt-2" | "default" | "" => (GPT2, false, false),
            "qwen2" | "deepseek-r1-qwen" => (QWEN2, false, true),
            "llama-bpe" | "llama3" => (LLAMA3, false, true),
            _ => return None,
        };
        Some(Self { word: Regex::new(word).expect("invariant: the patterns above compile"), digits_alone, breaks })
    }

    /// Calls `take` with every word; together they are the text.
    pub(super) fn split<'t>(&self, text: &'t str, mut take: impl FnMut(&'t str)) {
        let mut rest = text;
        if self.digits_alone {
            while let Some((at, digit)) = rest.char_indices().find(|(_, c)| c.is_numeric()) {
                let (before, after) = rest.split_at(at);
                self.words(before, &mut take);
                let (digit, after) = after.split_at(digit.len_utf8());
                take(digit);
                rest = after;
            }
        }
        self.words(rest, &mut take);
    }

    fn words<'t>(&self, mut rest: &'t str, take: &mut impl FnMut(&'t str)) {
        while !rest.is_empty() {
            let mut end = self.word.find(rest).map_or(rest.len(), |word| word.end());
            let last = rest[..end].chars().next_back();
            if let Some(blank) = last.filter(|&c| c.is_whitespace() && !(self.breaks && matches!(c, '\r' | '\n')))
                && end < rest.len()
                && end > blank.len_utf8()
            {
                end -= blank.len_utf8(); // what follows isn't blank, else the run would have gone on
            }
            let (word, after) = rest.split_at(end);
            take(word);
            rest = after;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Splitter;
    use proptest::prelude::*;
    use tokenizers::pre_tokenizers::byte_level::ByteLevel;
    use tokenizers::pre_tokenizers::digits::Digits;
    use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
    use tokenizers::tokenizer::SplitDelimiterBehavior;
    use tokenizers::{OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer};

    fn words<'t>(pre: &str, text: &'t str) -> Vec<&'t str> {
        let mut words = Vec::new();
        Splitter::new(pre).expect("known").split(text, |word| words.push(word));
        words
    }

    /// The published patterns, run by Hugging Face's tokenizers.
    fn published<'t>(pre: &str, text: &'t str) -> Vec<&'t str> {
        const QWEN2: &str =
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
        let pattern = |pattern: String| {
            Split::new(SplitPattern::Regex(pattern), SplitDelimiterBehavior::Isolated, false).expect("the pattern compiles")
        };
        let mut pieces = PreTokenizedString::from(text);
        match pre {
            "smollm" => Digits::new(true).pre_tokenize(&mut pieces).expect("digits"),
            "qwen2" => pattern(QWEN2.to_owned()).pre_tokenize(&mut pieces).expect("qwen2"),
            "llama-bpe" => pattern(QWEN2.replace(r"|\p{N}|", r"|\p{N}{1,3}|")).pre_tokenize(&mut pieces).expect("llama"),
            _ => {}
        }
        let gpt2 = matches!(pre, "smollm" | "gpt-2");
        ByteLevel::new(false, false, gpt2).pre_tokenize(&mut pieces).expect("byte level");
        pieces.get_splits(OffsetReferential::Original, OffsetType::Byte).into_iter().map(|(_, (a, b), _)| &text[a..b]).collect()
    }

    #[test]
    fn smollm_cuts_every_digit_alone_and_then_as_gpt2() {
        assert_eq!(words("smollm", "a  12 b's  "), ["a", "  ", "1", "2", " b", "'s", "  "]);
    }

    #[test]
    fn gpt2_keeps_digits_together_and_leaves_one_blank_to_the_next_word() {
        assert_eq!(words("gpt-2", "a   12 I'LL\n\n x"), ["a", "  ", " 12", " I", "'", "LL", "\n\n", " x"]);
    }

    #[test]
    fn llama3_cuts_numbers_into_three_digits_and_lines_after_their_break() {
        assert_eq!(words("llama-bpe", "in 12345 I'LL!\n\n  x"), ["in", " ", "123", "45", " I", "'LL", "!\n\n", " ", " x"]);
    }

    #[test]
    fn qwen2_cuts_every_digit_but_lets_any_one_sign_lead_a_word() {
        assert_eq!(words("qwen2", "(a) 12\t\n b"), ["(a", ")", " ", "1", "2", "\t\n", " b"]);
    }

    #[test]
    fn an_unknown_name_has_no_splitter() {
        assert!(Splitter::new("tekken-9").is_none());
        assert!(super::NAMES.iter().all(|name| Splitter::new(name).is_some()));
    }

    #[test]
    fn a_megabyte_of_blanks_is_one_word_but_its_last_blank() {
        let text = " ".repeat(1 << 20) + "x";
        assert_eq!(words("gpt-2", &text).iter().map(|word| word.len()).collect::<Vec<_>>(), [(1 << 20) - 1, 2]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]
        #[test]
        fn words_are_those_of_the_published_patterns(
            text in "([a-cA-Z ]|[0-9]|[ \t\r\n\u{a0}\u{3000}]{1,3}|'(s|LL|re|T)|[é漢ßñ\u{301}½٣Ⅷ_!?.,<>|👋\u{200d}]|\\PC){0,24}"
        ) {
            for pre in ["smollm", "gpt-2", "qwen2", "llama-bpe"] {
                prop_assert_eq!(words(pre, &text), published(pre, &text), "{}", pre);
            }
        }
    }
}
