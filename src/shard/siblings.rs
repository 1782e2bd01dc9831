//! The shards of one process, so that an answer whose shard is lost finds an equal one.

use super::handle::Shard;
use crate::backend::{Backend, State};
use crate::call::Call;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// All shards of a process that live.
#[derive(Clone, Debug, Default)]
pub struct Siblings(Arc<Mutex<Vec<Weak<Shard>>>>);

// === impl Siblings ===

impl Siblings {
    /// From now on this one is among them.
    pub(super) fn join(&self, shard: &Arc<Shard>) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|other| other.strong_count() > 0);
        all.push(Arc::downgrade(shard));
    }

    /// The one to go on with a call whose shard, of this `digest`, is lost: ready, one of the variant's replicas, and of the
    /// same digest, so that its tokens are the same; of several the one that can do so first.
    pub(super) fn equal(&self, digest: [u8; 16], call: &Call) -> Option<Arc<Shard>> {
        let all: Vec<_> = self.0.lock().unwrap_or_else(PoisonError::into_inner).iter().filter_map(Weak::upgrade).collect();
        let is_replica = |shard: &Shard| call.route.as_ref().is_some_and(|route| route.backends.contains(&shard.name));
        let can = |shard: &Arc<Shard>| {
            shard.digest == digest
                && !shard.live.standing.is_replaced()
                && shard.state() == State::Ready
                && is_replica(shard)
                && shard.supports(call).is_ok()
        };
        let cost = |shard: &Arc<Shard>| {
            let offer = shard.offer(call);
            offer.queue_time + offer.prefill_time
        };
        all.into_iter().filter(can).min_by_key(cost)
    }
}
