//! Whether Redis does its work, and what a process may grant by itself while it doesn't.

use super::holds::WindowKey;
use crate::clock::Clock;
use crate::config::{Amount, Key, Money, Quota, Tenant};
use crate::tenant::asked::Asked;
use crate::tenant::local::Local;
use crate::tenant::need::Need;
use crate::tenant::window::Counted;
use arc_swap::ArcSwapOption;
use metrics::Gauge;
use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Whether Redis does its work: read by every request, written by the link.
pub(super) struct Loss {
    lost: AtomicBool,
    /// 1 while it is lost.
    shown: Gauge,
    /// What this process grants by itself, from each loss on anew.
    alone: ArcSwapOption<Local>,
    /// What was used and held of a quota when Redis last said so.
    seen: Mutex<HashMap<(String, bool), (u64, u64)>>,
    /// Microseconds from this machine's clock to Redis's.
    skew: AtomicI64,
    clock: Clock,
}

// === impl Loss ===

impl Loss {
    pub(super) fn new(shown: Gauge, clock: Clock) -> Self {
        shown.set(0.0);
        let (lost, alone, seen) = (AtomicBool::new(false), ArcSwapOption::empty(), Mutex::default());
        Self { lost, shown, alone, seen, skew: AtomicI64::new(0), clock }
    }

    pub(super) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    /// Redis doesn't do its work. Said once for each time.
    pub(super) fn lost(&self, why: &str) {
        if !self.is_lost() {
            self.alone.store(Some(Arc::new(Local::new(self.clock.clone()))));
            self.lost.store(true, Ordering::Release);
            self.shown.set(1.0);
            tracing::error!("the store of limits is lost: {why}");
        }
    }

    /// Redis does its work, and knows everything this process holds and has used.
    pub(super) fn back(&self) {
        if self.lost.swap(false, Ordering::AcqRel) {
            self.alone.store(None);
            self.shown.set(0.0);
            tracing::warn!("the store of limits answers again");
        }
    }

    /// What grants calls while Redis is lost; `None` where it is back already.
    pub(super) fn alone(&self) -> Option<Arc<Local>> {
        self.alone.load_full()
    }

    /// Unix time by Redis's clock, as well as it is known.
    pub(super) fn now(&self) -> Duration {
        let unix = self.clock.unix();
        let skew = self.skew.load(Ordering::Relaxed);
        let by = Duration::from_micros(skew.unsigned_abs());
        if skew < 0 { unix.saturating_sub(by) } else { unix + by }
    }

    /// Redis says what time it is.
    pub(super) fn set(&self, now: Duration) {
        let micros = |time: Duration| i64::try_from(time.as_micros()).unwrap_or(i64::MAX);
        self.skew.store(micros(now) - micros(self.clock.unix()), Ordering::Relaxed);
    }

    /// Redis says how much of the call's quotas is used and held.
    pub(super) fn see(&self, need: &Need<'_>, at: Duration, sums: &[u64]) {
        if sums.is_empty() {
            return;
        }
        let mut seen = locked(&self.seen);
        for ((subject, quota), sum) in need.asker.quotas().zip(sums) {
            let key = WindowKey::new(&need.asker.tenant.name, &Counted::by(need.asker.tenant, subject, quota), at);
            seen.insert((key.name(), is_cost(quota)), (key.stop(), *sum));
        }
    }

    /// Forgets windows that have ended.
    pub(super) fn sweep(&self) {
        let now = self.now().as_secs();
        locked(&self.seen).retain(|_, (stop, _)| *stop > now);
    }

    /// The call as it is limited while Redis is lost: limits divided by the number of replicas, and quotas to what was left
    /// of them, divided likewise; rounded down, so that all together stay within them.
    pub(super) fn share(&self, asked: &Asked, replicas: NonZeroU32) -> Asked {
        let (at, tenant) = (self.now(), &*asked.tenant);
        let quotas = |key: Option<&Key>, quotas: &[Quota]| -> Vec<Quota> {
            let seen = locked(&self.seen);
            let share = |quota: &Quota| {
                let subject = crate::tenant::subject::Subject { key: key.map(|key| key.name.clone()), model: quota.model.clone() };
                let window = WindowKey::new(&tenant.name, &Counted::by(tenant, subject, quota), at);
                let gone = seen.get(&(window.name(), is_cost(quota))).map_or(0, |(_, sum)| *sum);
                let left = |whole: u64| whole.saturating_sub(gone) / u64::from(replicas.get());
                let amount = match quota.amount {
                    Amount::Tokens(tokens) => Amount::Tokens(left(tokens)),
                    Amount::Cost(cost) => Amount::Cost(Money::from_nanos(left(cost.nanos()))),
                };
                Quota { amount, ..quota.clone() }
            };
            quotas.iter().map(share).collect()
        };
        let key = Key {
            limits: asked.key.limits.shared_by(replicas),
            quotas: quotas(Some(&asked.key), &asked.key.quotas),
            ..Key::clone(&asked.key)
        };
        let tenant = Tenant { limits: tenant.limits.shared_by(replicas), quotas: quotas(None, &tenant.quotas), ..tenant.clone() };
        asked.of(tenant, key)
    }
}

fn is_cost(quota: &Quota) -> bool {
    matches!(quota.amount, Amount::Cost(_))
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
