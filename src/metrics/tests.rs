#![expect(clippy::unwrap_used, reason = "a test may stop at a surprise")]

use super::*;
use std::time::Duration;

#[test]
fn a_shard_shows_what_it_holds_and_how_long_it_was_busy() {
    let metrics = Metrics::new();
    let shard = metrics.shard(&"smol-q4".into());
    shard.load(&ShardLoad { running: 3, waiting: 2, blocks_used: 10, blocks_cached: 4, blocks_free: 50, preemptions: 1 });
    shard.step(64, Duration::from_millis(250));
    shard.step(1, Duration::from_millis(250));
    shard.queued(Duration::from_millis(3));
    let page = metrics.render();
    for line in [
        "roundhouse_running_sequences{shard=\"smol-q4\"} 3",
        "roundhouse_waiting_sequences{shard=\"smol-q4\"} 2",
        "roundhouse_kv_blocks{shard=\"smol-q4\",state=\"used\"} 10",
        "roundhouse_kv_blocks{shard=\"smol-q4\",state=\"free\"} 50",
        "roundhouse_preemptions_total{shard=\"smol-q4\"} 1",
        "roundhouse_step_seconds_count{shard=\"smol-q4\"} 2",
        "roundhouse_batch_tokens_bucket{shard=\"smol-q4\",le=\"1\"} 1",
        "# TYPE roundhouse_device_busy_seconds_total counter",
        "roundhouse_device_busy_seconds_total{shard=\"smol-q4\"} 0.5",
    ] {
        assert!(page.lines().any(|found| found == line), "{line} isn't in\n{page}");
    }
}

#[test]
fn a_shard_is_asked_for_its_state_when_the_metrics_are_read() {
    let metrics = Metrics::new();
    let state = Arc::new(Mutex::new("ready"));
    let asked = Arc::downgrade(&state);
    metrics.shard_state(&"smol-q4".into(), move || Some(*asked.upgrade()?.lock().unwrap()));
    assert!(metrics.render().contains("roundhouse_shard_state{shard=\"smol-q4\",state=\"ready\"} 1\n"));
    *state.lock().unwrap() = "stuck";
    assert!(metrics.render().contains("roundhouse_shard_state{shard=\"smol-q4\",state=\"stuck\"} 1\n"));
    drop(state);
    assert!(!metrics.render().contains("roundhouse_shard_state"));
}

#[test]
fn costs_are_shown_in_units_of_their_currency() {
    let metrics = Metrics::new();
    let cost = metrics.cost(&"ac\"me".into(), &"EUR".into());
    cost.add(1_500_000_000);
    metrics.cost(&"ac\"me".into(), &"EUR".into()).add(50);
    let line = "roundhouse_cost_total{tenant=\"ac\\\"me\",currency=\"EUR\"} 1.50000005";
    assert!(metrics.render().lines().any(|found| found == line), "{}", metrics.render());
}

#[test]
fn two_servers_in_one_process_count_for_themselves() {
    let (one, other) = (Metrics::new(), Metrics::new());
    one.count_request(Served::default(), 200);
    assert!(one.render().contains("roundhouse_requests_total"));
    assert!(!other.render().contains("roundhouse_requests_total{"));
}

#[test]
fn a_request_that_was_refused_early_is_counted_as_unknown() {
    let metrics = Metrics::new();
    metrics.count_request(Served::default(), 401);
    metrics.count_request(Served { tenant: Some("acme".into()), ..Served::default() }, 404);
    let page = metrics.render();
    assert!(page.contains("{tenant=\"unknown\",model=\"unknown\",variant=\"unknown\",backend=\"unknown\",status=\"401\"} 1"), "{page}");
    assert!(page.contains("{tenant=\"acme\",model=\"unknown\",variant=\"unknown\",backend=\"unknown\",status=\"404\"} 1"), "{page}");
}

#[test]
fn tokens_are_counted_by_kind() {
    let metrics = Metrics::new();
    let tokens = metrics.tokens(&"acme".into(), &"smol".into());
    tokens.prompt.increment(12);
    tokens.cached.increment(8);
    metrics.tokens(&"acme".into(), &"smol".into()).completion.increment(5);
    let page = metrics.render();
    for (kind, count) in [("prompt", 12), ("cached", 8), ("completion", 5)] {
        let line = format!("roundhouse_tokens_total{{tenant=\"acme\",model=\"smol\",kind=\"{kind}\"}} {count}");
        assert!(page.contains(&line), "{line} isn't in\n{page}");
    }
    let help = page.lines().find(|line| line.starts_with("# HELP roundhouse_tokens_total")).unwrap();
    assert!(help.contains("Tokens by kind"));
}
