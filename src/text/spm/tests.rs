#![expect(clippy::unwrap_used, reason = "a panic is the failure of a test")]

use crate::call::TokenId;
use crate::text::{Text, TextError, Vocabulary};
use proptest::prelude::*;
use std::sync::Arc;

const PIECES: [(&str, f32); 14] = [
    ("▁", -9.0),
    ("a", -10.0),
    ("b", -11.0),
    ("c", -12.0),
    ("ab", -2.0),
    ("bc", -1.0),
    ("aa", -3.0),
    ("ca", -3.0),
    ("▁a", -4.0),
    ("▁ab", -0.5),
    ("abc", -0.25),
    ("▁▁", -5.0),
    ("é", -6.0),
    ("cab", -3.0),
];

/// `<unk>`, `<s>`, 256 bytes, then the pieces.
fn vocabulary() -> Vocabulary {
    let mut tokens = vec!["<unk>".to_owned(), "<s>".to_owned()];
    tokens.extend((0..256).map(|byte| format!("<0x{byte:02X}>")));
    let mut types = [vec![2, 3], vec![6; 256]].concat();
    let mut scores = vec![0.0; 258];
    for (piece, score) in PIECES {
        tokens.push(piece.to_owned());
        types.push(1);
        scores.push(score);
    }
    Vocabulary { model: "llama".into(), tokens, types, scores, unk: Some(0), bos: Some(1), ..Vocabulary::default() }
}

fn pieces(vocabulary: &Vocabulary, text: &str) -> Vec<String> {
    let ids = Text::new(vocabulary.clone(), None).unwrap().encode(text);
    ids.into_iter().map(|id| vocabulary.tokens[id as usize].clone()).collect()
}

#[test]
fn the_pair_with_the_best_score_is_joined_first() {
    assert_eq!(pieces(&vocabulary(), "aab"), ["a", "ab"]);
    assert_eq!(pieces(&vocabulary(), "bab"), ["b", "ab"]);
}

#[test]
fn of_equal_scores_the_leftmost_pair_is_joined_first() {
    assert_eq!(pieces(&vocabulary(), "caa"), ["ca", "a"]);
    assert_eq!(pieces(&vocabulary(), "aaa"), ["aa", "a"]);
}

#[test]
fn a_character_without_a_piece_falls_back_to_its_bytes() {
    assert_eq!(pieces(&vocabulary(), "a漢é"), ["a", "<0xE6>", "<0xBC>", "<0xA2>", "é"]);
}

#[test]
fn without_byte_tokens_such_a_character_is_the_unknown_token_and_without_that_the_vocabulary_is_refused() {
    let mut vocabulary = vocabulary();
    vocabulary.types[2..258].fill(1);
    assert_eq!(pieces(&vocabulary, "a漢b"), ["a", "<unk>", "b"]);
    vocabulary.unk = None;
    assert!(matches!(Text::new(vocabulary, None), Err(TextError::NoFallback)));
}

#[test]
fn spaces_are_written_as_the_pieces_write_them_and_a_prefix_is_added_where_the_file_says_so() {
    let with = Vocabulary { add_space_prefix: true, add_bos: true, ..vocabulary() };
    assert_eq!(pieces(&vocabulary(), "a  ab"), ["a", "▁", "▁ab"]);
    assert_eq!(pieces(&with, "ab"), ["<s>", "▁ab"]);
    assert_eq!(pieces(&with, ""), ["<s>"]);
}

#[test]
fn control_tokens_and_bytes_are_never_made_from_text() {
    let mut vocabulary = vocabulary();
    for (token, kind) in [("<", 1), ("s>", 1), ("s", 1), (">", 1), ("0", 1), ("<0", 1), ("x41>", 1)] {
        vocabulary.tokens.push(token.into());
        vocabulary.types.push(kind);
        vocabulary.scores.push(-1.0);
    }
    assert_eq!(pieces(&vocabulary, "<s>"), ["<", "s>"]);
    assert!(!pieces(&vocabulary, "<0x41>").contains(&"<0x41>".to_owned()));
}

#[test]
fn scores_that_cant_be_compared_are_refused() {
    let mut vocabulary = vocabulary();
    vocabulary.scores[7] = f32::NAN;
    assert!(matches!(Text::new(vocabulary.clone(), None), Err(TextError::Score { id: 7 })));
    vocabulary.scores.pop();
    assert!(matches!(Text::new(vocabulary, None), Err(TextError::Lengths { what: "token scores", .. })));
}

/// The definition, without a queue: join the best pair, leftmost first, until none is left.
fn naive(vocabulary: &Vocabulary, text: &str) -> Vec<TokenId> {
    let find = |text: &str| PIECES.iter().position(|&(piece, _)| piece == text);
    let mut symbols: Vec<String> = text.replace(' ', "▁").chars().map(String::from).collect();
    loop {
        let pairs = symbols.windows(2).enumerate().filter_map(|(at, pair)| Some((at, PIECES[find(&pair.concat())?].1)));
        let Some((at, _)) = pairs.reduce(|best, pair| if pair.1 > best.1 { pair } else { best }) else { break };
        let right = symbols.remove(at + 1);
        symbols[at].push_str(&right);
    }
    let id_of = |text: &str| vocabulary.tokens.iter().position(|token| token == text).unwrap() as TokenId;
    let ids = symbols.iter().flat_map(|symbol| match find(symbol) {
        Some(_) => vec![id_of(symbol)],
        None => symbol.bytes().map(|byte| id_of(&format!("<0x{byte:02X}>"))).collect(),
    });
    ids.collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]
    #[test]
    fn ids_are_those_of_the_definition_and_detokenize_to_the_text(input in "[abc é漢]{0,24}") {
        let vocabulary = vocabulary();
        let text = Arc::new(Text::new(vocabulary.clone(), None).unwrap());
        let ids = text.encode(&input);
        prop_assert_eq!(&ids, &naive(&vocabulary, &input));
        let (mut detokenizer, mut shown) = (text.detokenizer(), String::new());
        ids.into_iter().for_each(|id| detokenizer.push(id, &mut shown));
        detokenizer.finish(&mut shown);
        prop_assert_eq!(shown, input);
    }
}
