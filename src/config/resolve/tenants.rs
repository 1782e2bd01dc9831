//! `[tenants]` with their keys and limits.

use super::{Resolver, or_nearest};
use crate::config::problem::join;
use crate::config::raw::{self, Named};
use crate::config::{Key, Limits, Model, Name, Tenant};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use toml::Spanned;

impl Resolver<'_> {
    pub(super) fn tenants(&mut self, raw: Named<raw::Tenant>, models: &BTreeMap<Name, Arc<Model>>) -> BTreeMap<Name, Arc<Tenant>> {
        // One secret is one key of one tenant, else nobody could say who sent it.
        let mut hashes = BTreeMap::new();
        let mut tenants = BTreeMap::new();
        for (name, raw) in raw {
            let path = join("tenants", name.get_ref().as_str());
            self.name(&name, &path);
            let allowed = raw.models.map(|names| self.allowed(names, &path, models));
            let keys = self.keys(raw.keys, &path, &mut hashes);
            let name = name.into_inner();
            tenants.insert(name.clone(), Arc::new(Tenant { name, models: allowed, limits: limits(raw.limits), keys }));
        }
        tenants
    }

    /// A tenant's models by their names, whether the file names or aliases them.
    fn allowed(&mut self, names: Vec<Spanned<Name>>, path: &str, models: &BTreeMap<Name, Arc<Model>>) -> Vec<Name> {
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

    fn keys(&mut self, raw: Vec<Spanned<raw::Key>>, tenant: &str, hashes: &mut BTreeMap<[u8; 32], String>) -> Vec<Key> {
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
                keys.push(Key { name, hash: hash.0, limits: limits(raw.limits) });
            }
        }
        keys
    }
}

fn limits(raw: raw::Limits) -> Limits {
    Limits { requests_per_minute: raw.requests_per_minute.map(Spanned::into_inner) }
}
