//! Any bytes as a weights file: its header, tokenizer and template.

#![no_main]

use libfuzzer_sys::fuzz_target;
use roundhouse::model::gguf::{Gguf, chat_template, vocabulary};
use roundhouse::text::Text;
use std::io::Write;

fuzz_target!(|bytes: &[u8]| {
    let mut file = tempfile::NamedTempFile::new().expect("a temporary file can be made");
    // The magic and a version in front, so that most inputs get beyond them.
    file.write_all(b"GGUF\x03\0\0\0").and_then(|()| file.write_all(bytes)).expect("it can be written");
    let Ok(gguf) = Gguf::open(file.path()) else { return };
    for tensor in gguf.tensors() {
        assert!(tensor.data.len() <= bytes.len());
    }
    if let (Ok(vocabulary), Ok(template)) = (vocabulary(&gguf), chat_template(&gguf)) {
        drop(Text::new(vocabulary, template));
    }
});
