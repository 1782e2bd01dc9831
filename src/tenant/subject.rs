//! Whom a limit or quota counts, and which of them a call falls under.

use crate::config::{Key, Limit, Model, Name, Quota, Tenant};
use std::fmt;

/// Whom a limit or quota of one tenant counts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Subject {
    /// One key; `None` counts all.
    pub(super) key: Option<Name>,
    /// One model; `None` counts all.
    pub(super) model: Option<Name>,
}

/// Whose call it is and for what: enough to know what it falls under.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asker<'a> {
    pub(super) tenant: &'a Tenant,
    pub(super) key: &'a Key,
    pub(super) model: &'a Model,
}

// === impl Subject ===

impl Subject {
    /// Whether it counts a call by this key for this model.
    pub(super) fn counts(&self, key: Option<&Name>, model: &Name) -> bool {
        self.key.as_ref().is_none_or(|own| Some(own) == key) && self.model.as_ref().is_none_or(|own| own == model)
    }

    /// As error messages name it.
    pub(super) fn describe(&self, tenant: &Name) -> String {
        let mut text = match &self.key {
            Some(key) => format!("key `{key}` of tenant `{tenant}`"),
            None => format!("tenant `{tenant}`"),
        };
        if let Some(model) = &self.model {
            text.push_str(&format!(" and model `{model}`"));
        }
        text
    }
}

impl fmt::Display for Subject {
    /// Unambiguous, for keys of a store: names can't hold a bar.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let part = |name: &Option<Name>| name.as_ref().map_or_else(String::new, Name::to_string);
        write!(f, "{}|{}", part(&self.key), part(&self.model))
    }
}

// === impl Asker ===

impl<'a> Asker<'a> {
    /// The limits it falls under, the key's before the tenant's: a key at its limit never touches what others share.
    pub(super) fn limits(self) -> impl Iterator<Item = (Subject, &'a Limit)> + use<'a> {
        let own = (Some(&self.key.name), &self.key.limits);
        [own, (None, &self.tenant.limits)].into_iter().flat_map(move |(key, limits)| {
            let one = limits.models.get_key_value(&self.model.name);
            let one = one.map(|(model, limit)| (Subject { key: key.cloned(), model: Some(model.clone()) }, limit));
            one.into_iter().chain([(Subject { key: key.cloned(), model: None }, &limits.all)])
        })
    }

    /// The quotas it falls under, the key's before the tenant's.
    pub(super) fn quotas(self) -> impl Iterator<Item = (Subject, &'a Quota)> + use<'a> {
        let of_key = self.key.quotas.iter().map(move |quota| (Some(&self.key.name), quota));
        let of_all = self.tenant.quotas.iter().map(|quota| (None, quota));
        let mine = of_key.chain(of_all).filter(move |(_, quota)| quota.model.as_ref().is_none_or(|model| *model == self.model.name));
        mine.map(|(key, quota)| (Subject { key: key.cloned(), model: quota.model.clone() }, quota))
    }
}
