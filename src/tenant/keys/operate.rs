//! What operators do with keys: list, make, revoke, rotate.

use super::entry::{Entry, Grant, KeyState, Listed, Source};
use super::store::KeyStore;
use super::table::{Change, Named};
use super::{KeyError, Keys, NewKey, is_expired, new_key};
use crate::config::{Key, Name, NameError};
use std::time::Duration;

impl Keys {
    /// All keys, of one tenant where it is named: those of the file, then those of the store in the order they were made.
    pub fn list(&self, tenant: Option<&Name>) -> Vec<Listed> {
        let wanted = |name: &Name| tenant.is_none_or(|tenant| tenant == name);
        let stored = self.credentials.stored.as_ref().map(|stored| stored.entries());
        let tenants = self.config.tenants.values().filter(|tenant| wanted(&tenant.name));
        let of_file = tenants.flat_map(|tenant| tenant.keys.iter().map(|key| (&tenant.name, key)));
        let of_file = of_file.map(|(tenant, key)| {
            let entry = stored.as_ref().and_then(|entries| entries.get(&key.hash));
            let mut listed = self.listed(tenant, &key.name, Source::File, Some(key), entry.map(AsRef::as_ref));
            listed.created = None; // an entry of the file's own secret is as old as its revocation
            listed
        });
        let mut list: Vec<_> = of_file.collect();
        if let Some(entries) = &stored {
            let others = entries.values().filter(|entry| wanted(&entry.tenant) && !self.of_file.contains_key(&entry.hash));
            let mut others: Vec<_> = others.collect();
            others.sort_by_key(|entry| (entry.created, entry.hash));
            list.extend(others.into_iter().map(|entry| {
                let named = self.named(&entry.tenant, &entry.name).map(|holder| holder.key.as_ref());
                self.listed(&entry.tenant, &entry.name, Source::Store, entry.key.as_deref().or(named), Some(entry))
            }));
        }
        list
    }

    fn listed(&self, tenant: &Name, name: &Name, source: Source, key: Option<&Key>, entry: Option<&Entry>) -> Listed {
        let now = self.now();
        let state = match key {
            _ if entry.is_some_and(|entry| entry.is_revoked(now)) => KeyState::Revoked,
            Some(key) if is_expired(key, now) => KeyState::Expired,
            Some(_) if self.config.tenants.contains_key(tenant) => KeyState::Active,
            _ => KeyState::Orphaned,
        };
        Listed {
            tenant: tenant.clone(),
            name: name.clone(),
            source,
            state,
            scope: key.map(|key| key.scope.clone()).unwrap_or_default(),
            expires: key.and_then(|key| key.expires),
            created: entry.map(|entry| entry.created),
            revoked: entry.and_then(|entry| entry.revoked),
            limits: key.map(|key| key.limits.clone()).unwrap_or_default(),
        }
    }

    /// Makes a key and keeps its hash in the store. Its secret is in what is returned and nowhere else.
    ///
    /// # Errors
    /// It isn't made: the tenant or a model is unknown, the name is taken, or the store says no.
    pub async fn make(&self, tenant: &Name, name: &Name, mut grant: Grant) -> Result<NewKey, KeyError> {
        let store = self.store()?;
        name.as_str().parse::<Name>().map_err(|error: NameError| KeyError::Name(error))?;
        if !self.config.tenants.contains_key(tenant) {
            return Err(KeyError::NoTenant(tenant.clone()));
        }
        for model in grant.models.iter_mut().flatten() {
            *model = self.model(model)?;
        }
        let limits = std::mem::take(&mut grant.limits.models).into_iter().map(|(model, limit)| Ok((self.model(&model)?, limit)));
        grant.limits.models = limits.collect::<Result<_, KeyError>>()?;
        let key = new_key()?;
        store.change(self.subject(tenant, name), Change::Make { hash: key.hash, grant: Box::new(grant) }).await?;
        tracing::info!(%tenant, key = %name, "a key was made");
        Ok(key)
    }

    /// Revokes all secrets of a key, wherever they are kept; the next request knows. Another time changes nothing.
    ///
    /// # Errors
    /// There is no such key, or the store says no.
    pub async fn revoke(&self, tenant: &Name, name: &Name) -> Result<(), KeyError> {
        self.store()?.change(self.subject(tenant, name), Change::Revoke).await?;
        tracing::info!(%tenant, key = %name, "a key was revoked");
        Ok(())
    }

    /// Gives a key another secret, with the same name, scope and limits. What it had before is taken until `overlap` is over.
    ///
    /// # Errors
    /// There is no such key, it is revoked or expired, or the store says no.
    pub async fn rotate(&self, tenant: &Name, name: &Name, overlap: Duration) -> Result<NewKey, KeyError> {
        let store = self.store()?;
        let named = self.named(tenant, name);
        if named.is_some_and(|holder| is_expired(&holder.key, self.now())) {
            return Err(KeyError::Expired);
        }
        let key = new_key()?;
        store.change(self.subject(tenant, name), Change::Rotate { hash: key.hash, overlap }).await?;
        tracing::info!(%tenant, key = %name, "a key was rotated");
        Ok(key)
    }

    fn store(&self) -> Result<&KeyStore, KeyError> {
        self.credentials.stored.as_deref().ok_or(KeyError::NoStore)
    }

    fn subject(&self, tenant: &Name, name: &Name) -> Named {
        let of_file = self.named(tenant, name).map(|holder| holder.key.hash);
        Named { tenant: tenant.clone(), name: name.clone(), of_file }
    }

    /// A model's own name, whether it or an alias is given.
    fn model(&self, name: &Name) -> Result<Name, KeyError> {
        self.config.model(name.as_str()).map(|model| model.name.clone()).ok_or_else(|| KeyError::NoModel(name.clone()))
    }
}
