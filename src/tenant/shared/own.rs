//! What this process holds and has used, as Redis is to know it: said again whenever Redis may have missed or lost it.

use super::ask::{InBucket, InWindow, Refused, Settle};
use super::holds::{Holds, WindowKey};
use crate::call::Outcome;
use crate::config::Name;
use crate::tenant::need::Need;
use crate::tenant::window::Worth;
use dashmap::DashMap;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// All tenants' counters of this process.
#[derive(Debug, Default)]
pub(in crate::tenant) struct Own {
    tenants: DashMap<Name, Arc<Mutex<Counters>>>,
}

/// One tenant's.
#[derive(Debug, Default)]
pub(super) struct Counters {
    mark: Mark,
    open: HashMap<u64, Open>,
    windows: Vec<(WindowKey, Worth)>,
    /// Subjects of limits per minute, the limit, and the tokens that were ever used.
    totals: Vec<(String, u64, u64)>,
    tokens_in_flight: u64,
}

/// Tells what a look at counters has seen of reservations.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Mark {
    /// The number of the next reservation.
    pub(super) next: u64,
    /// How many were settled.
    pub(super) settled: u64,
}

#[derive(Clone, Debug)]
struct Open {
    holds: Arc<Holds>,
    worth: Worth,
}

/// What one call holds.
#[derive(Debug)]
#[must_use = "settled at the end of its call"]
pub(in crate::tenant) struct Held {
    pub(super) number: u64,
    /// Unix time of its admission by Redis's clock.
    pub(in crate::tenant) at: Duration,
    pub(in crate::tenant) max_tokens: u32,
    pub(super) holds: Arc<Holds>,
    /// Whether Redis granted it; else nobody has told Redis of it yet.
    pub(super) granted: bool,
}

/// What became of a call, for Redis.
#[derive(Debug)]
pub(in crate::tenant) struct Ended {
    pub(super) tenant: Name,
    pub(super) number: u64,
    /// How many were settled with it.
    pub(super) settled: u64,
    pub(super) granted: bool,
    pub(super) ask: Settle,
}

// === impl Own ===

impl Own {
    /// A call holds something from now on.
    pub(super) fn open(&self, need: &Need<'_>, holds: Arc<Holds>, max_tokens: u32, at: Duration, granted: bool) -> Held {
        let tenant = self.counters(&need.asker.tenant.name);
        let mut counters = lock(&tenant);
        let (number, worth) = (counters.mark.next, need.at_most(max_tokens));
        counters.mark.next += 1;
        counters.tokens_in_flight += worth.tokens;
        counters.open.insert(number, Open { holds: holds.clone(), worth });
        Held { number, at, max_tokens, holds, granted }
    }

    /// Counts what a call used. `enqueue` runs under the tenant's lock: whoever reads a sum of what was enqueued before some
    /// moment finds exactly what was settled before it.
    pub(super) fn settle(&self, need: &Need<'_>, held: &Held, used: Worth, end: Outcome, enqueue: impl FnOnce()) -> Ended {
        let name = &need.asker.tenant.name;
        let tenant = self.counters(name);
        let mut counters = lock(&tenant);
        let Open { worth, .. } =
            counters.open.remove(&held.number).unwrap_or_else(|| Open { holds: held.holds.clone(), worth: Worth::default() });
        counters.mark.settled += 1;
        counters.tokens_in_flight = counters.tokens_in_flight.saturating_sub(worth.tokens);
        let (key, model) = (&need.asker.key.name, &need.asker.model.name);
        let mut told = Vec::new();
        for (window, sum) in &mut counters.windows {
            if window.subject.counts(Some(key), model) && window.span.contains(&held.at) {
                sum.add(used);
                told.push(InWindow::new(window, *sum));
            }
        }
        let minute = held.holds.minute.iter();
        let buckets = minute.map(|(subject, limit)| {
            let total = counters.spend(subject, *limit, used.tokens);
            InBucket { subject: subject.clone(), limit: *limit, held: worth.tokens, used: used.tokens, total }
        });
        let buckets = buckets.collect();
        enqueue();
        let refused = if end == Outcome::Refused { held.holds.requests.as_slice() } else { &[] };
        let ask = Settle {
            held: held.holds.windows.iter().map(|window| InWindow::new(window, worth)).collect(),
            used: told,
            buckets,
            busy: held.holds.busy.clone(),
            refused: refused.iter().map(|(subject, limit)| Refused { subject: subject.clone(), limit: *limit }).collect(),
        };
        Ended { tenant: name.clone(), number: held.number, settled: counters.mark.settled, granted: held.granted, ask }
    }

    /// Begins to count a window, if it isn't counted yet; then `ask` runs under the tenant's lock and asks what this process
    /// used in it before, which [`found`](Self::found) is to be told.
    pub(super) fn begin<T>(&self, key: &WindowKey, ask: impl FnOnce() -> T) -> Option<T> {
        let tenant = self.counters(&key.tenant);
        let mut counters = lock(&tenant);
        if counters.windows.iter().any(|(window, _)| window == key) {
            return None;
        }
        // Requests may end long after their window; a day is more than any takes.
        let kept = key.span.start.saturating_sub(Duration::from_secs(86_400));
        counters.windows.retain(|(window, _)| window.span.end > kept);
        counters.windows.push((key.clone(), Worth::default()));
        Some(ask())
    }

    /// What this process used in a window before it was counted.
    pub(super) fn found(&self, key: &WindowKey, used: Worth) {
        let tenant = self.counters(&key.tenant);
        let mut counters = lock(&tenant);
        if let Some((_, sum)) = counters.windows.iter_mut().find(|(window, _)| window == key) {
            sum.add(used);
        }
    }

    /// A window isn't counted after all.
    pub(super) fn forget(&self, key: &WindowKey) {
        lock(&self.counters(&key.tenant)).windows.retain(|(window, _)| window != key);
    }

    /// Shows everything, one tenant after the other.
    pub(super) fn show(&self, mut to: impl FnMut(&Name, &Counters)) {
        for tenant in &self.tenants {
            to(tenant.key(), &lock(tenant.value()));
        }
    }

    /// Requests of a tenant in flight, and the tokens they hold.
    pub(super) fn in_flight(&self, tenant: &Name) -> (u64, u64) {
        self.tenants.get(tenant).map_or((0, 0), |counters| {
            let counters = lock(&counters);
            (counters.open.len() as u64, counters.tokens_in_flight)
        })
    }

    fn counters(&self, tenant: &Name) -> Arc<Mutex<Counters>> {
        if let Some(counters) = self.tenants.get(tenant) {
            return counters.clone();
        }
        self.tenants.entry(tenant.clone()).or_default().clone()
    }
}

/// A panic between two counters leaves a reservation held, never one counted twice.
fn lock(counters: &Mutex<Counters>) -> MutexGuard<'_, Counters> {
    counters.lock().unwrap_or_else(PoisonError::into_inner)
}

// === impl Counters ===

impl Counters {
    pub(super) fn mark(&self) -> Mark {
        self.mark
    }

    /// What each call in flight holds, and what that is worth.
    pub(super) fn open(&self) -> impl Iterator<Item = (&Holds, Worth)> {
        self.open.values().map(|open| (&*open.holds, open.worth))
    }

    /// What was used of each quota.
    pub(super) fn used(&self) -> impl Iterator<Item = InWindow> {
        self.windows.iter().map(|(window, sum)| InWindow::new(window, *sum))
    }

    /// Each subject of a limit per minute, the limit, and what was ever used.
    pub(super) fn totals(&self) -> &[(String, u64, u64)] {
        &self.totals
    }

    fn spend(&mut self, subject: &str, limit: u64, tokens: u64) -> u64 {
        let index = self.totals.iter().position(|(other, ..)| other == subject).unwrap_or_else(|| {
            self.totals.push((subject.to_owned(), limit, 0));
            self.totals.len() - 1
        });
        let (_, at, total) = &mut self.totals[index];
        *at = limit;
        *total += tokens;
        *total
    }
}
