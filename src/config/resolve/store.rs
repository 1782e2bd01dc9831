//! `[store]` and what a model's tokens cost.

use super::{Resolver, or};
use crate::config::problem::join;
use crate::config::store::StoreUrl;
use crate::config::{Billing, Ledger, Money, Prices, Secret, Store, raw};
use toml::Spanned;

impl Resolver<'_> {
    pub(super) fn store(&mut self, raw: raw::Store) -> Store {
        let default = Store::default();
        let ledger = match (raw.ledger.and_then(|given| self.ledger(given)), default.ledger) {
            (Some(given), _) => given,
            (None, Ledger::Sqlite(file)) => Ledger::Sqlite(self.folder.join(file)),
            (None, default) => default,
        };
        Store { ledger, durability: or(raw.durability, default.durability), on_store_loss: or(raw.on_store_loss, default.on_store_loss) }
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

/// Whether there is a colon between a scheme and an `@`.
fn has_password(url: &str) -> bool {
    let login = url.split_once("://").and_then(|(_, rest)| rest.split(['/', '?']).next()?.rsplit_once('@'));
    login.is_some_and(|(login, _)| login.contains(':'))
}
