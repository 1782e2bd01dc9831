//! What every parameter does to an answer, on the real server with a tiny model.

mod support;

use roundhouse::config::Environment;
use roundhouse::roundhouse::Models;
use serde_json::{Value, json};
use support::client::Client;
use support::server::{self, KEY, Server};
use support::tenants::Place;
use support::{Silent, tiny_model};

const TENANT: &str = "[tenants.acme]\nkeys = [{ name = \"ci\", hash = \"KEY_HASH\" }]\n";
const COMPLETIONS: &str = "/v1/completions";
const CHAT: &str = "/v1/chat/completions";

fn start() -> (Place, Server) {
    let place = Place::new(TENANT);
    let server = place.start();
    (place, server)
}

/// `body` with the fields of `extra`.
fn with(mut body: Value, extra: &Value) -> Value {
    body.as_object_mut().expect("an object").extend(extra.as_object().expect("an object").clone());
    body
}

async fn complete(server: &Server, extra: Value) -> Value {
    let body = json!({ "model": "tiny", "prompt": "the hand", "temperature": 0, "max_tokens": 12, "return_token_ids": true });
    let body = with(body, &extra);
    let answer = Client::new(server.address(), Some(KEY)).post(COMPLETIONS, &body).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()
}

fn ids(answer: &Value) -> Vec<u64> {
    let ids = answer["choices"][0]["token_ids"].as_array().unwrap_or_else(|| panic!("no ids: {answer}"));
    ids.iter().map(|id| id.as_u64().expect("an id")).collect()
}

#[tokio::test]
async fn a_bias_bans_or_forces_a_token_and_goes_by_the_vocabulary() {
    let (_place, server) = start();
    let plain = ids(&complete(&server, json!({})).await);
    let first = plain[0].to_string();
    let banned = ids(&complete(&server, json!({ "logit_bias": { &first: -100 } })).await);
    assert!(!banned.contains(&plain[0]), "{banned:?}");
    let forced = ids(&complete(&server, json!({ "logit_bias": { "42": 100 } })).await);
    assert_eq!(forced, [42; 12]);
    let body = json!({ "model": "tiny", "prompt": "a", "logit_bias": { "1000000": 1 } });
    let refused = Client::new(server.address(), Some(KEY)).post(COMPLETIONS, &body).await;
    assert_eq!((refused.status, &refused.json()["error"]["param"]), (400, &json!("logit_bias.1000000")));
}

#[tokio::test]
async fn penalties_count_the_sequence_itself_and_are_not_ignored() {
    let (_place, server) = start();
    // A forced token wins until its penalty outgrows the bias.
    let biased = |extra: Value| with(json!({ "logit_bias": { "42": 50, "43": 48 } }), &extra);
    assert_eq!(ids(&complete(&server, biased(json!({}))).await), [42; 12]);
    let present = ids(&complete(&server, biased(json!({ "presence_penalty": 2 }))).await);
    assert!(present.starts_with(&[42]) && present.contains(&43), "{present:?}");
    let frequent = ids(&complete(&server, biased(json!({ "frequency_penalty": 2 }))).await);
    let count = |id| frequent.iter().filter(|other| **other == id).count();
    assert!(count(42) >= 6 && count(43) >= 4, "they take turns: {frequent:?}");
    let repeated = ids(&complete(&server, biased(json!({ "repetition_penalty": 2 }))).await);
    assert!(repeated.starts_with(&[42, 43]), "{repeated:?}");
    // The prompt counts for repetition only.
    let short = json!({ "prompt": [[42, 1, 2, 3]], "max_tokens": 1, "presence_penalty": 2 });
    let first = |extra: Value| complete(&server, with(biased(short.clone()), &extra));
    assert_eq!(ids(&first(json!({})).await), [42]);
    assert_eq!(ids(&first(json!({ "repetition_penalty": 2 })).await), [43]);
}

#[tokio::test]
async fn top_k_of_one_is_greedy_and_so_is_min_p_of_one() {
    let (_place, server) = start();
    let greedy = ids(&complete(&server, json!({})).await);
    for narrow in [json!({ "temperature": 2, "top_k": 1 }), json!({ "temperature": 2, "min_p": 1 })] {
        assert_eq!(ids(&complete(&server, narrow).await), greedy);
    }
    let wide = ids(&complete(&server, json!({ "temperature": 2, "top_k": -1, "min_p": 0, "seed": 3 })).await);
    assert_ne!(wide, greedy);
}

#[tokio::test]
async fn stop_tokens_are_ignored_or_put_off_where_that_is_asked_for() {
    let (_place, server) = start();
    let stop = u64::from(tiny_model::STOP_TOKEN);
    let ended = complete(&server, json!({ "logit_bias": { stop.to_string(): 100 } })).await;
    assert_eq!((ids(&ended).len(), &ended["choices"][0]["finish_reason"]), (0, &json!("stop")));
    let put_off = complete(&server, json!({ "logit_bias": { stop.to_string(): 100 }, "min_tokens": 5 })).await;
    assert_eq!((ids(&put_off).len(), &put_off["choices"][0]["finish_reason"]), (5, &json!("stop")));
    let ignored = complete(&server, json!({ "logit_bias": { stop.to_string(): 100 }, "ignore_eos": true })).await;
    assert_eq!((ids(&ignored), &ignored["choices"][0]["finish_reason"]), (vec![stop; 12], &json!("length")));
    // Stop texts wait as well.
    let unstopped = complete(&server, json!({ "logit_bias": { "42": 100 } })).await;
    let one = &unstopped["choices"][0]["text"].as_str().expect("text")[..1];
    let stopped = complete(&server, json!({ "logit_bias": { "42": 100 }, "stop": one, "min_tokens": 3 })).await;
    assert_eq!(stopped["choices"][0]["text"], json!(one.repeat(3)), "{stopped}");
}

#[tokio::test]
async fn log_probabilities_are_the_models_own_and_greedy_draws_have_the_highest() {
    let (_place, server) = start();
    let answer = complete(&server, json!({ "logprobs": 3 })).await;
    let logprobs = &answer["choices"][0]["logprobs"];
    let of = |key: &str| logprobs[key].as_array().unwrap_or_else(|| panic!("{logprobs}")).clone();
    assert_eq!(of("tokens").len(), ids(&answer).len());
    for (logprob, top) in of("token_logprobs").iter().zip(of("top_logprobs")) {
        let likeliest = top.as_object().expect("an object").values().filter_map(Value::as_f64).fold(f64::NEG_INFINITY, f64::max);
        assert!(logprob.as_f64().is_some_and(|logprob| logprob <= 0.0 && logprob == likeliest), "{logprob} {top}");
    }
    // Whatever shapes a draw doesn't change what the model said.
    let forced = complete(&server, json!({ "logprobs": 0, "logit_bias": { "42": 100 }, "max_tokens": 1 })).await;
    let forced = forced["choices"][0]["logprobs"]["token_logprobs"][0].as_f64().expect("a number");
    assert!(forced < of("token_logprobs")[0].as_f64().expect("a number"), "{forced}");
    let chat = json!({ "model": "tiny", "messages": [{ "role": "user", "content": "the hand" }], "temperature": 0, "max_tokens": 6,
        "logprobs": true, "top_logprobs": 20, "stream": true });
    let chunks = Client::new(server.address(), Some(KEY)).stream(CHAT, &chat).await.chunks().await;
    let streamed: Vec<&Value> = chunks.iter().filter_map(|chunk| chunk["choices"][0]["logprobs"]["content"].as_array()).flatten().collect();
    assert_eq!(streamed.len(), 6);
    assert!(streamed.iter().all(|token| token["top_logprobs"].as_array().is_some_and(|top| top.len() == 20)), "{streamed:?}");
}

#[tokio::test]
async fn an_echo_gives_the_prompt_back_with_its_log_probabilities_and_max_tokens_0_gives_nothing_else() {
    let (_place, server) = start();
    let echoed = complete(&server, json!({ "echo": true, "logprobs": 2 })).await;
    let choice = &echoed["choices"][0];
    assert!(choice["text"].as_str().is_some_and(|text| text.starts_with("the hand")), "{choice}");
    let prompt_tokens = echoed["usage"]["prompt_tokens"].as_u64().expect("a number") as usize;
    let known = choice["logprobs"]["token_logprobs"].as_array().expect("a list").clone();
    assert_eq!(known.len(), prompt_tokens + 12);
    assert!(known[0].is_null() && known[1..].iter().all(|logprob| logprob.as_f64() <= Some(0.0)), "{known:?}");
    let only = complete(&server, json!({ "echo": true, "logprobs": 2, "max_tokens": 0 })).await;
    assert_eq!((&only["choices"][0]["text"], &only["choices"][0]["finish_reason"]), (&json!("the hand"), &json!("length")));
    assert_eq!(only["choices"][0]["logprobs"]["token_logprobs"], json!(known[..prompt_tokens]));
    assert_eq!((&only["usage"]["completion_tokens"], &only["usage"]["prompt_tokens"]), (&json!(0), &json!(prompt_tokens)));
    let plain = complete(&server, json!({ "echo": true, "max_tokens": 0, "n": 2 })).await;
    assert_eq!((&plain["choices"][1]["text"], &plain["choices"][1]["logprobs"]), (&json!("the hand"), &Value::Null));
}

#[tokio::test]
async fn prompt_log_probabilities_are_not_shorter_on_a_cache_hit() {
    let (_place, server) = start();
    let prompt = "the hand and the other hand ".repeat(4);
    let ask = || complete(&server, json!({ "prompt": prompt, "echo": true, "logprobs": 1, "max_tokens": 1 }));
    // An answer without them fills the cache.
    let filled = complete(&server, json!({ "prompt": prompt, "max_tokens": 1 })).await;
    let again = complete(&server, json!({ "prompt": prompt, "max_tokens": 1 })).await;
    assert!(again["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64() > Some(0), "{filled}");
    let (first, second) = (ask().await, ask().await);
    assert_eq!(first["choices"][0]["logprobs"], second["choices"][0]["logprobs"]);
    let tokens = first["usage"]["prompt_tokens"].as_u64().expect("a number") as usize + 1;
    assert_eq!(first["choices"][0]["logprobs"]["tokens"].as_array().map(Vec::len), Some(tokens));
    assert_eq!(second["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
}

#[tokio::test]
async fn prompt_log_probabilities_do_not_depend_on_how_the_prompt_was_chunked() {
    let place = Place::new(TENANT);
    let mut whole = None;
    for chunk in [512, 8] {
        let text = place.text().replace("kv_cache =", &format!("max_batch_tokens = {chunk}\nkv_cache ="));
        let config = roundhouse::config::Config::parse(&text.replace("ledger.db", &format!("{chunk}.db")), &place.file()).expect("valid");
        let models = Models::new(&config, &Environment::from_process(), &Silent).expect("the device opens");
        let server = server::with(config, models);
        let prompt = "the hand and the other hand ".repeat(3);
        let answer = complete(&server, json!({ "prompt": prompt, "echo": true, "logprobs": 2, "max_tokens": 0 })).await;
        let logprobs = answer["choices"][0]["logprobs"].clone();
        assert_eq!(*whole.get_or_insert_with(|| logprobs.clone()), logprobs, "in chunks of {chunk}");
    }
}

#[tokio::test]
async fn n_choices_of_one_seed_differ_and_none_is_lost() {
    let (_place, server) = start();
    let answer = complete(&server, json!({ "n": 8, "temperature": 1.5, "seed": 5, "presence_penalty": 0.5 })).await;
    let choices = answer["choices"].as_array().expect("a list");
    let texts: std::collections::BTreeSet<String> = choices.iter().map(|choice| choice["token_ids"].to_string()).collect();
    assert_eq!((choices.len(), texts.len()), (8, 8));
    let again = complete(&server, json!({ "n": 8, "temperature": 1.5, "seed": 5, "presence_penalty": 0.5 })).await;
    assert_eq!(again["choices"], answer["choices"]);
}
