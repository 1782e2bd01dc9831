//! Several replicas on one Redis and one Postgres: limits and quotas hold for all of them together, whoever of them dies
//! and whatever is lost between them.

mod support;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use roundhouse::config::{Limit, LimitStore, Limits, Secret, Tenant};
use serde_json::json;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Instant;
use support::client::{Answer, Client};
use support::fake::Stepping;
use support::process::Process;
use support::server::{self, KEY};
use support::services::{Postgres, Redis};
use support::spenders::{Counted, until_spent};
use support::tenants::{Place, query};

const QUOTA: i64 = 10_000;
const CLIENTS: usize = 200;

/// Two servers of one place, each a process of its own.
fn two(place: &Place) -> [Process; 2] {
    std::thread::scope(|scope| {
        let one = scope.spawn(|| Process::start(place));
        let two = Process::start(place);
        [one.join().expect("it starts"), two]
    })
}

fn clients(processes: &[Process]) -> Vec<Client> {
    processes.iter().map(|process| Client::new(process.address, Some(KEY))).collect()
}

fn tenant(terms: &str) -> String {
    format!("[tenants.acme]\n{terms}\nkeys = [{{ name = \"ci\", hash = \"KEY_HASH\" }}]\n")
}

fn store(redis: Option<&Redis>, postgres: Option<&Postgres>, more: &str) -> String {
    let ledger = postgres.map_or_else(|| "off".to_owned(), Postgres::url);
    let limits = redis.map_or_else(|| "local".to_owned(), Redis::url);
    format!("ledger = \"{ledger}\"\nlimits = \"{limits}\"\n{more}")
}

async fn ask(client: &Client, max_tokens: u32) -> Answer {
    client.post("/v1/completions", &json!({ "model": "tiny", "prompt": "a", "max_tokens": max_tokens })).await
}

fn code(answer: &Answer) -> String {
    answer.json()["error"]["code"].as_str().unwrap_or_default().to_owned()
}

#[tokio::test]
async fn clients_of_two_processes_use_up_one_quota_and_never_pass_it() {
    let (redis, postgres) = (Redis::start(), Postgres::start());
    let runs = if support::long() { 20 } else { 1 };
    let mut before = [0; 3];
    for run in 0..runs {
        // A quota that is larger by what the runs before used, so that each run has the same left.
        let quota = QUOTA + before[0] + before[1];
        let place = Place::with(
            &store(Some(&redis), Some(&postgres), "replicas = 2"),
            &tenant(&format!("quota = [{{ tokens = {quota}, per = \"month\" }}]")),
        );
        let processes = two(&place);
        let (clients, counted) = (clients(&processes), Arc::new(Counted::default()));
        let tasks: Vec<_> = (0..CLIENTS).map(|number| tokio::spawn(until_spent(clients.clone(), number, counted.clone()))).collect();
        for task in tasks {
            task.await.expect("a client ends");
        }
        let [prompt, output, answered] = counted.sums();
        assert!(prompt + output <= QUOTA, "run {run}: {prompt} + {output}");
        assert!((prompt + output) * 100 >= QUOTA * 95, "run {run}: only {prompt} + {output} of {QUOTA}");
        let sums = [
            "SELECT CAST(SUM(prompt) AS BIGINT) FROM requests",
            "SELECT CAST(SUM(output) AS BIGINT) FROM requests",
            "SELECT COUNT(*) FROM requests",
        ];
        let now = sums.map(|sum| query(&postgres.url(), sum));
        assert_eq!([0, 1, 2].map(|index| now[index] - before[index]), [prompt, output, answered], "run {run}");
        assert_eq!(query(&postgres.url(), "SELECT COUNT(DISTINCT replica) FROM requests"), 2 * (run + 1), "both replicas served");
        before = now;
    }
}

#[tokio::test]
async fn requests_per_minute_are_counted_for_two_processes_together() {
    let redis = Redis::start();
    let place = Place::with(&store(Some(&redis), None, "replicas = 2"), &tenant("limits = { requests_per_minute = 4 }"));
    let processes = two(&place);
    let clients = clients(&processes);
    let began = Instant::now();
    let asking = (0..20).map(|number| {
        let client = clients[number % 2].clone();
        tokio::spawn(async move { ask(&client, 5).await })
    });
    let mut passed = 0;
    for answer in asking.collect::<Vec<_>>() {
        let answer = answer.await.expect("a client ends");
        assert!(answer.status == 200 || code(&answer) == "rate_limit_exceeded", "{answer:?}");
        assert_eq!(answer.header("x-ratelimit-limit-requests"), Some("4"));
        passed += u64::from(answer.status == 200);
    }
    // One comes back every quarter of a minute.
    assert!((4..=4 + began.elapsed().as_secs() / 15).contains(&passed), "{passed} of 20");
}

#[tokio::test]
async fn requests_at_once_are_counted_for_two_servers_together() {
    let redis = Redis::start();
    let start = || {
        let mut config = server::config();
        config.store.limits = LimitStore::Redis(Secret::new(redis.url()));
        config.store.replicas = NonZeroU32::new(1);
        let limits = Limits { all: Limit { concurrent: Some(3), ..Limit::default() }, ..Limits::default() };
        let acme = &config.tenants["acme"];
        config.tenants.insert("acme".into(), Arc::new(Tenant { limits, ..Tenant::clone(acme) }));
        Stepping::with(config)
    };
    let (one, two) = (start(), start());
    let [first, second] = [&one, &two].map(|stepping| Client::new(stepping.server.address(), Some(KEY)));
    let mut asking: FuturesUnordered<_> = (0..10)
        .map(|number| {
            let client = if number % 2 == 0 { first.clone() } else { second.clone() };
            let body = json!({ "model": "default", "prompt": "a", "max_tokens": 2 });
            tokio::spawn(async move { client.post("/v1/completions", &body).await })
        })
        .collect();
    // No engine steps yet, so whoever was let in stays in.
    for _ in 0..7 {
        let refused = asking.next().await.expect("ten were sent").expect("a client ends");
        assert_eq!((refused.status, &refused.json()["error"]["type"]), (429, &json!("concurrency")), "{refused:?}");
    }
    let servers = [one.open().0, two.open().0];
    while let Some(answer) = asking.next().await {
        assert_eq!(answer.expect("a client ends").status, 200, "three at once");
    }
    for server in servers {
        tokio::task::spawn_blocking(|| server.stop()).await.expect("the server stops");
    }
}

/// How requests fare while Redis is away, and that all is well before and after.
async fn redis_away(on_store_loss: &str, terms: &str, while_away: impl AsyncFn(&Client)) {
    let mut redis = Redis::start();
    let more = format!("replicas = 2\non_store_loss = \"{on_store_loss}\"");
    let place = Place::with(&store(Some(&redis), None, &more), &tenant(terms));
    let processes = two(&place);
    let clients = clients(&processes);
    for client in &clients {
        assert_eq!(ask(client, 5).await.status, 200);
    }
    redis.stop();
    while !metrics(&processes[0]).await.contains("roundhouse_store_lost{store=\"limits\"} 1") {
        tokio::task::yield_now().await;
    }
    while_away(&clients[0]).await;
    redis.start_again();
    for (client, process) in clients.iter().zip(&processes) {
        while !metrics(process).await.contains("roundhouse_store_lost{store=\"limits\"} 0") {
            tokio::task::yield_now().await;
        }
        assert_eq!(ask(client, 5).await.status, 200, "it recovered by itself");
    }
}

async fn metrics(process: &Process) -> String {
    let page = Client::new(process.admin, None).get("/metrics").await;
    String::from_utf8(page.body.to_vec()).expect("metrics are text")
}

#[tokio::test]
async fn while_redis_is_away_requests_are_refused_where_the_configuration_says_deny() {
    redis_away("deny", "limits = { requests_per_minute = 1000 }", async |client| {
        for _ in 0..3 {
            let refused = ask(client, 5).await;
            assert_eq!((refused.status, refused.json()["error"]["type"].as_str()), (503, Some("server_error")), "{refused:?}");
            assert!(refused.header("retry-after").is_some());
        }
    })
    .await;
}

#[tokio::test]
async fn while_redis_is_away_requests_pass_where_the_configuration_says_allow() {
    redis_away("allow", "limits = { requests_per_minute = 6 }", async |client| {
        for _ in 0..10 {
            assert_eq!(ask(client, 5).await.status, 200);
        }
    })
    .await;
}

#[tokio::test]
async fn while_redis_is_away_each_process_has_its_share_where_the_configuration_says_local() {
    redis_away("local", "limits = { requests_per_minute = 6 }", async |client| {
        let mut statuses = Vec::new();
        for _ in 0..4 {
            statuses.push(ask(client, 5).await.status);
        }
        assert_eq!(statuses, [200, 200, 200, 429], "a half of six");
    })
    .await;
}

/// Streams that are cut when a process is killed under load; then others use up the quota.
async fn killed(redis: Option<&Redis>, survivor_is_there: bool) {
    let postgres = Postgres::start();
    let quota = 6_000;
    let more = if redis.is_some() { "replicas = 2" } else { "" };
    let place = Place::with(&store(redis, Some(&postgres), more), &tenant(&format!("quota = [{{ tokens = {quota}, per = \"month\" }}]")));
    let (mut victim, survivor) = if survivor_is_there {
        let [victim, survivor] = two(&place);
        (victim, Some(survivor))
    } else {
        (Process::start(&place), None)
    };
    let client = Client::new(victim.address, Some(KEY));
    let streams: Vec<_> = (0..8)
        .map(|seed| {
            let client = client.clone();
            tokio::spawn(async move {
                let body = json!({ "model": "tiny", "prompt": "a", "max_tokens": 240, "stream": true, "seed": seed });
                let mut answer = client.stream("/v1/completions", &body).await;
                // Three pieces are journaled a while after they came; whether they are, the moment of the kill decides.
                for _ in 0..3 {
                    answer.next().await;
                }
                answer
            })
        })
        .collect();
    let mut cut = Vec::new();
    for stream in streams {
        cut.push(stream.await.expect("a client ends"));
    }
    // Once progress is journaled, the dead leave something behind that has to be counted.
    while query(&postgres.url(), "SELECT COUNT(*) FROM in_flight") + query(&postgres.url(), "SELECT COUNT(*) FROM requests") == 0 {
        tokio::task::yield_now().await;
    }
    victim.kill();
    let survivor = survivor.unwrap_or_else(|| Process::start(&place));
    let counted = Arc::new(Counted::default());
    let tasks: Vec<_> =
        (0..20).map(|number| tokio::spawn(until_spent(clients(std::slice::from_ref(&survivor)), number, counted.clone()))).collect();
    for task in tasks {
        task.await.expect("what the dead one held came back, so that the quota could be spent");
    }
    let (url, sum) = (postgres.url(), "SELECT CAST(SUM(prompt + output) AS BIGINT) FROM requests");
    let used = query(&url, sum);
    assert!(used <= quota && used * 100 >= quota * 95, "{used} of {quota}");
    assert_eq!(query(&url, "SELECT COUNT(*) FROM in_flight"), 0, "no reservation is left");
}

#[tokio::test]
async fn what_a_killed_replica_held_comes_back_and_what_it_used_stays_used() {
    killed(Some(&Redis::start()), true).await;
}

#[tokio::test]
async fn a_replica_killed_and_started_at_once_finds_its_quota_as_the_shared_ledger_has_it() {
    killed(Some(&Redis::start()), false).await;
}

#[tokio::test]
async fn a_process_killed_and_started_at_once_finds_its_quota_as_postgres_has_it() {
    killed(None, false).await;
}
