//! A client talks to the real server, which runs the real model.

mod support;

use roundhouse::config::Name;
use serde_json::{Value, json};
use std::time::Duration;
use support::client::Client;
use support::server::{self, Server};

fn chat(content: &str) -> Value {
    let messages = json!([{ "role": "system", "content": "Answer in one word." }, { "role": "user", "content": content }]);
    json!({ "model": "smollm2-135m", "messages": messages, "max_tokens": 12, "temperature": 0 })
}

/// The golden conversation's question; its answer begins with "The sky on a clear day".
const SKY: &str = "What color is the sky on a clear day?";

/// Waits until nothing runs, then says whether every KV block has come back.
async fn all_blocks_are_free(server: &Server) -> bool {
    let shard = server.shard(&Name::from("smol-q4")).expect("it is configured");
    while shard.sequences() != (0, 0) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let (unused, all) = shard.blocks();
    unused == all
}

fn text(chunks: &[Value]) -> String {
    chunks.iter().filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str()).collect()
}

#[tokio::test]
async fn chat_streamed_chat_and_completions_answer_and_give_all_blocks_back() {
    let server = server::real();
    let client = Client::new(server.address(), Some(server::KEY));

    let answer = client.post("/v1/chat/completions", &chat(SKY)).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let whole = answer.json();
    assert_eq!(whole["object"], "chat.completion");
    let content = whole["choices"][0]["message"]["content"].as_str().expect("there is text");
    assert!(content.starts_with("The sky on a clear day"), "{content}");
    assert_eq!(answer.header("x-roundhouse-backend"), Some("smol-q4"));
    assert_eq!(answer.header("x-roundhouse-config"), Some("1"));

    let mut streamed = chat(SKY);
    streamed["stream"] = true.into();
    streamed["stream_options"] = json!({ "include_usage": true });
    let chunks = client.stream("/v1/chat/completions", &streamed).await.chunks().await;
    assert_eq!(text(&chunks), content, "streamed or not, the text is the same");
    let usage = &chunks.last().expect("there are chunks")["usage"];
    assert_eq!(usage["prompt_tokens"], whole["usage"]["prompt_tokens"]);
    assert_eq!(usage["completion_tokens"], whole["usage"]["completion_tokens"]);
    assert!(usage["prompt_tokens_details"]["cached_tokens"].as_u64() > Some(0), "the prompt was seen before: {usage}");

    let completion = json!({ "model": "default", "prompt": [[504, 2365, 6354, 16438], [504, 2365, 6354, 16438]], "max_tokens": 5, "temperature": 0, "n": 2 });
    let answer = client.post("/v1/completions", &completion).await.json();
    let choices = answer["choices"].as_array().expect("there are choices");
    assert_eq!(choices.len(), 4);
    assert!(choices.iter().all(|choice| choice["text"] == " with a quick brown bear"), "{choices:?}");
    assert!(choices.iter().all(|choice| choice["finish_reason"] == "length"), "{choices:?}");
    assert_eq!(answer["usage"]["prompt_tokens"], 8);
    assert_eq!(answer["usage"]["completion_tokens"], 20);

    assert!(all_blocks_are_free(&server).await);
}

#[tokio::test]
async fn sixteen_at_once_get_what_each_gets_alone() {
    let server = server::real();
    let client = Client::new(server.address(), Some(server::KEY));
    let prompts: Vec<String> = (0..16).map(|i| format!("Write one sentence about the number {i}.")).collect();
    let mut alone = Vec::new();
    for prompt in &prompts {
        alone.push(client.post("/v1/chat/completions", &chat(prompt)).await.json()["choices"][0]["message"]["content"].clone());
    }
    let together = prompts.iter().map(|prompt| {
        let (client, prompt) = (client.clone(), prompt.clone());
        tokio::spawn(
            async move { client.post("/v1/chat/completions", &chat(&prompt)).await.json()["choices"][0]["message"]["content"].clone() },
        )
    });
    let mut answers = Vec::new();
    for answer in together.collect::<Vec<_>>() {
        answers.push(answer.await.expect("no client panics"));
    }
    assert_eq!(answers, alone);
    assert!(all_blocks_are_free(&server).await);
}

#[tokio::test]
async fn a_client_that_hangs_up_frees_its_blocks_streaming_or_not() {
    let server = server::real();
    let client = Client::new(server.address(), Some(server::KEY));
    let mut long = chat("Tell me a long story about a lighthouse.");
    long["max_tokens"] = 2000.into();

    let mut streamed = long.clone();
    streamed["stream"] = true.into();
    let mut stream = client.stream("/v1/chat/completions", &streamed).await;
    stream.next().await.expect("it has begun");
    drop(stream);
    assert!(all_blocks_are_free(&server).await);

    let shard = server.shard(&Name::from("smol-q4")).expect("it is configured");
    let waiting = tokio::spawn(async move { client.post("/v1/chat/completions", &long).await });
    while shard.sequences() == (0, 0) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    waiting.abort();
    assert!(all_blocks_are_free(&server).await);
}
