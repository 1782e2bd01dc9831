//! Requests per minute, of a tenant and of each of its keys. The levels belong to names, not to a configuration: a reload
//! changes what is allowed, never what was used.

use super::level::{Arrival, PerMinute};
use super::subject::{Asker, Subject};
use crate::call::{Error, Level, Limited, Outcome, Release, Usage};
use crate::clock::Clock;
use crate::config::Name;
use dashmap::DashMap;
use futures_util::future::BoxFuture;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The levels of all limits on requests.
#[derive(Debug)]
pub(super) struct RequestLimits {
    arrivals: DashMap<(Name, Subject), Arc<Arrival>>,
    clock: Clock,
    made: Instant,
}

/// A request that was counted; it is given back if it is refused further down, before any work.
#[derive(Debug, Default)]
#[must_use = "belongs into the reply's lease, which gives it back where the request is refused"]
pub(super) struct Taken {
    counted: Vec<(Arc<Arrival>, PerMinute)>,
}

// === impl RequestLimits ===

impl RequestLimits {
    /// Limits of which nothing is used.
    pub(super) fn new(clock: Clock) -> Self {
        Self { arrivals: DashMap::new(), made: clock.now(), clock }
    }

    /// Counts one request against the limits of its key and its tenant. With it comes the level of the tightest, if there
    /// is any limit.
    ///
    /// # Errors
    /// [`Error::RateLimited`] by any of them: then nothing is counted, and it says when all would let it pass.
    pub(super) fn take(&self, asker: Asker<'_>) -> Result<(Taken, Option<Level>), Error> {
        let mut taken = Taken::default();
        // The key goes first: a key at its limit, however often it tries, never touches what the tenant's others share.
        for (subject, limit) in self.limits(asker) {
            let arrival = self.arrival(&asker.tenant.name, &subject);
            if let Err(wait) = limit.take(&arrival) {
                taken.give_back();
                return Err(Error::RateLimited {
                    limited: Limited::Requests,
                    subject: subject.describe(&asker.tenant.name),
                    limit: limit.limit.into(),
                    retry_after: self.wait(asker).max(wait),
                });
            }
            taken.counted.push((arrival, limit));
        }
        let level = tighter(taken.counted.iter().map(|(arrival, limit)| limit.level(arrival)));
        Ok((taken, level))
    }

    /// The level of the tightest limit, if there is any.
    pub(super) fn level(&self, asker: Asker<'_>) -> Option<Level> {
        tighter(self.limits(asker).map(|(subject, limit)| limit.level(&self.arrival(&asker.tenant.name, &subject))))
    }

    /// Until all limits would let a request pass.
    fn wait(&self, asker: Asker<'_>) -> Duration {
        self.limits(asker).map(|(subject, limit)| limit.wait(&self.arrival(&asker.tenant.name, &subject))).max().unwrap_or_default()
    }

    /// The limits on a request that are configured, at this moment.
    fn limits<'a>(&self, asker: Asker<'a>) -> impl Iterator<Item = (Subject, PerMinute)> + use<'a> {
        let now = since(self.made, self.clock.now());
        asker.limits().filter_map(move |(subject, limit)| Some((subject, PerMinute { limit: limit.requests_per_minute?, now })))
    }

    fn arrival(&self, tenant: &Name, subject: &Subject) -> Arc<Arrival> {
        let name = (tenant.clone(), subject.clone());
        if let Some(arrival) = self.arrivals.get(&name) {
            return arrival.clone();
        }
        self.arrivals.entry(name).or_default().clone()
    }
}

/// Nanoseconds from `made` to `now`; those of a process's life fit into 64 bits for 584 years.
pub(super) fn since(made: Instant, now: Instant) -> u64 {
    u64::try_from(now.saturating_duration_since(made).as_nanos()).unwrap_or(u64::MAX)
}

pub(super) fn tighter(levels: impl Iterator<Item = Level>) -> Option<Level> {
    levels.min_by_key(|level| level.remaining)
}

// === impl Taken ===

impl Taken {
    fn give_back(&mut self) {
        for (arrival, limit) in self.counted.drain(..) {
            limit.give_back(&arrival);
        }
    }
}

impl Release for Taken {
    fn release(mut self: Box<Self>, end: Outcome, _: &Usage) -> Option<BoxFuture<'static, ()>> {
        if end == Outcome::Refused {
            self.give_back();
        }
        None
    }
}

#[cfg(test)]
mod tests;
