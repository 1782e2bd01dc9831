//! Scripts and emoji whose characters are spread over tokens arrive whole, streamed or not, with and without stop texts.

mod support;

use roundhouse::engine::fake::Fake;
use serde_json::{Value, json};
use support::client::Client;
use support::fake::{Fakes, text};
use support::server::{self, KEY, Server};
use support::tiny_model::STOP_TOKEN;

/// Hangul syllables, also as separate letters; Arabic with marks; a family, flags and skin tones; combining marks.
const TEXTS: [&str; 6] = [
    "안녕하세요 \u{1112}\u{1161}\u{11ab}글",
    "السَّلامُ عَلَيْكُم",
    "👨\u{200D}👩\u{200D}👧\u{200D}👦 and 🇰🇷🏳\u{FE0F}\u{200D}🌈",
    "👋🏽 e\u{301}\u{323} Z\u{351}\u{36b}",
    "日本語とภาษาไทย",
    "plain ascii",
];

/// A server whose model says this text, a byte a token where the tokenizer has nothing longer.
fn saying(said: &str) -> (Server, usize) {
    let mut ids = text().encode(said);
    let tokens = ids.len();
    ids.push(STOP_TOKEN);
    (server::with(server::config(), Fakes(move |limits| Fake::new(limits).saying(ids.clone()))), tokens)
}

async fn ask(server: &Server, stop: Option<&str>, max_tokens: usize) -> (String, String) {
    let client = Client::new(server.address(), Some(KEY));
    let body = |stream: bool| json!({ "model": "default", "prompt": "x", "max_tokens": max_tokens, "stop": stop, "stream": stream });
    let whole = client.post("/v1/completions", &body(false)).await.json();
    let chunks = client.stream("/v1/completions", &body(true)).await.chunks().await;
    let streamed = chunks.iter().filter_map(|chunk| chunk["choices"][0]["text"].as_str()).collect();
    (whole["choices"][0]["text"].as_str().map(str::to_owned).unwrap_or_default(), streamed)
}

#[tokio::test]
async fn hangul_arabic_and_emoji_families_lose_nothing_at_token_borders() {
    for said in TEXTS {
        let (server, tokens) = saying(said);
        assert!(said.is_ascii() || tokens > said.chars().count(), "{said} is split within characters");
        let (whole, streamed) = ask(&server, None, 200).await;
        assert_eq!((whole.as_str(), streamed.as_str()), (said, said));
    }
}

#[tokio::test]
async fn a_text_cut_at_any_token_has_one_replacement_at_most_and_only_for_what_was_cut() {
    for said in TEXTS {
        let (server, tokens) = saying(said);
        for max_tokens in 1..=tokens {
            let (whole, streamed) = ask(&server, None, max_tokens).await;
            assert_eq!(whole, streamed);
            let shown = whole.strip_suffix('\u{FFFD}').unwrap_or(&whole);
            assert!(said.starts_with(shown), "{whole:?} of {said:?} at {max_tokens}");
        }
    }
}

#[tokio::test]
async fn a_stop_text_of_several_bytes_a_character_ends_the_answer_before_it() {
    for said in TEXTS {
        for (at, character) in said.char_indices().skip(1).step_by(5) {
            let (server, _) = saying(said);
            let stop = character.to_string();
            let first = said.find(character).unwrap_or(at);
            let (whole, streamed) = ask(&server, Some(&stop), 200).await;
            assert_eq!((whole.as_str(), streamed.as_str()), (&said[..first], &said[..first]), "stopped at {stop:?}");
        }
    }
}

#[tokio::test]
async fn special_tokens_in_a_users_text_are_text() {
    let server = server::with(server::config(), Fakes(Fake::new));
    let client = Client::new(server.address(), Some(KEY));
    let tokens = |content: &str| {
        let (client, body) =
            (client.clone(), json!({ "model": "default", "messages": [{ "role": "user", "content": content }], "max_tokens": 1 }));
        async move {
            let answer: Value = client.post("/v1/chat/completions", &body).await.json();
            answer["usage"]["prompt_tokens"].as_u64().unwrap_or_else(|| panic!("{answer}"))
        }
    };
    // As one special token it would count as one.
    let (without, with) = (tokens("a").await, tokens("a<|im_end|>").await);
    assert_eq!(with - without, "<|im_end|>".len() as u64);
}
