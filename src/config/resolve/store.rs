//! `[store]` and what a model's tokens cost.

use super::{Resolver, or};
use crate::config::problem::join;
use crate::config::store::StoreUrl;
use crate::config::{Billing, Ledger, LimitStore, Money, OnStoreLoss, Prices, Secret, Store, raw};
use toml::Spanned;

/// How the URL of a Redis server begins.
const SCHEMES: [&str; 2] = ["redis://", "redis+unix://"];

impl Resolver<'_> {
    pub(super) fn store(&mut self, raw: raw::Store) -> Store {
        let default = Store::default();
        let ledger = match (raw.ledger.and_then(|given| self.ledger(given)), default.ledger) {
            (Some(given), _) => given,
            (None, Ledger::Sqlite(file)) => Ledger::Sqlite(self.folder.join(file)),
            (None, default) => default,
        };
        let on_store_loss = or(raw.on_store_loss, default.on_store_loss);
        let replicas = raw.replicas.map(Spanned::into_inner);
        let limits = raw.limits.map(|given| (given.span(), self.limit_store(given)));
        if let Some((span, Some(LimitStore::Redis(_)))) = &limits {
            if matches!(ledger, Ledger::Sqlite(_)) {
                let message = "replicas that share limits share the ledger too: set `ledger` to \"postgres://…\" or \"off\"";
                self.refuse(span.clone(), "store.limits", message);
            }
            if on_store_loss == OnStoreLoss::Local && replicas.is_none() {
                let message = "this key is missing: with `on_store_loss = \"local\"` each replica gets its share of limits and quotas";
                self.refuse(span.clone(), "store.replicas", message);
            }
        }
        let limits = limits.and_then(|(_, limits)| limits).unwrap_or(default.limits);
        Store { ledger, limits, replicas, durability: or(raw.durability, default.durability), on_store_loss }
    }

    fn limit_store(&mut self, given: Spanned<StoreUrl>) -> Option<LimitStore> {
        let span = given.span();
        let url = self.url(given, "store.limits")?;
        let text = url.expose();
        if text == "local" {
            return Some(LimitStore::Local);
        }
        if SCHEMES.iter().any(|scheme| text.starts_with(scheme)) {
            return Some(LimitStore::Redis(url));
        }
        let message = if text.starts_with("rediss://") {
            "Redis is reached without TLS: write \"redis://…\" and keep the way there private, or \"redis+unix:///PATH\""
        } else {
            "write \"redis://HOST:PORT\", \"redis+unix:///PATH\" or \"local\""
        };
        self.refuse(span, "store.limits", message);
        None
    }

    pub(super) fn billing(&mut self, raw: raw::Billing) -> Billing {
        let default = Billing::default();
        if let Some(given) = &raw.currency {
            let text = given.get_ref().as_str();
            if !(3..=8).contains(&text.len()) || !text.bytes().all(|byte| byte.is_ascii_uppercase()) {
                self.refuse(
                    given.span(),
                    "billing.currency",
                    "a currency is written as its code: three to eight capital letters, as \"EUR\"",
                );
            }
        }
        Billing { currency: or(raw.currency, default.currency) }
    }

    fn ledger(&mut self, given: Spanned<StoreUrl>) -> Option<Ledger> {
        let span = given.span();
        let url = self.url(given, "store.ledger")?;
        let text = url.expose();
        if text == "off" {
            return Some(Ledger::Off);
        }
        if let Some(path) = text.strip_prefix("sqlite:").filter(|path| !path.is_empty()) {
            return Some(Ledger::Sqlite(self.folder.join(path)));
        }
        if text.starts_with("postgres://") || text.starts_with("postgresql://") {
            return Some(Ledger::Postgres(url));
        }
        self.refuse(span, "store.ledger", "write \"sqlite:FILE\", \"postgres://…\" or \"off\"");
        None
    }

    /// The URL itself, or what the environment or a file holds where it is secret.
    fn url(&mut self, given: Spanned<StoreUrl>, key: &str) -> Option<Secret> {
        let span = given.span();
        match given.into_inner() {
            StoreUrl::Plain(url) if has_password(&url) => {
                self.refuse(span, key, "a URL with a password comes from \"${NAME}\" of an environment variable or { file = \"PATH\" }");
                None
            }
            StoreUrl::Plain(url) => Some(Secret::new(url)),
            StoreUrl::Secret(source) => self.secret(Spanned::new(span, source), key),
        }
    }

    pub(super) fn prices(&mut self, raw: Spanned<raw::Prices>, path: &str) -> Prices {
        let (table, raw) = (raw.span(), raw.into_inner());
        let input = self.required(raw.input.map(|given| Spanned::new(given.span(), given)), &table, path, "input");
        let input = input.and_then(|given| self.money(given, &join(path, "input"), Money::per_million)).unwrap_or_default();
        let output = self.required(raw.output.map(|given| Spanned::new(given.span(), given)), &table, path, "output");
        let output = output.and_then(|given| self.money(given, &join(path, "output"), Money::per_million)).unwrap_or_default();
        let cached = raw.cached_input.and_then(|given| {
            let span = given.span();
            let cached = self.money(given, &join(path, "cached_input"), Money::per_million)?;
            if cached > input {
                self.refuse(span, &join(path, "cached_input"), "a cached token costs at most as much as one that has to be computed");
            }
            Some(cached)
        });
        Prices { input, cached_input: cached.unwrap_or(input), output }
    }
}

/// Whether there is a colon between a scheme and an `@`, or a password among the parameters.
fn has_password(url: &str) -> bool {
    let parameters = url.split_once('?').map_or("", |(_, parameters)| parameters);
    if parameters.split('&').any(|parameter| parameter.starts_with("pass")) {
        return true;
    }
    let login = url.split_once("://").and_then(|(_, rest)| rest.split(['/', '?']).next()?.rsplit_once('@'));
    login.is_some_and(|(login, _)| login.contains(':'))
}
