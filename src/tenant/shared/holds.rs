//! What a call holds in Redis, and under which names.

use crate::config::Name;
use crate::tenant::ledger::Used;
use crate::tenant::need::Need;
use crate::tenant::subject::Subject;
use crate::tenant::window::{Counted, span};
use std::ops::Range;
use std::time::Duration;

/// A quota's counter in one window.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::tenant) struct WindowKey {
    pub(super) tenant: Name,
    pub(super) subject: Subject,
    /// Whether prompt tokens from the prefix cache count.
    pub(super) cached: bool,
    /// Unix time, whole seconds.
    pub(super) span: Range<Duration>,
}

/// What a call holds, whatever becomes of the configuration.
#[derive(Debug)]
pub(in crate::tenant) struct Holds {
    pub(super) windows: Vec<WindowKey>,
    /// Subjects that are limited to so many tokens per minute.
    pub(super) minute: Vec<(String, u64)>,
    /// Subjects that are limited to so many requests at once.
    pub(super) busy: Vec<String>,
    /// Subjects that are limited to so many requests per minute.
    pub(super) requests: Vec<(String, u32)>,
}

// === impl WindowKey ===

impl WindowKey {
    pub(super) fn new(tenant: &Name, counted: &Counted, at: Duration) -> Self {
        let span = span(counted.per, &counted.zone, at);
        Self { tenant: tenant.clone(), subject: counted.subject.clone(), cached: counted.cached, span }
    }

    /// As Redis knows it. Names hold no bars, and what counts the same in the same time is the same counter.
    pub(super) fn name(&self) -> String {
        let Self { tenant, subject, cached, span } = self;
        format!("{tenant}|{subject}|{}|{}|{}", u8::from(*cached), span.start.as_secs(), self.stop())
    }

    /// The key with this name.
    pub(super) fn parse(name: &str) -> Option<Self> {
        let [tenant, key, model, cached, start, stop] = name.split('|').collect::<Vec<_>>().try_into().ok()?;
        let name = |name: &str| (!name.is_empty()).then(|| Name::from(name));
        let at = |text: &str| text.parse().ok().map(Duration::from_secs);
        let subject = Subject { key: name(key), model: name(model) };
        Some(Self { tenant: name(tenant)?, subject, cached: cached == "1", span: at(start)?..at(stop)? })
    }

    /// Unix time of its end; the window for ever ends where doubles are still exact.
    pub(super) fn stop(&self) -> u64 {
        self.span.end.as_secs().min(1 << 40)
    }

    /// The question for what was used in it.
    pub(super) fn used(&self) -> Used {
        Used { tenant: self.tenant.to_string(), subject: self.subject.clone(), cached: self.cached, span: self.span.clone() }
    }
}

// === impl Holds ===

impl Holds {
    /// What a call at this moment holds where it is granted.
    pub(super) fn of(need: &Need<'_>, at: Duration) -> Self {
        let tenant = need.asker.tenant;
        let mut windows: Vec<WindowKey> = Vec::new();
        for (subject, quota) in need.asker.quotas() {
            let key = WindowKey::new(&tenant.name, &Counted::by(tenant, subject, quota), at);
            if !windows.contains(&key) {
                windows.push(key);
            }
        }
        let mut holds = Self { windows, minute: Vec::new(), busy: Vec::new(), requests: Vec::new() };
        for (subject, limit) in need.asker.limits() {
            let name = format!("{}|{subject}", tenant.name);
            if let Some(limit) = limit.tokens_per_minute {
                holds.minute.push((name.clone(), limit));
            }
            if limit.concurrent.is_some() {
                holds.busy.push(name.clone());
            }
            if let Some(limit) = limit.requests_per_minute {
                holds.requests.push((name, limit));
            }
        }
        holds
    }
}
