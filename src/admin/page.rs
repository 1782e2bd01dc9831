//! What operators can ask for, and the answers.

use super::{Control, Deed, experiments, keys};
use crate::call::Error;
use crate::config::{Name, Secret};
use crate::gateway::{self, Body, decoded, read, respond};
use crate::metrics::Metrics;
use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, header};
use serde_json::json;
use std::fmt::Display;
use std::sync::Arc;

/// What can be asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Page {
    Live,
    Metrics,
    Status,
    Reload,
    Usage,
    Experiments,
    /// Of this name.
    Experiment(Name),
    /// Likewise.
    ResumeExperiment(Name),
    /// Likewise.
    ResetExperiment(Name),
    Keys,
    NewKey,
    /// Of this tenant, the key of this name.
    RevokeKey(Name, Name),
    /// Likewise.
    RotateKey(Name, Name),
    /// What to do with this shard.
    Shard(Name, Deed),
}

const READ: &str = "GET, HEAD";
const ACT: &str = "POST";
const BOTH: &str = "GET, HEAD, POST";
const EXPERIMENT: &str = "/admin/v1/experiments/";
const KEY: &str = "/admin/v1/keys/";
const SHARD: &str = "/admin/v1/shards/";

// === impl Page ===

impl Page {
    /// What a request asks for; all but health only with the `token`, where there is one.
    pub(super) fn find<B>(http: &Request<B>, token: Option<&Secret>) -> Result<Self, Error> {
        let (method, path) = (http.method(), http.uri().path());
        let reads = method == Method::GET || method == Method::HEAD;
        let (page, allow) = match path {
            "/health" | "/livez" => (Page::Live, READ),
            "/metrics" => (Page::Metrics, READ),
            "/admin/v1/status" => (Page::Status, READ),
            "/admin/v1/reload" => (Page::Reload, ACT),
            "/admin/v1/usage" => (Page::Usage, READ),
            "/admin/v1/experiments" => (Page::Experiments, READ),
            "/admin/v1/keys" if reads => (Page::Keys, BOTH),
            "/admin/v1/keys" => (Page::NewKey, BOTH),
            _ => {
                let of_key = path.strip_prefix(KEY).and_then(Self::of_key).map(|page| (page, ACT));
                let of_shard = || path.strip_prefix(SHARD).and_then(Self::of_shard).map(|page| (page, ACT));
                let of_experiment = || path.strip_prefix(EXPERIMENT).and_then(Self::of_experiment);
                let found = of_key.or_else(of_shard).or_else(of_experiment);
                found.ok_or_else(|| Error::UnknownUrl { method: method.to_string(), path: path.to_owned() })?
            }
        };
        let right = if reads { allow != ACT } else { method == Method::POST && allow != READ };
        if !right {
            return Err(Error::MethodNotAllowed { method: method.to_string(), path: path.to_owned(), allow });
        }
        let known = token.is_none_or(|token| bearer(http.headers()).is_some_and(|given| token.matches(given)));
        if known || matches!(page, Page::Live) { Ok(page) } else { Err(Error::Unauthenticated { shown: None }) }
    }

    /// `TENANT/NAME/DEED`, each part escaped as paths are.
    fn of_key(path: &str) -> Option<Self> {
        let mut parts = path.split('/');
        let (tenant, name, deed) = (parts.next()?, parts.next()?, parts.next()?);
        let (tenant, name) = (Name::from(decoded(tenant)), Name::from(decoded(name)));
        match (deed, parts.next()) {
            ("revoke", None) => Some(Page::RevokeKey(tenant, name)),
            ("rotate", None) => Some(Page::RotateKey(tenant, name)),
            _ => None,
        }
    }

    /// `NAME` or `NAME/DEED`, the name escaped as paths are.
    fn of_experiment(path: &str) -> Option<(Self, &'static str)> {
        let (name, deed) = path.split_once('/').map_or((path, None), |(name, deed)| (name, Some(deed)));
        let name = Name::from(decoded(name));
        match deed {
            None => Some((Page::Experiment(name), READ)),
            Some("resume") => Some((Page::ResumeExperiment(name), ACT)),
            Some("reset") => Some((Page::ResetExperiment(name), ACT)),
            Some(_) => None,
        }
    }

    /// `NAME/DEED`, likewise.
    fn of_shard(path: &str) -> Option<Self> {
        let (name, deed) = path.split_once('/')?;
        let deed = match deed {
            "drain" => Deed::Drain,
            "resume" => Deed::Resume,
            "reload" => Deed::Reload,
            _ => return None,
        };
        Some(Page::Shard(Name::from(decoded(name)), deed))
    }

    pub(super) async fn answer<B>(self, http: Request<B>, metrics: &Metrics, control: Arc<dyn Control>) -> Response<Body>
    where
        B: http_body::Body<Data = Bytes, Error: Display>,
    {
        let time = control.config().server.body_timeout;
        let answer = match self {
            Page::Live => Ok(respond::live()),
            Page::Metrics => Ok(respond::text(metrics.render())),
            Page::Status => Ok(respond::json(&control.status())),
            Page::Reload => reload(control).await,
            Page::Usage => usage(http, control.as_ref()).await,
            Page::Experiments => Ok(experiments::list(&control.experiments())),
            Page::Experiment(name) => experiments::one(&control.experiments(), &name),
            Page::ResumeExperiment(name) => experiments::resume(&control.experiments(), &name, http.headers()),
            Page::ResetExperiment(name) => experiments::reset(&control.experiments(), &name, http.headers()),
            Page::Keys => Ok(keys::list(&control.keys(), http.uri().query())),
            Page::NewKey => keys::make(&control.keys(), http, time).await,
            Page::RevokeKey(tenant, name) => keys::revoke(&control.keys(), &tenant, &name, http.headers()).await,
            Page::RotateKey(tenant, name) => keys::rotate(&control.keys(), &tenant, &name, http, time).await,
            Page::Shard(name, deed) => shard(control, name, deed, http.headers()).await,
        };
        answer.unwrap_or_else(|error| respond::error(&error))
    }
}

async fn usage<B>(http: Request<B>, control: &dyn Control) -> Result<Response<Body>, Error> {
    let (accounts, config) = (control.accounts(), control.config());
    gateway::usage(http.uri().query(), http.headers(), None, (&accounts, &config), accounts.now()).await
}

/// A reload reads files and a database, and loads weights.
async fn reload(control: Arc<dyn Control>) -> Result<Response<Body>, Error> {
    let reloaded = blocking(move || control.reload().map_err(|message| Error::Invalid { param: None, message })).await?;
    Ok(respond::json(&reloaded))
}

async fn shard(control: Arc<dyn Control>, name: Name, deed: Deed, headers: &HeaderMap) -> Result<Response<Body>, Error> {
    read::check_content_type(headers)?; // what no foreign page can make a browser send
    let shard = name.clone();
    let state = blocking(move || control.shard(&shard, deed)).await?;
    Ok(respond::json(&json!({ "shard": name, "state": state.as_str() })))
}

/// What takes its time, away from the threads that serve.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T, Error> + Send + 'static) -> Result<T, Error> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| {
        tracing::error!(%error, "what an operator asked for panicked");
        Err(Error::Internal)
    })
}

fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let (scheme, token) = headers.get(header::AUTHORIZATION)?.as_bytes().split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then_some(token)
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    fn find(method: &str, path: &str) -> Result<Page, Error> {
        Page::find(&Request::builder().method(method).uri(path).body(()).unwrap(), None)
    }

    #[test]
    fn keys_are_named_in_paths_with_what_a_path_may_not_hold_escaped() {
        assert_eq!(find("POST", "/admin/v1/keys/acme/team%2Fci/revoke"), Ok(Page::RevokeKey("acme".into(), "team/ci".into())));
        assert_eq!(find("POST", "/admin/v1/keys/acme/ci/rotate"), Ok(Page::RotateKey("acme".into(), "ci".into())));
        assert_eq!(find("HEAD", "/admin/v1/keys?tenant=acme"), Ok(Page::Keys));
        assert_eq!(find("POST", "/admin/v1/shards/smol%2Fq4/reload"), Ok(Page::Shard("smol/q4".into(), Deed::Reload)));
        assert_eq!(find("POST", "/admin/v1/keys"), Ok(Page::NewKey));
        assert_eq!(find("GET", "/admin/v1/experiments/a%2Fb"), Ok(Page::Experiment("a/b".into())));
        assert_eq!(find("POST", "/admin/v1/experiments/e/resume"), Ok(Page::ResumeExperiment("e".into())));
        for path in [
            "/admin/v1/keys/",
            "/admin/v1/keys/acme/ci",
            "/admin/v1/keys/acme/ci/delete",
            "/admin/v1/keys/a/b/c/revoke",
            "/admin/v1/experiments/e/stop",
            "/admin/v1/shards/a/stop",
        ] {
            assert!(matches!(find("POST", path), Err(Error::UnknownUrl { .. })), "{path}");
        }
        for (method, path, right) in
            [("POST", "/metrics", READ), ("DELETE", "/admin/v1/keys", BOTH), ("GET", "/admin/v1/keys/acme/ci/rotate", ACT)]
        {
            assert!(matches!(find(method, path), Err(Error::MethodNotAllowed { allow, .. }) if allow == right), "{path}");
        }
    }
}
