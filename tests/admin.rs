//! The operators' port.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use http::Request;
use http_body_util::Full;
use roundhouse::admin::{Admin, ConfigStatus, Control, Deed, Reloaded, Status};
use roundhouse::backend::State;
use roundhouse::call::Error;
use roundhouse::config::{Config, Ledger, Name, Secret};
use roundhouse::gateway::listener::bind;
use roundhouse::metrics::{Metrics, Served};
use roundhouse::route::Experiments;
use roundhouse::tenant::{Accounts, Credentials, Keys};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use support::edge::{Answer, connect};

/// A server without anything behind it.
struct Nothing(Arc<Config>, Arc<Keys>);

impl Control for Nothing {
    fn config(&self) -> Arc<Config> {
        self.0.clone()
    }

    fn status(&self) -> Status {
        Status {
            version: "1",
            uptime_seconds: 0,
            draining: false,
            config: ConfigStatus { version: 1, since: 0, file: None },
            upstreams: BTreeMap::new(),
            shards: BTreeMap::new(),
            loading: BTreeMap::new(),
            models: BTreeMap::new(),
            tenants: BTreeMap::new(),
        }
    }

    fn accounts(&self) -> Arc<Accounts> {
        let store = roundhouse::config::Store { ledger: roundhouse::config::Ledger::Off, ..Default::default() };
        Arc::new(Accounts::open(&store, roundhouse::clock::Clock::system(), &roundhouse::metrics::Metrics::new()).unwrap())
    }

    fn keys(&self) -> Arc<Keys> {
        self.1.clone()
    }

    fn experiments(&self) -> Arc<Experiments> {
        Arc::new(Experiments::new(Metrics::new(), roundhouse::clock::Clock::system()))
    }

    fn reload(&self) -> Result<Reloaded, String> {
        Err("line 3 is wrong".to_owned())
    }

    fn shard(&self, shard: &Name, _: Deed) -> Result<State, Error> {
        Err(Error::ShardNotFound { shard: shard.to_string(), known: "`a`".to_owned() })
    }
}

fn start(token: Option<&str>) -> Admin {
    let metrics = Metrics::new();
    metrics.count_request(Served::default(), 200);
    let socket = bind(SocketAddr::from(([127, 0, 0, 1], 0)), 1).unwrap().pop().unwrap();
    let mut config = Config::default();
    config.admin.token = token.map(|token| Secret::new(token.to_owned()));
    config.store.ledger = Ledger::Off;
    let config = Arc::new(config);
    let keys = Keys::new(config.clone(), &Credentials::open(&config.store, roundhouse::clock::Clock::system()).unwrap());
    Admin::open(socket, None, metrics, Arc::new(Nothing(config, Arc::new(keys)))).unwrap()
}

async fn ask(admin: &Admin, method: &str, path: &str, token: Option<&str>) -> Answer {
    let request = Request::builder().method(method).uri(path).header("host", "test");
    let request = match token {
        Some(token) => request.header("authorization", format!("Bearer {token}")),
        None => request,
    };
    let mut client = connect(admin.address()).await;
    Answer::read(client.sender.send_request(request.body(Full::default()).unwrap()).await.unwrap()).await
}

#[tokio::test]
async fn metrics_are_shown_in_prometheus_text() {
    let admin = start(None);
    let answer = ask(&admin, "GET", "/metrics", None).await;
    assert_eq!(answer.status, 200);
    assert!(answer.header("content-type").unwrap().starts_with("text/plain; version=0.0.4"));
    assert!(std::str::from_utf8(&answer.body).unwrap().contains("roundhouse_requests_total{"));
    assert_eq!(ask(&admin, "HEAD", "/metrics", None).await.body.len(), 0);
    tokio::task::spawn_blocking(move || admin.close()).await.unwrap();
}

#[tokio::test]
async fn where_there_is_a_token_only_its_holder_sees_and_does_anything() {
    let admin = start(Some("the-token"));
    for wrong in [None, Some(""), Some("the-toke"), Some("the-tokens")] {
        for (method, path) in [("GET", "/metrics"), ("GET", "/admin/v1/status"), ("POST", "/admin/v1/reload")] {
            assert_eq!(ask(&admin, method, path, wrong).await.error().0, 401, "{path} {wrong:?}");
        }
    }
    assert_eq!(ask(&admin, "GET", "/metrics", Some("the-token")).await.status, 200);
    assert_eq!(ask(&admin, "GET", "/health", None).await.status, 200);
}

#[tokio::test]
async fn unknown_paths_and_wrong_methods_are_refused_in_the_error_shape() {
    let admin = start(None);
    assert_eq!(ask(&admin, "GET", "/v1/models", None).await.error().2, "unknown_url");
    let answer = ask(&admin, "POST", "/metrics", None).await;
    assert_eq!((answer.error().0, answer.header("allow")), (405, Some("GET, HEAD")));
}

#[tokio::test]
async fn a_refused_reload_says_why() {
    let admin = start(None);
    let answer = ask(&admin, "POST", "/admin/v1/reload", None).await;
    assert_eq!(answer.error().0, 400);
    assert_eq!(answer.json()["error"]["message"], "line 3 is wrong");
    assert_eq!(ask(&admin, "GET", "/admin/v1/reload", None).await.header("allow"), Some("POST"));
    assert_eq!(ask(&admin, "GET", "/admin/v1/status", None).await.json()["config"]["version"], 1);
}
