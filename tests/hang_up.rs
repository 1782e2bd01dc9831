//! A client that hangs up leaves the batch within one engine step, streaming or not.

mod support;

use serde_json::{Value, json};
use std::time::Duration;
use support::client::Client;
use support::fake::Stepping;
use support::server::{KEY, Server};

fn request(stream: bool) -> Value {
    json!({ "model": "default", "messages": [{ "role": "user", "content": "hello" }], "max_tokens": 500, "stream": stream })
}

/// Waits until the server has noticed that the request is over: its record is written when the body is dropped.
async fn request_is_recorded(server: &Server) {
    let admin = Client::new(server.admin_address(), None);
    loop {
        let metrics = admin.get("/metrics").await;
        if String::from_utf8_lossy(&metrics.body).contains("roundhouse_requests_total{") {
            return;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

async fn shard_is_idle_with_all_blocks_free(server: &Server) {
    let shard = server.shards().next().expect("there is a shard");
    while shard.sequences() != (0, 0) {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let (unused, all) = shard.blocks();
    assert_eq!(unused, all, "all blocks have come back");
}

#[tokio::test]
async fn a_streaming_client_that_hangs_up_is_in_no_step_planned_afterwards() {
    let stepping = Stepping::start();
    let client = Client::new(stepping.server.address(), Some(KEY));
    stepping.let_run(3);
    let mut stream = client.stream("/v1/chat/completions", &request(true)).await;
    stream.next().await.expect("it has begun");
    while stepping.planned() < 4 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    drop(stream);
    request_is_recorded(&stepping.server).await;
    // The fourth step waits on the device; it is the one that the hang-up may still cost.
    let (server, plans) = stepping.open();
    shard_is_idle_with_all_blocks_free(&server).await;
    assert_eq!(plans.lock().expect("nothing panicked").len(), 4);
}

#[tokio::test]
async fn a_waiting_client_that_hangs_up_before_the_first_byte_is_in_no_step_planned_afterwards() {
    let stepping = Stepping::start();
    let client = Client::new(stepping.server.address(), Some(KEY));
    stepping.let_run(3);
    let waiting = tokio::spawn(async move { client.post("/v1/chat/completions", &request(false)).await });
    while stepping.planned() < 4 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    waiting.abort();
    request_is_recorded(&stepping.server).await;
    let (server, plans) = stepping.open();
    shard_is_idle_with_all_blocks_free(&server).await;
    assert_eq!(plans.lock().expect("nothing panicked").len(), 4);
}
