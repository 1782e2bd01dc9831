//! Requests per minute, of a tenant and of each of its keys. The levels belong to names, not to a configuration: a reload
//! changes what is allowed, never what was used.

use super::level::{Arrival, PerMinute};
use crate::call::{Error, Level, Limited, Outcome, Release, Usage};
use crate::clock::Clock;
use crate::config::{Name, Tenant};
use dashmap::DashMap;
use futures_util::future::BoxFuture;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The levels of all limits on requests.
#[derive(Debug)]
pub struct RequestLimits {
    arrivals: DashMap<Subject, Arc<Arrival>>,
    clock: Clock,
    made: Instant,
}

/// A request that was counted; it is given back if it is refused further down, before any work.
#[derive(Debug, Default)]
#[must_use = "belongs into the reply's lease, which gives it back where the request is refused"]
pub struct Taken {
    counted: Vec<(Arc<Arrival>, PerMinute)>,
}

/// Whose limit it is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Subject {
    Tenant(Name),
    Key(Name, Name),
}

// === impl RequestLimits ===

impl RequestLimits {
    /// Limits of which nothing is used.
    pub fn new(clock: Clock) -> Self {
        Self { arrivals: DashMap::new(), made: clock.now(), clock }
    }

    /// Counts one request of the tenant's key with this index against the key's limit and the tenant's. With it comes
    /// the level of the tighter one, if there is any limit.
    ///
    /// # Errors
    /// [`Error::RateLimited`] by either of them: then nothing is counted, and it says when both would let it pass.
    pub fn take(&self, tenant: &Tenant, key: usize) -> Result<(Taken, Option<Level>), Error> {
        let mut taken = Taken::default();
        // The key goes first: a key at its limit, however often it tries, never touches what the tenant's others share.
        for (subject, limit) in self.limits(tenant, key) {
            let arrival = self.arrival(&subject);
            if let Err(wait) = limit.take(&arrival) {
                taken.give_back();
                return Err(Error::RateLimited {
                    limited: Limited::Requests,
                    subject: subject.to_string(),
                    limit: limit.limit.into(),
                    retry_after: self.wait(tenant, key).max(wait),
                });
            }
            taken.counted.push((arrival, limit));
        }
        let level = tighter(taken.counted.iter().map(|(arrival, limit)| limit.level(arrival)));
        Ok((taken, level))
    }

    /// The level of the tighter of the two limits, if there is any.
    pub fn level(&self, tenant: &Tenant, key: usize) -> Option<Level> {
        tighter(self.limits(tenant, key).map(|(subject, limit)| limit.level(&self.arrival(&subject))))
    }

    /// Until both limits would let a request pass.
    fn wait(&self, tenant: &Tenant, key: usize) -> Duration {
        self.limits(tenant, key).map(|(subject, limit)| limit.wait(&self.arrival(&subject))).max().unwrap_or_default()
    }

    /// The limits on a request that are configured, at this moment.
    fn limits<'t>(&self, tenant: &'t Tenant, key: usize) -> impl Iterator<Item = (Subject, PerMinute)> + use<'t> {
        // Nanoseconds of a process's life fit into 64 bits for 584 years.
        let now = u64::try_from(self.clock.now().saturating_duration_since(self.made).as_nanos()).unwrap_or(u64::MAX);
        let of_key = tenant.keys.get(key).and_then(|key| {
            let limit = key.limits.requests_per_minute?;
            Some((Subject::Key(tenant.name.clone(), key.name.clone()), PerMinute { limit, now }))
        });
        let of_tenant = tenant.limits.requests_per_minute.map(|limit| (Subject::Tenant(tenant.name.clone()), PerMinute { limit, now }));
        of_key.into_iter().chain(of_tenant)
    }

    fn arrival(&self, subject: &Subject) -> Arc<Arrival> {
        if let Some(arrival) = self.arrivals.get(subject) {
            return arrival.clone();
        }
        self.arrivals.entry(subject.clone()).or_default().clone()
    }
}

fn tighter(levels: impl Iterator<Item = Level>) -> Option<Level> {
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

// === impl Subject ===

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Subject::Tenant(tenant) => write!(f, "tenant `{tenant}`"),
            Subject::Key(tenant, key) => write!(f, "key `{key}` of tenant `{tenant}`"),
        }
    }
}

#[cfg(test)]
mod tests;
