//! `[upstreams]`

use super::{Resolver, or};
use crate::config::problem::join;
use crate::config::raw::{self, Given, Named};
use crate::config::units::Time;
use crate::config::{BaseUrl, Health, Name, Retries, Shard, Timeouts, Tokenizer, Upstream, UpstreamTls, Weights};
use http::uri::PathAndQuery;
use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;
use toml::Spanned;

/// Within a data center a connection takes a millisecond, around the world and over TLS one second.
const CONNECT: Duration = Duration::from_secs(5);
/// Long prompts wait and are computed for a while on a busy server.
const FIRST_TOKEN: Duration = Duration::from_secs(120);
/// A preempted sequence pauses for seconds.
const IDLE: Duration = Duration::from_secs(60);
/// What one large server decodes at once.
const MAX_CONNECTIONS: NonZeroU32 = NonZeroU32::new(1024).expect("1024 isn't 0");
const INTERVAL: Duration = Duration::from_secs(5);
const ATTEMPTS: NonZeroU32 = NonZeroU32::new(2).expect("2 isn't 0");
const RETRY_TIME: Duration = Duration::from_secs(10);

impl Resolver<'_> {
    pub(super) fn upstreams(&mut self, raw: Named<raw::Upstream>, shards: &BTreeMap<Name, Arc<Shard>>) -> BTreeMap<Name, Arc<Upstream>> {
        let mut upstreams = BTreeMap::new();
        for (name, raw) in raw {
            let path = join("upstreams", name.get_ref().as_str());
            self.name(&name, &path);
            if shards.contains_key(name.get_ref()) {
                self.refuse(name.span(), &path, "a shard has this name already, and variants name both alike");
            }
            if let Some(upstream) = self.upstream(name.clone(), raw, &path) {
                upstreams.insert(name.into_inner(), Arc::new(upstream));
            } else {
                self.broken.insert(path);
            }
        }
        upstreams
    }

    fn upstream(&mut self, name: Spanned<Name>, raw: raw::Upstream, path: &str) -> Option<Upstream> {
        let url = self.required(raw.url.clone(), &name.span(), path, "url");
        let api_key = raw.api_key.and_then(|source| self.secret(source, &join(path, "api_key")));
        let timeouts = self.timeouts(raw.timeouts, &join(path, "timeouts"));
        let retries = Retries { attempts: or(raw.retries.attempts, ATTEMPTS), time: or(raw.retries.time, Time(RETRY_TIME)).0 };
        let interval = self.time(raw.health.interval, INTERVAL, &join(&join(path, "health"), "interval"));
        let span = raw.url.map(|url| url.span()).unwrap_or_default();
        let url: BaseUrl = match url?.parse() {
            Ok(url) => url,
            Err(error) => {
                self.refuse(span, &join(path, "url"), format!("{error}"));
                return None;
            }
        };
        let health = Health { path: self.health_path(raw.health.path, &url, &join(path, "health"))?, interval };
        Some(Upstream {
            name: name.into_inner(),
            url,
            api_key,
            model: raw.model.map(Spanned::into_inner),
            parameters: raw.parameters,
            context: raw.context.map(Spanned::into_inner),
            timeouts,
            max_connections: or(raw.max_connections, MAX_CONNECTIONS),
            health,
            retries,
            tls: UpstreamTls { ca: raw.tls.ca.map(|file| self.folder.join(file.into_inner())) },
        })
    }

    fn timeouts(&mut self, raw: raw::Timeouts, path: &str) -> Timeouts {
        Timeouts {
            connect: self.time(raw.connect, CONNECT, &join(path, "connect")),
            first_token: self.time(raw.first_token, FIRST_TOKEN, &join(path, "first_token")),
            idle: self.time(raw.idle, IDLE, &join(path, "idle")),
        }
    }

    /// What is asked for to see whether an upstream is there: its models, which all of them have.
    fn health_path(&mut self, given: Given<String>, url: &BaseUrl, path: &str) -> Option<PathAndQuery> {
        let Some(given) = given else { return url.path("/models").ok() };
        match given.get_ref().parse::<PathAndQuery>() {
            Ok(found) if given.get_ref().starts_with('/') => Some(found),
            _ => {
                self.refuse(given.span(), &join(path, "path"), "write a path such as \"/health\"");
                None
            }
        }
    }

    /// Whose tokenizer counts a model's tokens.
    pub(super) fn tokenizer(&mut self, given: Given<String>, shards: &BTreeMap<Name, Arc<Shard>>, path: &str) -> Option<Tokenizer> {
        let given = given?;
        let (span, given) = (given.span(), given.into_inner());
        if let Some((name, _)) = shards.get_key_value(given.as_str()) {
            return Some(Tokenizer::Shard(name.clone()));
        }
        if let Ok(weights) = given.parse::<Weights>() {
            return Some(Tokenizer::Weights(weights.relative_to(self.folder)));
        }
        if !self.broken.contains(&join("shards", &given)) {
            self.refuse(span, path, format!("`{given}` is neither a shard nor a source of weights such as file:PATH or hf:ORG/REPO/FILE"));
        }
        None
    }
}
