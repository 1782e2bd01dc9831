//! Any chat template on any messages: it ends, and a client's text never becomes a control token.

#![no_main]

use libfuzzer_sys::fuzz_target;
use roundhouse::call::Message;
use roundhouse::text::{Text, Vocabulary};

fuzz_target!(|input: (&str, Vec<(u8, &str)>)| {
    let (template, turns) = input;
    let mut tokens: Vec<String> = (0..256).map(|byte| format!("<0x{byte:02X}>")).collect();
    tokens.push("</s>".to_owned());
    let types = [vec![6; 256], vec![3]].concat();
    let vocabulary = Vocabulary { model: "llama".into(), scores: vec![0.0; 257], eos: Some(256), tokens, types, ..Vocabulary::default() };
    let Ok(text) = Text::new(vocabulary, Some(template)) else { return };
    let roles = ["system", "user", "assistant"];
    let message = |(role, content): &(u8, &str)| Message::new(roles[usize::from(*role) % 3], *content);
    let messages: Vec<_> = turns.iter().map(message).collect();
    if let Ok(ids) = text.encode_chat(&messages) {
        assert!(ids.iter().all(|id| *id < 257));
        if !template.contains("</s>") && !template.contains("eos") {
            assert!(!ids.contains(&256), "a control token that the template didn't write");
        }
    }
});
