//! Any bytes as a request's body, at both endpoints.

#![no_main]

use libfuzzer_sys::fuzz_target;
use roundhouse::api::openai::{ChatRequest, CompletionRequest, parse};
use roundhouse::config::UnknownParameters;

fuzz_target!(|body: &[u8]| {
    let Ok(body) = parse(body) else { return };
    for unknown in [UnknownParameters::Refuse, UnknownParameters::Ignore] {
        // Whatever is wrong, its message is for people and its parameter has a name.
        if let Err(error) = ChatRequest::parse(body.clone(), unknown) {
            assert!(!error.to_string().is_empty());
        }
        if let Err(error) = CompletionRequest::parse(body.clone(), unknown) {
            assert!(!error.to_string().is_empty());
        }
    }
});
