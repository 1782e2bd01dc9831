//! Limits and quotas counted in this process. A tenant's counters lie behind one lock, so that all dimensions of a
//! reservation are checked and taken in one operation, and a refused one takes nothing.

use super::bucket::Bucket;
use super::ledger::Settled;
use super::limits::{RequestLimits, Taken, since, tighter};
use super::need::Need;
use super::subject::Subject;
use super::window::{Counted, Window, Worth};
use crate::call::{Error, Level, Limited, Outcome, Release, Usage};
use crate::clock::Clock;
use crate::config::{Name, Quota, Tenant};
use dashmap::DashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// When a request that waits for others to end is worth another try: nobody knows, and answers take about that long.
pub(super) const SOON: Duration = Duration::from_secs(1);

/// The counters of all tenants. They belong to names, not to a configuration: a reload changes what is allowed, never
/// what was used.
#[derive(Debug)]
pub(super) struct Local {
    tenants: DashMap<Name, Arc<Mutex<Counters>>>,
    requests: RequestLimits,
    clock: Clock,
    made: Instant,
}

/// One tenant's counters.
#[derive(Debug, Default)]
pub(super) struct Counters {
    /// The number of the next reservation.
    next: u64,
    buckets: Vec<(Subject, Bucket)>,
    busy: Vec<(Subject, u32)>,
    windows: Vec<Window>,
    /// Requests, and the tokens they hold.
    in_flight: (u64, u64),
}

/// What a request holds.
#[derive(Debug)]
pub(super) struct Held {
    number: u64,
    /// Unix time of its admission, which decides the windows it counts in.
    pub(super) at: Duration,
    /// At most so many tokens for each choice.
    pub(super) max_tokens: u32,
    pub(super) reserved: Worth,
    taken: Taken,
}

/// Where the tightest limits stand.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Levels {
    /// Requests per minute.
    pub requests: Option<Level>,
    /// Tokens per minute.
    pub tokens: Option<Level>,
    /// Soft quotas that are passed, as `1000 tokens per day`.
    pub passed: Vec<String>,
}

// === impl Local ===

impl Local {
    pub(super) fn new(clock: Clock) -> Self {
        Self { tenants: DashMap::new(), requests: RequestLimits::new(clock.clone()), made: clock.now(), clock }
    }

    /// Holds what `need` could use at most, with `max_tokens` lowered to what a hard quota has left.
    pub(super) fn reserve(&self, need: &Need<'_>) -> Result<(Held, Levels), Error> {
        let (now, at) = (since(self.made, self.clock.now()), self.clock.unix());
        let tenant = self.counters(&need.asker.tenant.name);
        let mut counters = lock(&tenant);
        let max_tokens = counters.within_quotas(need, at)?;
        let reserved = need.at_most(max_tokens);
        counters.within_limits(need, reserved.tokens, now)?;
        // Requests go last: they are taken as they are checked.
        let (taken, requests) = self.requests.take(need.asker)?;
        let number = counters.take(need, reserved, at);
        let levels = Levels { requests, tokens: counters.tokens(need, now), passed: counters.passed(need) };
        Ok((Held { number, at, max_tokens, reserved, taken }, levels))
    }

    /// Counts what a dead process's request turned out to have used.
    pub(super) fn settled(&self, request: &Settled) {
        let tenant = self.counters(&request.tenant);
        let mut counters = lock(&tenant);
        for window in &mut counters.windows {
            if window.span.contains(&request.at) && window.of.subject.counts(Some(&request.key), &request.model) {
                let cached = if window.of.cached { 0 } else { request.cached };
                window.used.add(Worth { tokens: request.tokens.saturating_sub(cached), cost: request.cost });
            }
        }
    }

    /// Where the limits stand, for a request that was refused.
    pub(super) fn levels(&self, need: &Need<'_>) -> Levels {
        let now = since(self.made, self.clock.now());
        let tenant = self.counters(&need.asker.tenant.name);
        let mut counters = lock(&tenant);
        Levels { requests: self.requests.level(need.asker), tokens: counters.tokens(need, now), passed: counters.passed(need) }
    }

    /// Gives back what was held and counts what was used. `enqueue` runs under the tenant's lock: whoever reads a sum of
    /// what was enqueued before some moment finds exactly what was settled before it.
    pub(super) fn settle(&self, need: &Need<'_>, held: Held, used: Worth, end: Outcome, enqueue: impl FnOnce()) {
        let now = since(self.made, self.clock.now());
        let tenant = self.counters(&need.asker.tenant.name);
        let mut counters = lock(&tenant);
        counters.settle(need, &held, used, now);
        enqueue();
        drop(counters);
        // Requests commit nothing: there is no future to wait for.
        drop(Box::new(held.taken).release(end, &Usage::default()));
    }

    /// Makes the counter of a quota if there is none; true where it is new. `enqueue` runs under the tenant's lock.
    pub(super) fn begin(&self, tenant: &Name, counted: Counted, enqueue: impl FnOnce(&Window)) {
        let (at, tenant) = (self.clock.unix(), self.counters(tenant));
        let mut counters = lock(&tenant);
        if !counters.windows.iter().any(|window| window.of == counted) {
            let window = Window::new(counted, at, counters.next);
            enqueue(&window);
            counters.windows.push(window);
        }
    }

    /// Adds what the ledger knows was used in a window before its counter was made.
    pub(super) fn found(&self, tenant: &Name, counted: &Counted, start: Duration, used: Worth) {
        let tenant = self.counters(tenant);
        let mut counters = lock(&tenant);
        if let Some(window) = counters.windows.iter_mut().find(|window| window.of == *counted && window.span.start == start) {
            window.used.add(used);
        }
    }

    /// Unix time.
    pub(super) fn now(&self) -> Duration {
        self.clock.unix()
    }

    /// Requests of a tenant in flight, and the tokens they hold.
    pub(super) fn in_flight(&self, tenant: &Name) -> (u64, u64) {
        self.tenants.get(tenant).map(|counters| lock(&counters).in_flight).unwrap_or_default()
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
    /// How many tokens each choice may have by all hard quotas.
    fn within_quotas(&mut self, need: &Need<'_>, at: Duration) -> Result<u32, Error> {
        self.roll(need, at);
        let mut max_tokens = need.max_tokens;
        for (subject, quota) in need.asker.quotas().filter(|(_, quota)| quota.hard) {
            let window = self.window(need.asker.tenant, &subject, quota, at);
            let left = need.left(quota.amount, window.used, window.reserved, max_tokens);
            let name = || (subject.describe(&need.asker.tenant.name), quota.amount.to_string(), quota.per.as_str());
            max_tokens = left.map_err(|refused| {
                let (subject, quota, per) = name();
                match refused {
                    super::need::Short::Spent => Error::QuotaSpent { subject, quota, per, resets_in: window.span.end.saturating_sub(at) },
                    super::need::Short::Reserved => Error::QuotaReserved { subject, quota, per, retry_after: SOON },
                }
            })?;
        }
        Ok(max_tokens)
    }

    fn within_limits(&mut self, need: &Need<'_>, tokens: u64, now: u64) -> Result<(), Error> {
        for (subject, limit) in need.asker.limits() {
            let name = || subject.describe(&need.asker.tenant.name);
            let too_large = |limited, limit| Error::TooLargeForLimit { limited, subject: name(), limit, asked: tokens };
            if let Some(limit) = limit.tokens_per_request.filter(|limit| tokens > *limit) {
                return Err(too_large(Limited::Request, limit));
            }
            if let Some(limit) = limit.tokens_per_minute {
                let wait = self.bucket(&subject).wait(limit, tokens, now).ok_or_else(|| too_large(Limited::Tokens, limit))?;
                if wait > Duration::ZERO {
                    return Err(Error::RateLimited { limited: Limited::Tokens, subject: name(), limit, retry_after: wait });
                }
            }
            if let Some(limit) = limit.concurrent.filter(|limit| *self.busy(&subject) >= *limit) {
                let limit = u64::from(limit);
                return Err(Error::RateLimited { limited: Limited::Concurrency, subject: name(), limit, retry_after: SOON });
            }
        }
        Ok(())
    }

    fn take(&mut self, need: &Need<'_>, reserved: Worth, at: Duration) -> u64 {
        for (subject, limit) in need.asker.limits() {
            if limit.tokens_per_minute.is_some() {
                self.bucket(&subject).reserve(reserved.tokens);
            }
            if limit.concurrent.is_some() {
                *self.busy(&subject) += 1;
            }
        }
        for window in need.windows(&mut self.windows).filter(|window| window.span.contains(&at)) {
            window.reserved.add(reserved);
        }
        self.in_flight.0 += 1;
        self.in_flight.1 += reserved.tokens;
        self.next += 1;
        self.next - 1
    }

    fn settle(&mut self, need: &Need<'_>, held: &Held, used: Worth, now: u64) {
        self.in_flight.0 = self.in_flight.0.saturating_sub(1);
        self.in_flight.1 = self.in_flight.1.saturating_sub(held.reserved.tokens);
        for (subject, limit) in need.asker.limits() {
            if let Some(limit) = limit.tokens_per_minute {
                self.bucket(&subject).settle(limit, held.reserved.tokens, used.tokens, now);
            }
            if limit.concurrent.is_some() {
                let busy = self.busy(&subject);
                *busy = busy.saturating_sub(1);
            }
        }
        for window in need.windows(&mut self.windows) {
            window.settle(held.number, held.at, held.reserved, used);
        }
    }

    fn tokens(&mut self, need: &Need<'_>, now: u64) -> Option<Level> {
        let limits = need.asker.limits().filter_map(|(subject, limit)| Some((subject, limit.tokens_per_minute?)));
        tighter(limits.map(|(subject, limit)| self.bucket(&subject).level(limit, now)))
    }

    /// Soft quotas that what is used and held passes.
    fn passed(&self, need: &Need<'_>) -> Vec<String> {
        let soft = need.asker.quotas().filter(|(_, quota)| !quota.hard);
        let passed = soft.filter(|(subject, quota)| {
            let amount = quota.amount;
            let window = self.windows.iter().find(|window| window.of.is_of(need.asker.tenant, subject, quota));
            window.is_some_and(|window| window.used.of(amount) + window.reserved.of(amount) > super::need::size(amount))
        });
        passed.map(|(_, quota)| format!("{} per {}", quota.amount, quota.per.as_str())).collect()
    }

    fn roll(&mut self, need: &Need<'_>, at: Duration) {
        for (subject, quota) in need.asker.quotas() {
            self.window(need.asker.tenant, &subject, quota, at);
        }
        for window in &mut self.windows {
            window.roll(at);
        }
    }

    fn window(&mut self, tenant: &Tenant, subject: &Subject, quota: &Quota, at: Duration) -> &mut Window {
        let found = self.windows.iter().position(|window| window.of.is_of(tenant, subject, quota));
        let index = found.unwrap_or_else(|| {
            self.windows.push(Window::new(Counted::by(tenant, subject.clone(), quota), at, self.next));
            self.windows.len() - 1
        });
        &mut self.windows[index]
    }

    fn bucket(&mut self, subject: &Subject) -> &mut Bucket {
        find_or_default(&mut self.buckets, subject)
    }

    fn busy(&mut self, subject: &Subject) -> &mut u32 {
        find_or_default(&mut self.busy, subject)
    }
}

/// A tenant has a handful of subjects: a walk is faster than a hash.
fn find_or_default<'v, T: Default>(all: &'v mut Vec<(Subject, T)>, subject: &Subject) -> &'v mut T {
    let index = all.iter().position(|(other, _)| other == subject).unwrap_or_else(|| {
        all.push((subject.clone(), T::default()));
        all.len() - 1
    });
    &mut all[index].1
}

#[cfg(test)]
mod tests;
