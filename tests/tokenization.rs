//! The tokenizer gives the ids that llama.cpp gave, and gives the text back, for every golden case.

mod support;

use roundhouse::call::Message;
use roundhouse::model::gguf::{Gguf, chat_template, vocabulary};
use roundhouse::text::Text;
use serde::Deserialize;
use std::sync::Arc;

#[derive(Deserialize)]
struct Golden {
    tokenization: Vec<Case>,
    completions: Vec<Completion>,
}

#[derive(Deserialize)]
struct Case {
    text: String,
    /// Special tokens in the text are honoured.
    ids_special_parse: Vec<u32>,
    /// Special tokens in the text are plain text.
    ids_nospecial_noparse: Vec<u32>,
    detokenized: String,
}

#[derive(Deserialize)]
struct Completion {
    name: String,
    prompt: Option<String>,
    messages: Option<Vec<Turn>>,
    prompt_tokens: Vec<u32>,
    tokens: Vec<u32>,
    text: String,
}

#[derive(Deserialize)]
struct Turn {
    role: String,
    content: String,
}

fn golden() -> Golden {
    serde_json::from_str(include_str!("fixtures/smollm2-135m-q4_1.json")).expect("the fixture is JSON")
}

fn smollm2() -> Arc<Text> {
    let gguf = Gguf::open(&support::smollm2()).expect("the file is sound");
    let template = chat_template(&gguf).expect("the template is text");
    Arc::new(Text::new(vocabulary(&gguf).expect("there is a tokenizer"), template).expect("it works"))
}

/// The text of these tokens, pushed one by one.
fn decoded(text: &Arc<Text>, ids: &[u32]) -> String {
    let (mut detokenizer, mut out) = (text.detokenizer(), String::new());
    ids.iter().for_each(|id| detokenizer.push(*id, &mut out));
    detokenizer.finish(&mut out);
    out
}

#[test]
fn every_golden_text_has_exactly_the_golden_ids_and_comes_back() {
    let (text, cases) = (smollm2(), golden().tokenization);
    assert_eq!(cases.len(), 18);
    for case in cases {
        assert_eq!(text.encode_special(&case.text), case.ids_special_parse, "{:?}, special tokens honoured", case.text);
        assert_eq!(text.encode(&case.text), case.ids_nospecial_noparse, "{:?}, special tokens as text", case.text);
        assert_eq!(decoded(&text, &case.ids_nospecial_noparse), case.detokenized, "{:?}", case.text);
    }
}

#[test]
fn prompts_and_conversations_have_the_golden_ids() {
    let text = smollm2();
    for completion in golden().completions {
        let ids = match (&completion.messages, &completion.prompt) {
            (Some(turns), _) => {
                let message = |turn: &Turn| Message::new(&turn.role, &turn.content);
                text.encode_chat(&turns.iter().map(message).collect::<Vec<_>>()).expect("the template takes them")
            }
            (None, Some(prompt)) => text.encode(prompt),
            (None, None) => panic!("{} has neither messages nor a prompt", completion.name),
        };
        assert_eq!(ids, completion.prompt_tokens, "{}", completion.name);
        assert_eq!(decoded(&text, &completion.tokens), completion.text, "{}", completion.name);
    }
}
