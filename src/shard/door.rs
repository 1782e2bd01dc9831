//! Who waits at a shard, and whether there is room for more. The only queue in front of an engine is bounded here.

use crate::config::Name;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Counts the sequences that were let in and have not begun, from the moment they are mailed.
#[derive(Debug)]
pub(super) struct Door {
    /// Most sequences that wait.
    most: u32,
    waiting: AtomicU32,
    /// Of each tenant that has any. Whoever changes this or `waiting` holds the lock.
    tenants: Mutex<HashMap<Name, u32>>,
}

/// One sequence's place among those that wait; given up when it begins, is cancelled or goes down with its shard.
#[derive(Debug)]
pub(super) struct Place {
    door: Arc<Door>,
    tenant: Name,
}

// === impl Door ===

impl Door {
    pub(super) fn new(most: u32) -> Self {
        Self { most, waiting: AtomicU32::new(0), tenants: Mutex::default() }
    }

    /// Places for `sequences` of a tenant, all or none.
    pub(super) fn enter(self: &Arc<Self>, tenant: &Name, sequences: u32) -> Option<Vec<Place>> {
        let mut tenants = self.lock();
        if !self.has_room(&tenants, tenant, sequences) {
            return None;
        }
        Some(self.take_in(&mut tenants, tenant, sequences))
    }

    /// Places for `sequences` of a tenant that has waited at another door already, however many wait here.
    pub(super) fn readmit(self: &Arc<Self>, tenant: &Name, sequences: u32) -> Vec<Place> {
        self.take_in(&mut self.lock(), tenant, sequences)
    }

    fn take_in(self: &Arc<Self>, tenants: &mut HashMap<Name, u32>, tenant: &Name, sequences: u32) -> Vec<Place> {
        self.waiting.fetch_add(sequences, Relaxed);
        *tenants.entry(tenant.clone()).or_default() += sequences;
        (0..sequences).map(|_| Place { door: self.clone(), tenant: tenant.clone() }).collect()
    }

    /// Whether `sequences` of a tenant would be let in now.
    pub(super) fn is_open(&self, tenant: &Name, sequences: u32) -> bool {
        self.waiting().saturating_add(sequences) <= self.most || self.has_room(&self.lock(), tenant, sequences)
    }

    /// Sequences that wait.
    pub(super) fn waiting(&self) -> u32 {
        self.waiting.load(Relaxed)
    }

    /// A tenant that has nothing waiting gets in whatever the others have piled up, and however much its request asks for.
    /// So the queue exceeds its bound by one request of each tenant at most.
    fn has_room(&self, tenants: &HashMap<Name, u32>, tenant: &Name, sequences: u32) -> bool {
        self.waiting().saturating_add(sequences) <= self.most || !tenants.contains_key(tenant)
    }

    /// Nothing can panic while it is held.
    fn lock(&self) -> MutexGuard<'_, HashMap<Name, u32>> {
        self.tenants.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut tenants = self.door.lock();
        self.door.waiting.fetch_sub(1, Relaxed);
        if let Some(waiting) = tenants.get_mut(&self.tenant) {
            *waiting -= 1;
            if *waiting == 0 {
                tenants.remove(&self.tenant);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test may stop at a surprise")]

    use super::*;

    #[test]
    fn a_full_queue_takes_nothing_until_a_place_is_free() {
        let (door, acme) = (Arc::new(Door::new(3)), Name::from("acme"));
        let mut places = door.enter(&acme, 3).unwrap();
        assert!(door.enter(&acme, 1).is_none() && !door.is_open(&acme, 1));
        places.pop();
        assert!(door.enter(&acme, 2).is_none(), "all of a request or nothing");
        let last = door.enter(&acme, 1).unwrap();
        assert_eq!(door.waiting(), 3);
        drop((places, last));
        assert_eq!(door.waiting(), 0);
        assert!(door.lock().is_empty());
    }

    #[test]
    fn a_tenant_that_has_nothing_waiting_gets_in_whatever_others_have_piled_up() {
        let (door, acme, other) = (Arc::new(Door::new(2)), Name::from("acme"), Name::from("other"));
        let _large = door.enter(&acme, 5).unwrap();
        assert!(!door.is_open(&acme, 1) && door.is_open(&other, 1));
        let _first = door.enter(&other, 1).unwrap();
        assert!(door.enter(&other, 1).is_none());
    }

    #[test]
    fn threads_that_race_for_the_last_places_never_pass_the_bound() {
        let (door, acme) = (Arc::new(Door::new(50)), Name::from("acme"));
        let _one = door.enter(&acme, 1).unwrap();
        let enter = || (0..100).filter_map(|_| door.enter(&acme, 1)).flatten().collect::<Vec<_>>();
        let places: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(enter)).collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!((places.len(), door.waiting()), (49, 50));
    }
}
