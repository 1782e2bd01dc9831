//! What is being loaded, and how far it is.

use crate::admin::LoadStatus;
use crate::config::Name;
use crate::model::source::Progress;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How far one shard is.
#[derive(Debug, Default)]
pub(super) struct Loading(Mutex<LoadStatus>);

/// All that are being loaded.
#[derive(Debug, Default)]
pub(super) struct Loads(Mutex<BTreeMap<Name, Arc<Loading>>>);

/// One of them, until this is dropped.
pub(super) struct Listed<'a> {
    loads: &'a Loads,
    name: Name,
    pub(super) loading: Arc<Loading>,
}

// === impl Loading ===

impl Loading {
    fn status(&self) -> MutexGuard<'_, LoadStatus> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Progress for Loading {
    fn start(&self, total: Option<u64>, what: &str) {
        *self.status() = LoadStatus { doing: what.to_owned(), bytes: 0, total };
    }

    fn advance(&self, bytes: u64) {
        self.status().bytes += bytes;
    }

    fn done(&self) {}
}

// === impl Loads ===

impl Loads {
    /// Lists a shard.
    pub(super) fn list(&self, name: &Name) -> Listed<'_> {
        let loading = Arc::new(Loading::default());
        self.lock().insert(name.clone(), loading.clone());
        Listed { loads: self, name: name.clone(), loading }
    }

    /// How far each one is.
    pub(super) fn status(&self) -> BTreeMap<Name, LoadStatus> {
        self.lock().iter().map(|(name, loading)| (name.clone(), loading.status().clone())).collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Name, Arc<Loading>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Listed<'_> {
    fn drop(&mut self) {
        self.loads.lock().remove(&self.name);
    }
}
