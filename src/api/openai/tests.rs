#![expect(clippy::unwrap_used, reason = "a test may stop at a surprise")]

use super::*;
use crate::api::sse;
use crate::call::{Event, Finish, TokenLogprob, Usage};
use crate::config::Money;
use crate::config::UnknownParameters::{Ignore, Refuse};
use bytes::BytesMut;
use proptest::prelude::*;
use serde_json::json;
use std::time::Duration;

fn chat(extra: Value) -> Result<ChatRequest, Error> {
    let mut body = json!({"model": "smol", "messages": [{"role": "user", "content": "Hi"}]});
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    ChatRequest::parse(body, Refuse)
}

/// The parameter an error names, and whether it is one that isn't supported.
/// What is said where nobody takes the request's first extra, or of what nobody could take.
fn refusal(request: Result<ChatRequest, Error>) -> Error {
    request
        .map_or_else(|error| error, |request| request.extras.into_iter().next().expect("the request is refused, or has an extra").refusal)
}

fn named(error: Error) -> (String, bool) {
    match error {
        Error::Invalid { param, .. } => (param.unwrap_or_default(), false),
        Error::Unsupported { param, .. } => (param, true),
        other => panic!("{other:?} names no parameter"),
    }
}

#[test]
fn every_wrong_value_is_named_by_its_path() {
    for (extra, path) in [
        (json!({"model": 7}), "model"),
        (json!({"model": null}), "model"),
        (json!({"messages": null}), "messages"),
        (json!({"messages": "Hi"}), "messages"),
        (json!({"messages": []}), "messages"),
        (json!({"messages": ["Hi"]}), "messages[0]"),
        (json!({"messages": [{"role": "user"}]}), "messages[0].content"),
        (json!({"messages": [{"role": "user", "content": "a"}, {"role": 1, "content": "a"}]}), "messages[1].role"),
        (json!({"messages": [{"role": "pirate", "content": "a"}]}), "messages[0].role"),
        (json!({"messages": [{"role": "user", "content": []}]}), "messages[0].content"),
        (json!({"messages": [{"role": "user", "content": ["a"]}]}), "messages[0].content[0]"),
        (json!({"messages": [{"role": "user", "content": [{"type": "text"}]}]}), "messages[0].content[0].text"),
        (json!({"messages": [{"role": "user", "content": "a", "name": 1}]}), "messages[0].name"),
        (json!({"max_tokens": 0}), "max_tokens"),
        (json!({"max_tokens": 1.0}), "max_tokens"),
        (json!({"max_tokens": "10"}), "max_tokens"),
        (json!({"max_tokens": 5_000_000_000_u64}), "max_tokens"),
        (json!({"max_tokens": 5, "max_completion_tokens": 6}), "max_tokens"),
        (json!({"max_completion_tokens": -1}), "max_completion_tokens"),
        (json!({"temperature": 2.1}), "temperature"),
        (json!({"temperature": "hot"}), "temperature"),
        (json!({"top_p": -0.1}), "top_p"),
        (json!({"seed": 1.5}), "seed"),
        (json!({"seed": 18_446_744_073_709_551_615_u64}), "seed"),
        (json!({"stop": 3}), "stop"),
        (json!({"stop": ""}), "stop"),
        (json!({"stop": ["a", ""]}), "stop[1]"),
        (json!({"stop": ["a", 1]}), "stop[1]"),
        (json!({"stop": vec!["a"; 17]}), "stop"),
        (json!({"n": 0}), "n"),
        (json!({"n": 129}), "n"),
        (json!({"stream": "yes"}), "stream"),
        (json!({"stream_options": {"include_usage": true}}), "stream_options"),
        (json!({"stream": true, "stream_options": {"include_usage": 1}}), "stream_options.include_usage"),
        (json!({"user": 5}), "user"),
        (json!({"top_k": -2}), "top_k"),
        (json!({"top_k": 1.5}), "top_k"),
        (json!({"min_p": 1.1}), "min_p"),
        (json!({"presence_penalty": 2.1}), "presence_penalty"),
        (json!({"frequency_penalty": "1"}), "frequency_penalty"),
        (json!({"repetition_penalty": 0}), "repetition_penalty"),
        (json!({"logit_bias": [1]}), "logit_bias"),
        (json!({"logit_bias": {"hello": 1}}), "logit_bias"),
        (json!({"logit_bias": {"-1": 1}}), "logit_bias"),
        (json!({"logit_bias": {"5": 101}}), "logit_bias.5"),
        (json!({"logit_bias": {"5": null}}), "logit_bias.5"),
        (json!({"logprobs": 3}), "logprobs"),
        (json!({"logprobs": true, "top_logprobs": 21}), "top_logprobs"),
        (json!({"top_logprobs": 2}), "top_logprobs"),
        (json!({"max_tokens": 4, "min_tokens": 5}), "min_tokens"),
        (json!({"max_tokens": 0}), "max_tokens"),
        (json!({"metadata": "x"}), "metadata"),
    ] {
        let shown = extra.to_string();
        assert_eq!(named(chat(extra).unwrap_err()), (path.to_owned(), false), "{shown}");
    }
}

#[test]
fn parameters_that_are_unknown_or_not_built_are_refused_by_name() {
    for (extra, path) in [
        (json!({"tools": [{"type": "function"}]}), "tools"),
        (json!({"tool_choice": "required"}), "tool_choice"),
        (json!({"response_format": {"type": "json_object"}}), "response_format"),
        (json!({"store": true}), "store"),
        (json!({"service_tier": "priority"}), "service_tier"),
        (json!({"stop_token_ids": [1]}), "stop_token_ids"),
        (json!({"skip_special_tokens": false}), "skip_special_tokens"),
        (json!({"modalities": ["text", "audio"]}), "modalities"),
        (json!({"reasoning_effort": "low"}), "reasoning_effort"),
        (json!({"frobnicate": 1}), "frobnicate"),
        (json!({"stream": true, "stream_options": {"frobnicate": 1}}), "stream_options.frobnicate"),
        (json!({"messages": [{"role": "tool", "content": "a", "tool_call_id": "1"}]}), "messages[0].role"),
        (json!({"messages": [{"role": "user", "content": "a", "mood": "good"}]}), "messages[0].mood"),
        (json!({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}), "messages[0].content[0].type"),
        (json!({"messages": [{"role": "assistant", "content": "a", "tool_calls": [{}]}]}), "messages[0].tool_calls"),
    ] {
        let shown = extra.to_string();
        assert_eq!(named(refusal(chat(extra))), (path.to_owned(), true), "{shown}");
    }
}

#[test]
fn a_misspelt_parameter_is_answered_with_the_right_name() {
    let error = refusal(chat(json!({"temprature": 1})));
    assert!(error.to_string().contains("Did you mean 'temperature'?"), "{error}");
}

#[test]
fn what_isnt_known_in_parts_of_a_request_may_be_ignored() {
    let body = json!({"model": "smol", "messages": [{"role": "user", "content": "Hi", "mood": 1}]});
    assert_eq!(ChatRequest::parse(body, Ignore).unwrap().extras, []);
}

#[test]
fn what_only_remote_servers_understand_is_kept_as_it_was_written() {
    let tools = json!([{"type": "function", "function": {"name": "weather"}}]);
    let image = json!({"role": "user", "content": [{"type": "text", "text": "what?"}, {"type": "image_url", "image_url": {"url": "u"}}]});
    let called = json!({"role": "assistant", "content": null, "tool_calls": [{"id": "1"}]});
    let result = json!({"role": "tool", "tool_call_id": "1", "content": "7"});
    let request = chat(json!({
        "messages": [{"role": "user", "content": "Hi"}, image, called, result],
        "tools": tools, "tool_choice": "none", "parallel_tool_calls": false, "frobnicate": 1, "logit_bias": null, "nothing": null,
    }));
    let request = request.unwrap();
    let extras: Vec<_> = request.extras.iter().map(|extra| (extra.name.as_str(), extra.known, extra.value.clone())).collect();
    let expected = [
        ("messages[1]", true, None),
        ("messages[2]", true, None),
        ("messages[3]", true, None),
        ("tools", true, Some(tools)),
        ("tool_choice", true, Some(json!("none"))),
        ("parallel_tool_calls", true, Some(json!(false))),
        ("frobnicate", false, Some(json!(1))),
    ];
    assert_eq!(extras, expected);
    let messages: Vec<_> = request.messages.iter().map(|message| (message.content.as_str(), message.whole.as_deref())).collect();
    assert_eq!(messages, [("Hi", None), ("what?", Some(&image)), ("", Some(&called)), ("7", Some(&result))]);
}

#[test]
fn neutral_values_and_harmless_parameters_pass() {
    let request = chat(json!({
        "presence_penalty": 0, "frequency_penalty": 0.0, "logprobs": false, "top_logprobs": 0, "n": 1, "tools": [], "tool_choice": "auto",
        "response_format": {"type": "text"}, "logit_bias": {}, "stop": null, "temperature": null, "user": "u", "metadata": {"a": "b"},
        "store": false, "safety_identifier": "s", "prompt_cache_key": "k", "parallel_tool_calls": true, "service_tier": "auto",
        "modalities": ["text"], "repetition_penalty": 1, "top_k": -1, "min_p": 0, "stream": false, "functions": null,
    }));
    let request = request.unwrap();
    assert_eq!(request.generation.n, 1);
    assert_eq!(request.generation.temperature, None);
}

#[test]
fn a_chat_request_is_understood_in_full() {
    let request = chat(json!({
        "messages": [
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}], "name": "Ann"},
            {"role": "assistant", "content": "", "refusal": null, "tool_calls": [], "annotations": []},
        ],
        "max_completion_tokens": 7, "max_tokens": 7, "temperature": 0, "top_p": 0.5, "seed": -1, "stop": "END", "n": 3, "stream": true,
        "stream_options": {"include_usage": true}, "return_token_ids": true,
    }));
    let request = request.unwrap();
    let message = |role: &str, content: &str, name: Option<&str>| crate::call::Message {
        name: name.map(Into::into),
        ..crate::call::Message::new(role, content)
    };
    assert_eq!(
        request.messages,
        [message("system", "Be brief.", None), message("user", "one\ntwo", Some("Ann")), message("assistant", "", None)]
    );
    let expected = Generation {
        max_tokens: Some(7),
        temperature: Some(0.0),
        top_p: Some(0.5),
        seed: Some(u64::MAX),
        stop: vec!["END".into()],
        n: 3,
        stream: true,
        usage: StreamUsage::Last,
        return_token_ids: true,
        ..Generation::default()
    };
    assert_eq!(request.generation, expected);
}

#[test]
fn parameters_beyond_openais_are_understood() {
    let request = chat(json!({
        "top_k": 40, "min_p": 0.1, "repetition_penalty": 1.2, "frequency_penalty": -2, "presence_penalty": 0.5, "logit_bias": {"7": -100, "9": 3},
        "ignore_eos": true, "min_tokens": 3, "max_tokens": 3, "logprobs": true, "top_logprobs": 2, "service_tier": "flex",
    }));
    let expected = Generation {
        max_tokens: Some(3),
        min_tokens: 3,
        top_k: Some(40),
        min_p: Some(0.1),
        repetition_penalty: Some(1.2),
        frequency_penalty: Some(-2.0),
        presence_penalty: Some(0.5),
        logit_bias: vec![(7, -100.0), (9, 3.0)],
        ignore_eos: true,
        n: 1,
        logprobs: Some(2),
        flex: true,
        ..Generation::default()
    };
    assert_eq!(request.unwrap().generation, expected);
    let completion = |extra: Value| {
        let mut body = json!({"model": "smol", "prompt": "a"});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        CompletionRequest::parse(body, Refuse).map(|request| request.generation)
    };
    let echoed = completion(json!({"echo": true, "logprobs": 0, "max_tokens": 0})).unwrap();
    assert_eq!((echoed.echo, echoed.logprobs, echoed.max_tokens), (true, Some(0), Some(0)));
    assert_eq!(named(completion(json!({"max_tokens": 0})).unwrap_err()), ("max_tokens".to_owned(), false));
    assert_eq!(named(completion(json!({"logprobs": true})).unwrap_err()), ("logprobs".to_owned(), false));
}

/// A token's text with a log-probability, and one likelier one.
fn likely(text: &str, logprob: Option<f32>) -> TokenLogprob {
    TokenLogprob { bytes: text.as_bytes().into(), logprob, top: Box::new([(b"\xf0\x9f".as_slice().into(), -0.25)]) }
}

#[test]
fn log_probabilities_have_the_shape_of_their_endpoint_streamed_and_not() {
    let events = [
        Event::Echo { choice: 0, text: "né".into(), ids: [1, 2].into(), logprobs: vec![likely("n", None), likely("é", Some(-0.5))] },
        Event::Text { choice: 0, text: String::new(), ids: vec![3], logprobs: vec![likely("x", Some(f32::NEG_INFINITY))] },
        Event::Finish { choice: 0, reason: Finish::Length },
    ];
    let all = |kind| {
        let (mut whole, mut chunks, mut out) =
            (Whole::new(kind, 1, false), Chunks::new(kind, &head(), 1, StreamUsage::Never, false), BytesMut::new());
        for event in &events {
            chunks.write(event, &mut out);
            whole.push(event.clone());
        }
        let read: Value = serde_json::from_slice(&whole.json(&head(), &USAGE)).unwrap();
        let streamed: Vec<Value> = self::events(&out).iter().map(|event| event["choices"][0]["logprobs"].clone()).collect();
        (read["choices"][0]["logprobs"].clone(), streamed)
    };
    let (whole, streamed) = all(Kind::Completion);
    let expected = json!({
        "tokens": ["n", "é", "x"],
        "token_logprobs": [null, -0.5, -9999.0],
        "top_logprobs": [null, {"bytes:\\xf0\\x9f": -0.25, "é": -0.5}, {"bytes:\\xf0\\x9f": -0.25, "x": -9999.0}],
        "text_offset": [0, 1, 2],
    });
    assert_eq!(whole, expected);
    assert_eq!(streamed[1]["text_offset"], json!([2]), "offsets go on from chunk to chunk");
    assert_eq!(streamed[2], Value::Null);
    let (whole, streamed) = all(Kind::Chat);
    let top = json!([{"token": "bytes:\\xf0\\x9f", "logprob": -0.25, "bytes": [0xf0, 0x9f]}]);
    assert_eq!(whole["content"][1], json!({"token": "é", "logprob": -0.5, "bytes": [0xc3, 0xa9], "top_logprobs": top}));
    assert_eq!(streamed[2]["content"][0]["token"], "x", "after the role and the prompt");
}

fn prompts(prompt: Value) -> Result<Prompts, Error> {
    CompletionRequest::parse(json!({"model": "smol", "prompt": prompt}), Refuse).map(|request| request.prompts)
}

#[test]
fn prompts_come_in_four_shapes() {
    assert_eq!(prompts(json!("a")).unwrap(), Prompts::Text("a".into()));
    assert_eq!(prompts(json!(["a", "b"])).unwrap(), Prompts::Texts(vec!["a".into(), "b".into()]));
    assert_eq!(prompts(json!([1, 2])).unwrap(), Prompts::Ids(vec![1, 2]));
    assert_eq!(prompts(json!([[1], [2, 3]])).unwrap(), Prompts::IdLists(vec![vec![1], vec![2, 3]]));
}

#[test]
fn an_empty_or_mixed_prompt_is_named() {
    for (prompt, path) in [
        (json!(""), "prompt"),
        (json!([]), "prompt"),
        (json!([[]]), "prompt[0]"),
        (json!(["a", ""]), "prompt[1]"),
        (json!(["a", 1]), "prompt[1]"),
        (json!([1, "a"]), "prompt[1]"),
        (json!([1, -1]), "prompt[1]"),
        (json!([1, 1.0]), "prompt[1]"),
        (json!([[1], [2, 4_294_967_296_u64]]), "prompt[1][1]"),
        (json!([[1], 2]), "prompt[1]"),
        (json!({"text": "a"}), "prompt"),
        (json!(vec!["a"; 2049]), "prompt"),
    ] {
        let shown = prompt.to_string();
        assert_eq!(named(prompts(prompt).unwrap_err()), (path.to_owned(), false), "{shown}");
    }
    let without = CompletionRequest::parse(json!({"model": "smol"}), Refuse).unwrap_err();
    assert_eq!(named(without), ("prompt".to_owned(), false));
}

#[test]
fn a_body_that_is_no_json_object_says_so() {
    assert!(matches!(parse(b"{\"model\": "), Err(Error::Invalid { param: None, .. })));
    assert!(matches!(ChatRequest::parse(json!([1]), Refuse), Err(Error::Invalid { param: None, .. })));
    let nested = [vec![b'['; 100_000], vec![b']'; 100_000]].concat();
    assert!(matches!(parse(&nested), Err(Error::Invalid { .. })));
}

#[test]
fn no_error_repeats_the_prompt() {
    let error = chat(json!({"messages": [{"role": "the secret", "content": "the secret"}], "tools": ["the secret"]})).unwrap_err();
    assert!(!error.to_string().contains("the secret"), "{error}");
}

fn head() -> Head {
    Head {
        id: "chatcmpl-1".into(),
        object: "chat.completion.chunk",
        created: 7,
        model: "smol".into(),
        system_fingerprint: "fp_1".into(),
        prices: None,
    }
}

fn text(choice: u32, text: &str, ids: &[u32]) -> Event {
    Event::Text { choice, text: text.into(), ids: ids.into(), logprobs: Vec::new() }
}

const USAGE: Usage = Usage { prompt_tokens: 3, cached_tokens: 2, completion_tokens: 1, device_time: Duration::ZERO };

#[test]
fn a_chat_stream_reads_to_the_byte_as_documented() {
    let mut chunks = Chunks::new(Kind::Chat, &head(), 1, StreamUsage::Last, false);
    let mut out = BytesMut::new();
    assert!(!chunks.write(&text(0, "", &[5]), &mut out));
    assert!(chunks.write(&text(0, "Hi\n", &[6]), &mut out));
    assert!(!chunks.is_complete());
    chunks.write(&Event::Usage(USAGE), &mut out);
    chunks.write(&Event::Finish { choice: 0, reason: Finish::Stop }, &mut out);
    assert!(chunks.is_complete());
    chunks.end(&USAGE, &mut out);
    let open =
        r#"data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":7,"model":"smol","system_fingerprint":"fp_1","choices":["#;
    let expected = [
        format!(r#"{open}{{"index":0,"delta":{{"role":"assistant","content":""}},"logprobs":null,"finish_reason":null}}],"usage":null}}"#),
        format!(r#"{open}{{"index":0,"delta":{{"content":"Hi\n"}},"logprobs":null,"finish_reason":null}}],"usage":null}}"#),
        format!(r#"{open}{{"index":0,"delta":{{}},"logprobs":null,"finish_reason":"stop"}}],"usage":null}}"#),
        format!(
            r#"{open}],"usage":{{"prompt_tokens":3,"completion_tokens":1,"total_tokens":4,"prompt_tokens_details":{{"cached_tokens":2}}}}}}"#
        ),
        "data: [DONE]\n\n".to_owned(),
    ];
    assert_eq!(String::from_utf8(out.to_vec()).unwrap(), expected.join("\n\n"));
}

#[test]
fn usage_says_what_an_answer_cost_where_its_model_has_prices() {
    let price = |text: &str| Money::per_million(text).unwrap();
    let prices = Prices { input: price("0.05"), cached_input: price("0.01"), output: price("0.2") };
    let head = Head { prices: Some(prices), ..head() };
    let usage = Usage { prompt_tokens: 100, cached_tokens: 60, completion_tokens: 7, device_time: Duration::from_micros(12_345) };
    let whole: Value = serde_json::from_slice(&Whole::new(Kind::Chat, 1, false).json(&head, &usage)).unwrap();
    // 40 × 50 + 60 × 10 + 7 × 200 nano-units.
    assert_eq!((&whole["usage"]["cost"], &whole["usage"]["device_ms"]), (&json!("0.000004"), &json!(12.345)));
    let mut out = BytesMut::new();
    Chunks::new(Kind::Chat, &head, 1, StreamUsage::Last, false).end(&usage, &mut out);
    assert_eq!(events(&out)[0]["usage"], whole["usage"]);
}

#[test]
fn every_chunk_says_what_was_used_so_far_where_that_is_asked_for() {
    let mut out = BytesMut::new();
    let mut chunks = Chunks::new(Kind::Completion, &head(), 1, StreamUsage::Every, false);
    chunks.write(&Event::Usage(Usage { prompt_tokens: 3, ..Usage::default() }), &mut out);
    chunks.write(&text(0, "a", &[5]), &mut out);
    chunks.write(&text(0, "b", &[6, 7]), &mut out);
    chunks.end(&USAGE, &mut out);
    let counts: Vec<_> = events(&out).iter().map(|event| event["usage"]["completion_tokens"].clone()).collect();
    assert_eq!(counts, [json!(1), json!(3), json!(1)]);
    assert_eq!(events(&out)[0]["usage"]["prompt_tokens"], 3);
}

#[test]
fn a_stream_shows_token_ids_only_where_asked_for() {
    let mut out = BytesMut::new();
    let mut chunks = Chunks::new(Kind::Completion, &head(), 2, StreamUsage::Never, true);
    chunks.write(&text(1, "", &[5]), &mut out);
    chunks.write(&text(1, "ab", &[6, 7]), &mut out);
    let read: Vec<Value> = events(&out);
    assert_eq!(read[0]["choices"][0], json!({"index": 1, "text": "", "logprobs": null, "finish_reason": null, "token_ids": [5]}));
    assert_eq!(read[1]["choices"][0]["token_ids"], json!([6, 7]));
    assert_eq!(read[1].get("usage"), None);
}

#[test]
fn a_whole_chat_answer_has_message_finish_reason_and_usage() {
    let mut whole = Whole::new(Kind::Chat, 1, true);
    whole.push(text(0, "He", &[1]));
    whole.push(text(0, "llo", &[2, 3]));
    assert!(!whole.is_complete());
    whole.push(Event::Finish { choice: 0, reason: Finish::Length });
    assert!(whole.is_complete());
    let read: Value = serde_json::from_slice(&whole.json(&head(), &USAGE)).unwrap();
    assert_eq!(
        read["choices"],
        json!([{"index": 0, "message": {"role": "assistant", "content": "Hello", "refusal": null}, "logprobs": null, "finish_reason": "length", "token_ids": [1, 2, 3]}])
    );
    assert_eq!(read["usage"]["total_tokens"], 4);
}

/// The events of a stream, `[DONE]` left out, as a client reads them.
fn events(stream: &[u8]) -> Vec<Value> {
    let stream = std::str::from_utf8(stream).unwrap();
    let events = stream.split_terminator("\n\n").filter(|event| !event.starts_with(':'));
    let data = events.map(|event| event.strip_prefix("data: ").unwrap());
    data.filter(|data| *data != "[DONE]").map(|data| serde_json::from_str(data).unwrap()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn deltas_joined_are_the_whole_text_whatever_it_holds(pieces in prop::collection::vec((0u32..3, ".{0,12}|[\r\n\u{2028}\"\\\\:]{1,4}"), 0..40)) {
        for kind in [Kind::Chat, Kind::Completion] {
            let mut chunks = Chunks::new(kind, &head(), 3, StreamUsage::Never, false);
            let mut whole = Whole::new(kind, 3, false);
            let mut out = BytesMut::new();
            for (choice, piece) in &pieces {
                chunks.write(&text(*choice, piece, &[]), &mut out);
                out.extend_from_slice(sse::PING);
                whole.push(text(*choice, piece, &[]));
            }
            chunks.end(&USAGE, &mut out);
            let read: Value = serde_json::from_slice(&whole.json(&head(), &USAGE)).unwrap();
            for choice in 0..3 {
                let (streamed, pointer) = match kind {
                    Kind::Chat => ("/delta/content", format!("/choices/{choice}/message/content")),
                    Kind::Completion => ("/text", format!("/choices/{choice}/text")),
                };
                let all = events(&out);
                let own = all.iter().map(|event| &event["choices"][0]).filter(|read| read["index"] == choice);
                let joined: String = own.filter_map(|read| read.pointer(streamed)?.as_str()).collect();
                prop_assert_eq!(Some(joined.as_str()), read.pointer(&pointer).and_then(Value::as_str));
            }
        }
    }
}
