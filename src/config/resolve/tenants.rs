//! `[tenants]` with their keys and limits.

use super::{Resolver, or, or_nearest};
use crate::config::money::Decimal;
use crate::config::problem::join;
use crate::config::raw::{self, Named};
use crate::config::{
    Amount, Class, Key, Limit, Limits, Model, Moment, MomentError, Money, MoneyError, Name, Per, Quota, Scope, Tenant, Zone,
};
use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::sync::Arc;
use toml::Spanned;
use toml::value::Datetime;

/// All models, by name.
type Models = BTreeMap<Name, Arc<Model>>;

impl Resolver<'_> {
    pub(super) fn tenants(&mut self, raw: Named<raw::Tenant>, models: &Models) -> BTreeMap<Name, Arc<Tenant>> {
        // One secret is one key of one tenant, else nobody could say who sent it.
        let mut hashes = BTreeMap::new();
        let (mut subjects, mut tenants) = (BTreeMap::new(), BTreeMap::new());
        for (name, raw) in raw {
            let path = join("tenants", name.get_ref().as_str());
            self.name(&name, &path);
            let allowed = raw.models.map(|names| self.allowed(names, &path, models));
            let keys = self.keys(raw.keys, &path, &mut hashes, models);
            let limits = self.limits(raw.limits, &path, models);
            let quotas = self.quotas(raw.quota, &path, models);
            let count_cached = or(raw.count_cached, true);
            let (weight, class) = (or(raw.weight, NonZeroU32::MIN), or(raw.class, Class::default()));
            let certificates = self.certificates(raw.certificates, &path, &mut subjects);
            let (name, networks) = (name.into_inner(), raw.networks);
            let tenant =
                Tenant { name: name.clone(), weight, class, models: allowed, limits, quotas, count_cached, networks, certificates, keys };
            tenants.insert(name, Arc::new(tenant));
        }
        tenants
    }

    /// Subjects of certificates; one stands for one tenant, else nobody could say who came.
    fn certificates(&mut self, given: Vec<Spanned<String>>, path: &str, subjects: &mut BTreeMap<String, String>) -> Vec<String> {
        let mut certificates = Vec::new();
        for (index, subject) in given.into_iter().enumerate() {
            let (span, path) = (subject.span(), format!("{path}.certificates[{index}]"));
            let subject = subject.into_inner();
            if !subject.contains(['=', ':']) {
                let message = "write a subject such as \"CN=ci,O=Acme\" or an alternative name such as \"DNS:ci.acme.example\"";
                self.refuse(span, &path, message);
            } else if let Some(other) = subjects.insert(subject.clone(), path.clone()) {
                self.refuse(span, &path, format!("`{other}` is the same subject"));
            } else {
                certificates.push(subject);
            }
        }
        certificates
    }

    /// A tenant's models by their names, whether the file names or aliases them.
    fn allowed(&mut self, names: Vec<Spanned<Name>>, path: &str, models: &Models) -> Vec<Name> {
        let mut allowed = Vec::new();
        for (index, name) in names.into_iter().enumerate() {
            let (span, name) = (name.span(), name.into_inner());
            match models.values().find(|model| model.name == name || model.aliases.contains(&name)) {
                Some(model) => allowed.push(model.name.clone()),
                None if self.broken.contains(&join("models", name.as_str())) => {}
                None => {
                    let valid = models.values().flat_map(|model| std::iter::once(&model.name).chain(&model.aliases));
                    self.refuse(span, &format!("{path}.models[{index}]"), or_nearest("model", &name, valid));
                }
            }
        }
        allowed
    }

    fn keys(&mut self, raw: Vec<Spanned<raw::Key>>, tenant: &str, hashes: &mut BTreeMap<[u8; 32], String>, models: &Models) -> Vec<Key> {
        let mut keys = Vec::new();
        let mut names = BTreeSet::new();
        for (index, raw) in raw.into_iter().enumerate() {
            let path = format!("{tenant}.keys[{index}]");
            let (table, raw) = (raw.span(), raw.into_inner());
            if let Some(name) = &raw.name {
                self.name(name, &join(&path, "name"));
                if !names.insert(name.get_ref().clone()) {
                    self.refuse(name.span(), &join(&path, "name"), format!("another key of this tenant is called `{}`", name.get_ref()));
                }
            }
            if let Some(hash) = &raw.hash {
                match hashes.get(&hash.get_ref().0) {
                    Some(other) => self.refuse(hash.span(), &join(&path, "hash"), format!("`{other}` is the same key")),
                    None => drop(hashes.insert(hash.get_ref().0, path.clone())),
                }
            }
            let name = self.required(raw.name, &table, &path, "name");
            let hash = self.required(raw.hash, &table, &path, "hash");
            if let (Some(name), Some(hash)) = (name, hash) {
                let limits = self.limits(raw.limits, &path, models);
                let quotas = self.quotas(raw.quota, &path, models);
                let models = raw.models.map(|names| self.allowed(names, &path, models));
                let expires = raw.expires.and_then(|expires| self.moment(&expires, &join(&path, "expires")));
                let scope = Scope { models, endpoints: raw.endpoints, networks: raw.networks };
                keys.push(Key { name, hash: hash.0, scope, expires, limits, quotas });
            }
        }
        keys
    }

    fn moment(&mut self, given: &Spanned<Datetime>, path: &str) -> Option<Moment> {
        match given.get_ref().to_string().parse() {
            Ok(moment) => Some(moment),
            Err(MomentError) => {
                self.refuse(given.span(), path, MomentError.to_string());
                None
            }
        }
    }

    fn limits(&mut self, raw: raw::Limits, path: &str, models: &Models) -> Limits {
        let all = Limit {
            requests_per_minute: raw.requests_per_minute.map(Spanned::into_inner),
            tokens_per_minute: raw.tokens_per_minute.map(Spanned::into_inner),
            concurrent: raw.concurrent.map(Spanned::into_inner),
            tokens_per_request: raw.tokens_per_request.map(Spanned::into_inner),
        };
        let one = raw.models.into_iter().filter_map(|(model, raw)| {
            let limit = Limit {
                requests_per_minute: raw.requests_per_minute.map(Spanned::into_inner),
                tokens_per_minute: raw.tokens_per_minute.map(Spanned::into_inner),
                concurrent: raw.concurrent.map(Spanned::into_inner),
                tokens_per_request: raw.tokens_per_request.map(Spanned::into_inner),
            };
            Some((self.model(model, &join(&join(path, "limits"), "models"), models)?, limit))
        });
        Limits { all, models: one.collect() }
    }

    fn quotas(&mut self, raw: Vec<Spanned<raw::Quota>>, path: &str, models: &Models) -> Vec<Quota> {
        let indexed = raw.into_iter().enumerate();
        indexed.filter_map(|(index, raw)| self.quota(raw, &format!("{path}.quota[{index}]"), models)).collect()
    }

    fn quota(&mut self, raw: Spanned<raw::Quota>, path: &str, models: &Models) -> Option<Quota> {
        let (table, raw) = (raw.span(), raw.into_inner());
        let amount = match (raw.tokens, raw.cost) {
            (Some(tokens), None) => Some(Amount::Tokens(tokens.into_inner())),
            (None, Some(cost)) => self.money(cost, &join(path, "cost"), str::parse).map(Amount::Cost),
            _ => {
                self.refuse(table.clone(), path, "a quota is either of `tokens` or of `cost`");
                None
            }
        };
        let zone = match raw.timezone {
            None => Zone::default(),
            Some(name) => Zone::named(name.get_ref()).unwrap_or_else(|| {
                let message = format!("there is no time zone `{}`; they are named as `Europe/Berlin`", name.get_ref());
                self.refuse(name.span(), &join(path, "timezone"), message);
                Zone::default()
            }),
        };
        let per: Option<Per> = self.required(raw.per, &table, path, "per");
        let model = raw.model.and_then(|model| self.model(model, &join(path, "model"), models));
        Some(Quota { amount: amount?, per: per?, zone, hard: or(raw.hard, true), model })
    }

    /// A model's own name, whether it or an alias is given.
    fn model(&mut self, name: Spanned<Name>, path: &str, models: &Models) -> Option<Name> {
        let found = models.values().find(|model| model.name == *name.get_ref() || model.aliases.contains(name.get_ref()));
        if found.is_none() {
            let valid = models.values().flat_map(|model| std::iter::once(&model.name).chain(&model.aliases));
            self.refuse(name.span(), path, or_nearest("model", name.get_ref(), valid));
        }
        found.map(|model| model.name.clone())
    }

    /// An amount of money as `read` understands it.
    pub(super) fn money(&mut self, given: Spanned<Decimal>, path: &str, read: fn(&str) -> Result<Money, MoneyError>) -> Option<Money> {
        match read(&given.get_ref().0) {
            Ok(money) => Some(money),
            Err(error) => {
                self.refuse(given.span(), path, error.to_string());
                None
            }
        }
    }
}
