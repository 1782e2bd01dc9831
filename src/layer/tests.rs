#![expect(clippy::unwrap_used, reason = "a test may stop at a surprise")]

use super::*;
use crate::call::{Call, Error, Event, Finish, Outcome, Peer, Prompt, Reply, Sampling, Task, Usage};
use crate::clock::Clock;
use crate::config::{Amount, Config, Key, Ledger, Limit as Most, Limits, Model, Per, Quota, Store, Tenant, Zone};
use crate::metrics::Metrics;
use crate::tenant::{Accounts, Credentials, Keys};
use futures_util::stream::iter;
use http::{Request, Response};
use http_body_util::{BodyExt, Empty, Full};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;
use tower::{Layer, Service, service_fn};

mod overload;

const SECRET: &str = "rh_0123456789012345678901234567890123456789012";

fn tenant(limit: Option<u32>) -> Arc<Tenant> {
    let key = Key::new("ci".into(), blake3::hash(SECRET.as_bytes()).into());
    let limits = Limits { all: Most { requests_per_minute: limit, ..Most::default() }, ..Limits::default() };
    Arc::new(Tenant { limits, keys: vec![key], ..Tenant::new("acme".into()) })
}

fn incoming<B: Default>(headers: &[(&str, &str)]) -> Incoming<B> {
    let mut http = Request::new(B::default());
    for (name, value) in headers {
        http.headers_mut().append(http::HeaderName::from_bytes(name.as_bytes()).unwrap(), value.parse().unwrap());
    }
    let record = trace::record(http.headers(), &Clock::system(), 1);
    Incoming { http, peer: Peer::from(std::net::SocketAddr::from(([127, 0, 0, 1], 1))), record, holder: None }
}

fn call(tenant: Arc<Tenant>, clock: &Clock) -> Call {
    let record = trace::record(&http::HeaderMap::new(), clock, 1);
    {
        let mut notes = record.lock();
        notes.model = Some("smol".into());
        notes.variant = Some("only".into());
        notes.backend = Some("b0".into());
    }
    let model = Model {
        name: "smol".into(),
        aliases: Vec::new(),
        default_max_tokens: NonZeroU32::MIN,
        prices: None,
        request_timeout: None,
        tokenizer: None,
        variants: BTreeMap::new(),
        rules: Vec::new(),
    };
    let prompt = Prompt::new([1, 2, 3], crate::call::Digest([0; 16]));
    let sampling = Sampling { max_tokens: 9, ..Sampling::default() };
    Call {
        record,
        key: Arc::new(tenant.keys[0].clone()),
        class: tenant.class,
        tenant,
        model: Arc::new(model),
        task: Task::Generate,
        asked: Arc::default(),
        messages: Arc::default(),
        prompts: [prompt].into(),
        sampling: Arc::new(sampling),
        route: None,
        deadline: None,
        first_by: None,
    }
}

/// Accounts without a ledger.
fn accounts(clock: &Clock) -> Arc<Accounts> {
    let store = Store { ledger: Ledger::Off, ..Store::default() };
    Arc::new(Accounts::open(&store, clock.clone(), &Metrics::new()).unwrap())
}

fn pieces(ids: &[usize]) -> Vec<Result<Event, Error>> {
    ids.iter().map(|count| Ok(Event::Text { choice: 0, text: "x".into(), ids: vec![7; *count], logprobs: Vec::new() })).collect()
}

async fn authenticated(headers: &[(&str, &str)]) -> Result<Incoming<()>, Error> {
    let store = Store { ledger: Ledger::Off, ..Store::default() };
    let credentials = Credentials::open(&store, Clock::system()).unwrap();
    let keys = Keys::new(Arc::new(Config { tenants: [("acme".into(), tenant(None))].into(), ..Config::default() }), &credentials);
    let inner = service_fn(|incoming: Incoming<()>| std::future::ready(Ok::<_, Error>(incoming)));
    Authenticate::layer(Arc::new(keys)).layer(inner).call(incoming(headers)).await
}

#[tokio::test]
async fn a_key_is_taken_as_bearer_or_as_x_api_key() {
    let bearer = format!("Bearer {SECRET}");
    let spaced = format!("bearer  {SECRET}");
    for headers in [[("authorization", bearer.as_str())], [("authorization", spaced.as_str())], [("x-api-key", SECRET)]] {
        let passed = authenticated(&headers).await.map_err(|error| error.to_string()).unwrap();
        assert_eq!(passed.holder.unwrap().tenant.name.as_str(), "acme");
        let notes = passed.record.lock();
        assert_eq!((notes.tenant.clone(), notes.key.clone()), (Some("acme".into()), Some("ci".into())));
    }
}

#[tokio::test]
async fn a_wrong_key_is_shown_by_its_start_only() {
    for (headers, expected) in [
        (vec![], None),
        (vec![("authorization", "Basic abc")], None),
        (vec![("authorization", "Bearer rh_abcdefghijklmnopqrstuvwxyz0123456789")], Some("rh_abcd…")),
        (vec![("authorization", "Bearer secret")], Some("s…")),
        (vec![("authorization", "Bearer pw")], Some("…")),
        (vec![("x-api-key", "sk-12345678901234567890")], Some("sk-12…")),
        // What the client means is decided by the first header, not by whichever happens to fit.
        (vec![("authorization", "Bearer wrong-wrong"), ("x-api-key", SECRET)], Some("wr…")),
    ] {
        let Err(Error::Unauthenticated { shown }) = authenticated(&headers).await else { panic!("{headers:?} passed") };
        assert_eq!(shown.as_deref(), expected, "{headers:?}");
    }
}

#[tokio::test]
async fn what_is_refused_below_the_limit_is_given_back() {
    let (clock, _hand) = Clock::manual(Duration::ZERO);
    let requests = accounts(&clock);
    let tenant = tenant(Some(1));
    let refusing = service_fn(|_| async { Err::<Reply, _>(Error::Internal) });
    let mut refusing = Limit::layer(requests.clone()).layer(refusing);
    for _ in 0..5 {
        assert!(matches!(refusing.call(call(tenant.clone(), &clock)).await, Err(Error::Internal)));
    }
    let serving = service_fn(|_| async { Ok::<_, Error>(Reply::new(iter(pieces(&[1])))) });
    let mut serving = Limit::layer(requests).layer(serving);
    let passed = call(tenant.clone(), &clock);
    let reply = serving.call(passed.clone()).await.map_err(|error| error.to_string()).unwrap();
    assert_eq!(passed.record.lock().requests.unwrap().remaining, 0);
    reply.close(Outcome::Done).await;
    let refused = call(tenant, &clock);
    assert!(matches!(serving.call(refused.clone()).await, Err(Error::RateLimited { .. })));
    assert_eq!(refused.record.lock().requests.unwrap().remaining, 0);
}

#[tokio::test]
async fn the_meter_counts_tokens_and_the_time_between_them() {
    let (clock, hand) = Clock::manual(Duration::ZERO);
    let metrics = Metrics::new();
    let usage = Usage { prompt_tokens: 3, cached_tokens: 2, completion_tokens: 6, device_time: Duration::from_secs(1) };
    let mut events = pieces(&[2, 1, 3]);
    events.extend([Ok(Event::Finish { choice: 0, reason: Finish::Length }), Ok(Event::Usage(usage))]);
    let inner = service_fn(move |_| std::future::ready(Ok::<_, Error>(Reply::new(iter(events.clone())))));
    let call = call(tenant(None), &clock);
    let mut meter = Meter::layer(metrics.clone(), clock, "USD".into()).layer(inner);
    let mut reply = meter.call(call.clone()).await.map_err(|error| error.to_string()).unwrap();
    while let Some(event) = reply.next().await {
        event.map_err(|error| error.to_string()).unwrap();
        hand.advance(Duration::from_millis(200));
    }
    assert_eq!(call.record.lock().usage, usage);
    reply.close(Outcome::Done).await;
    let page = metrics.render();
    let labels = "{model=\"smol\",variant=\"only\",backend=\"b0\"}";
    for line in [
        "roundhouse_tokens_total{tenant=\"acme\",model=\"smol\",kind=\"prompt\"} 3".to_owned(),
        "roundhouse_tokens_total{tenant=\"acme\",model=\"smol\",kind=\"cached\"} 2".to_owned(),
        "roundhouse_tokens_total{tenant=\"acme\",model=\"smol\",kind=\"completion\"} 6".to_owned(),
        format!("roundhouse_inter_token_latency_seconds_sum{labels} 0.4"),
        format!("roundhouse_time_per_output_token_seconds_sum{labels} 0.1"), // 400 ms for the four after the first piece
    ] {
        assert!(page.lines().any(|found| found == line), "{line} isn't in\n{page}");
    }
}

#[tokio::test]
async fn the_meter_counts_what_was_sent_of_a_reply_that_was_cut_and_nothing_of_one_that_never_began() {
    let (clock, _hand) = Clock::manual(Duration::ZERO);
    let metrics = Metrics::new();
    let inner = service_fn(|_| async { Ok::<_, Error>(Reply::new(iter(pieces(&[2, 1])))) });
    let mut meter = Meter::layer(metrics.clone(), clock.clone(), "USD".into()).layer(inner);
    let mut reply = meter.call(call(tenant(None), &clock)).await.map_err(|error| error.to_string()).unwrap();
    reply.next().await.unwrap().unwrap();
    drop(reply);
    let refusing = service_fn(|_| async { Err::<Reply, _>(Error::Internal) });
    Meter::layer(metrics.clone(), clock.clone(), "USD".into())
        .layer(refusing)
        .call(call(tenant(None), &clock))
        .await
        .map(drop)
        .unwrap_err();
    let page = metrics.render();
    assert!(page.contains("kind=\"completion\"} 2\n"), "{page}");
    assert!(page.contains("kind=\"prompt\"} 3\n"), "{page}");
}

#[tokio::test]
async fn a_request_is_counted_when_its_body_ends_and_not_before() {
    let metrics = Metrics::new();
    let inner = service_fn(|_| async { Ok::<_, Infallible>(Response::new(Full::<bytes::Bytes>::from("body"))) });
    let mut trace = Trace::layer(metrics.clone(), Clock::system()).layer(inner);
    let answer = trace.call(incoming::<Empty<bytes::Bytes>>(&[])).await.unwrap();
    assert!(!metrics.render().contains("roundhouse_requests_total{"));
    assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), "body");
    assert!(metrics.render().contains("status=\"200\"} 1"));
}

#[tokio::test]
async fn a_client_that_leaves_before_there_is_a_status_is_counted_too() {
    let metrics = Metrics::new();
    let inner = service_fn(|_| std::future::pending::<Result<Response<Empty<bytes::Bytes>>, Infallible>>());
    let mut trace = Trace::layer(metrics.clone(), Clock::system()).layer(inner);
    drop(trace.call(incoming::<()>(&[])));
    assert!(metrics.render().contains("status=\"499\"} 1"));
}

#[tokio::test]
async fn the_end_of_a_quota_shortens_what_goes_down() {
    let clock = Clock::system();
    let quota = Quota { amount: Amount::Tokens(8), per: Per::Month, zone: Zone::default(), hard: true, model: None };
    let tenant = Arc::new(Tenant { quotas: vec![quota], ..Tenant::clone(&tenant(None)) });
    let below = service_fn(|call: Call| async move {
        assert_eq!(call.sampling.max_tokens, 5, "8 tokens less 3 of the prompt");
        Ok(Reply::new(iter(pieces(&[1]))))
    });
    let reply = Limit::layer(accounts(&clock)).layer(below).call(call(tenant, &clock)).await.unwrap();
    reply.close(Outcome::Done).await;
}
