//! What only a remote server's model can do passes through: tools, images, parameters of one server alone.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use roundhouse::config::Config;
use roundhouse::engine::fake::Fake;
use serde_json::{Value, json};
use std::path::Path;
use support::bad_upstream::{BadUpstream, DONE, Deed, chunk, finish, stream, usage};
use support::client::Client;
use support::fake::Fakes;
use support::server::{self, KEY, Server};

const CHAT: &str = "/v1/chat/completions";

/// A server with a remote model, one of a shard, and one that both serve; `more` is said of the remote.
fn front(remote: &BadUpstream, more: &str) -> Server {
    start(remote, more, false)
}

/// Likewise; a lenient one ignores parameters that nobody knows.
fn start(remote: &BadUpstream, more: &str, lenient: bool) -> Server {
    let text = format!(
        "server = {{ listen = \"127.0.0.1:0\", threads = 1{} }}\nadmin.listen = \"127.0.0.1:0\"\nstore.ledger = \"off\"\n\
         [shards.near]\nweights = \"file:unread.gguf\"\n\
         [upstreams.far]\nurl = \"http://{}/v1\"\nretries.attempts = 1\n{more}\n\
         [models.remote]\nvariants.only.backends = [\"far\"]\n\
         [models.local]\nvariants.only.backends = [\"near\"]\n\
         [models.both]\nvariants.only = {{ backends = [\"near\", \"far\"], system = \"Be brief.\" }}\n\
         [tenants.acme]\nlimits.tokens_per_minute = 100_000\nkeys = [{{ name = \"ci\", hash = \"{}\" }}]\n",
        if lenient { ", unknown_parameters = \"ignore\"" } else { "" },
        remote.address,
        blake3::hash(KEY.as_bytes()).to_hex()
    );
    server::with(Config::parse(&text, Path::new("r.toml")).unwrap(), Fakes(Fake::new))
}

fn client(server: &Server) -> Client {
    Client::new(server.address(), Some(KEY))
}

fn asked(model: &str, more: Value) -> Value {
    let mut body = json!({ "model": model, "messages": [{ "role": "user", "content": "the hand" }], "max_tokens": 12 });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// What the remote was sent last.
fn sent(remote: &BadUpstream) -> Value {
    let requests = remote.requests();
    serde_json::from_str(requests.last().unwrap().split_once("\r\n\r\n").unwrap().1).unwrap()
}

fn delta(delta: Value) -> String {
    format!("data: {}\n\n", json!({ "choices": [{ "index": 0, "delta": delta, "finish_reason": null }] }))
}

fn tools() -> Value {
    json!([{ "type": "function", "function": { "name": "weather", "parameters": { "type": "object", "properties": { "city": { "type": "string" } } } } }])
}

/// Reasons, says something, and calls two tools at once.
fn calls() -> Deed {
    let begin = |index: u32, id: &str| {
        delta(
            json!({ "tool_calls": [{ "index": index, "id": id, "type": "function", "function": { "name": "weather", "arguments": "" } }] }),
        )
    };
    let more = |index: u32, text: &str| delta(json!({ "tool_calls": [{ "index": index, "function": { "arguments": text } }] }));
    stream(&[
        &delta(json!({ "role": "assistant", "content": null, "reasoning_content": "Two ", "tool_calls": [] })),
        &delta(json!({ "reasoning_content": "cities." })),
        &chunk("Let me see."),
        &begin(0, "a"),
        &more(0, "{\"city\":"),
        &begin(1, "b"),
        &more(1, "{}"),
        &more(0, "\"Ulm\"}"),
        &finish("tool_calls"),
        &usage(80, 30),
        DONE,
    ])
}

#[tokio::test]
async fn tools_reach_the_remote_and_its_calls_reach_the_client_streamed_or_not() {
    let remote = BadUpstream::always(calls()).await;
    let front = front(&remote, "");
    let body = asked("remote", json!({ "tools": tools(), "tool_choice": "auto", "parallel_tool_calls": true }));
    let whole = client(&front).post(CHAT, &body).await.json();
    let expected = json!([
        { "id": "a", "type": "function", "function": { "name": "weather", "arguments": "{\"city\":\"Ulm\"}" } },
        { "id": "b", "type": "function", "function": { "name": "weather", "arguments": "{}" } },
    ]);
    let message = &whole["choices"][0]["message"];
    assert_eq!(message["tool_calls"], expected);
    assert_eq!((&message["content"], &message["reasoning_content"]), (&json!("Let me see."), &json!("Two cities.")));
    assert_eq!((&whole["choices"][0]["finish_reason"], &whole["usage"]["completion_tokens"]), (&json!("tool_calls"), &json!(30)));
    let sent = sent(&remote);
    assert_eq!((&sent["tools"], &sent["tool_choice"], &sent["parallel_tool_calls"]), (&tools(), &json!("auto"), &json!(true)));

    let mut streaming = body;
    streaming["stream"] = true.into();
    let chunks = client(&front).stream(CHAT, &streaming).await.chunks().await;
    let deltas = |name: &str| -> Vec<Value> {
        chunks.iter().filter_map(|chunk| chunk["choices"][0]["delta"].get(name)).filter(|value| !value.is_null()).cloned().collect()
    };
    assert_eq!(deltas("role"), ["assistant"], "once, and first");
    assert_eq!(deltas("reasoning_content"), ["Two ", "cities."]);
    let calls = deltas("tool_calls");
    assert_eq!(calls.len(), 5, "each as it came: {calls:?}");
    assert_eq!(calls[4], json!([{ "index": 0, "function": { "arguments": "\"Ulm\"}" } }]));
    assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "tool_calls");
}

#[tokio::test]
async fn an_answer_that_only_calls_tools_has_no_content() {
    let call = json!({ "tool_calls": [{ "index": 0, "id": "a", "type": "function", "function": { "name": "now", "arguments": "{}" } }] });
    let remote = BadUpstream::always(stream(&[&delta(call), &finish("tool_calls"), DONE])).await;
    let answer = client(&front(&remote, "")).post(CHAT, &asked("remote", json!({ "tools": tools() }))).await.json();
    assert_eq!(answer["choices"][0]["message"]["content"], Value::Null);
    assert_eq!(answer["usage"]["completion_tokens"], 1, "nothing was reported: about a token a piece");
}

#[tokio::test]
async fn messages_that_are_more_than_text_reach_the_remote_as_they_were_written() {
    let remote = BadUpstream::always(calls()).await;
    let front = front(&remote, "");
    let messages = json!([
        { "role": "developer", "content": "Be exact." },
        { "role": "user", "content": [{ "type": "text", "text": "Where?" }, { "type": "image_url", "image_url": { "url": format!("data:{}", "x".repeat(400_000)) } }] },
        { "role": "assistant", "content": null, "tool_calls": [{ "id": "a", "type": "function", "function": { "name": "weather", "arguments": "{}" } }] },
        { "role": "tool", "tool_call_id": "a", "content": "7 °C" },
    ]);
    let answer = client(&front).post(CHAT, &asked("remote", json!({ "messages": messages }))).await;
    assert_eq!(answer.status, 200, "an image isn't counted by its bytes: {}", answer.json());
    let mut expected = messages;
    expected[0]["role"] = "system".into();
    assert_eq!(sent(&remote)["messages"], expected);
}

#[tokio::test]
async fn where_only_one_of_a_model_s_replicas_can_do_it_that_one_does() {
    let remote = BadUpstream::always(calls()).await;
    let front = front(&remote, "");
    for _ in 0..8 {
        let answer = client(&front).post(CHAT, &asked("both", json!({ "response_format": { "type": "json_object" } }))).await;
        assert_eq!((answer.status, answer.header("x-roundhouse-backend")), (200, Some("far")));
        let sent = sent(&remote);
        assert_eq!(sent["response_format"], json!({ "type": "json_object" }));
        assert_eq!(sent["messages"][0], json!({ "role": "system", "content": "Be brief." }), "the variant's own message comes along");
    }
}

#[tokio::test]
async fn where_no_replica_can_do_it_the_parameter_is_refused_by_name_before_anything_is_taken() {
    let remote = BadUpstream::always(calls()).await;
    let front = front(&remote, "");
    for (more, param) in [
        (json!({ "tools": tools() }), "tools"),
        (json!({ "messages": [{ "role": "tool", "content": "7", "tool_call_id": "a" }] }), "messages[0].role"),
        (json!({ "guided_json": {} }), "guided_json"),
    ] {
        let refused = client(&front).post(CHAT, &asked("local", more)).await;
        assert_eq!((refused.status, &refused.json()["error"]["param"]), (400, &json!(param)));
        assert_eq!(refused.json()["error"]["code"], "unsupported_parameter");
    }
    let after = client(&front).post(CHAT, &asked("local", json!({ "max_tokens": 1 }))).await;
    let left: u64 = after.header("x-ratelimit-remaining-tokens").unwrap().parse().unwrap();
    assert!(left > 99_900, "{left}");
}

#[tokio::test]
async fn a_parameter_of_one_server_alone_passes_where_that_server_is_said_to_take_it() {
    let remote = BadUpstream::always(calls()).await;
    let guided = asked("remote", json!({ "guided_json": { "type": "object" }, "mirostat": 2 }));
    let strict = front(&remote, "parameters = [\"guided_json\"]");
    let refused = client(&strict).post(CHAT, &guided).await;
    assert_eq!((refused.status, &refused.json()["error"]["param"]), (400, &json!("mirostat")));
    let lenient = start(&remote, "parameters = [\"guided_json\"]", true);
    assert_eq!(client(&lenient).post(CHAT, &guided).await.status, 200);
    let sent = sent(&remote);
    assert_eq!((&sent["guided_json"], sent.get("mirostat")), (&json!({ "type": "object" }), None));
}

#[tokio::test]
async fn a_completion_s_parameters_pass_as_well() {
    let remote = BadUpstream::always(stream(&[
        "data: {\"choices\":[{\"index\":0,\"text\":\"a\",\"finish_reason\":null}]}\n\n",
        "data: {\"choices\":[{\"index\":0,\"text\":\"\",\"finish_reason\":\"stop\"}]}\n\n",
        DONE,
    ]))
    .await;
    let body = json!({ "model": "remote", "prompt": "the hand", "max_tokens": 3, "suffix": "of", "stop_token_ids": [7] });
    let answer = client(&front(&remote, "")).post("/v1/completions", &body).await;
    assert_eq!((answer.status, &answer.json()["choices"][0]["text"]), (200, &json!("a")));
    let sent = sent(&remote);
    assert_eq!((&sent["suffix"], &sent["stop_token_ids"]), (&json!("of"), &json!([7])));
}
