//! What scripts are asked, as JSON.

use super::holds::{Holds, WindowKey};
use super::own::{Mark, Own};
use crate::config::{Amount, Money, Name};
use crate::tenant::need::{Need, size};
use crate::tenant::window::{Counted, Worth};
use serde::Serialize;
use std::collections::{BTreeMap, HashMap};
use std::num::NonZeroU32;
use std::time::Duration;

/// An amount in a window.
#[derive(Clone, Debug, Serialize)]
pub(super) struct InWindow {
    pub(super) key: String,
    stop: u64,
    tokens: u64,
    cost: u64,
}

/// What a call could use at most.
#[derive(Serialize)]
pub(super) struct Reserve {
    windows: Vec<Bounds>,
    quotas: Vec<OfQuota>,
    limits: Vec<OfLimit>,
    max_tokens: u32,
    prompt: u64,
    choices: u64,
    prompt_cost: u64,
    choice_cost: u64,
}

#[derive(Serialize)]
struct Bounds {
    key: String,
    start: u64,
    stop: u64,
}

#[derive(Serialize)]
struct OfQuota {
    /// Which of the windows, from 1.
    window: usize,
    unit: &'static str,
    amount: u64,
    /// What the prompt takes of it, and one token of each choice.
    prompt: u64,
    each: u64,
    hard: bool,
}

#[derive(Serialize)]
struct OfLimit {
    subject: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    requests_per_minute: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tokens_per_minute: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    concurrent: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tokens_per_request: Option<u64>,
}

/// What a call gives back and used.
#[derive(Debug, Serialize)]
pub(super) struct Settle {
    pub(super) held: Vec<InWindow>,
    pub(super) used: Vec<InWindow>,
    pub(super) buckets: Vec<InBucket>,
    pub(super) busy: Vec<String>,
    pub(super) refused: Vec<Refused>,
}

/// Tokens of a limit per minute.
#[derive(Debug, Serialize)]
pub(super) struct InBucket {
    pub(super) subject: String,
    pub(super) limit: u64,
    pub(super) held: u64,
    pub(super) used: u64,
    /// What this process has used in all.
    pub(super) total: u64,
}

/// A request per minute that comes back.
#[derive(Debug, Serialize)]
pub(super) struct Refused {
    pub(super) subject: String,
    pub(super) limit: u32,
}

/// Everything this process holds and has used.
#[derive(Serialize)]
pub(super) struct Join {
    #[serde(flatten)]
    terms: Terms,
    held: Vec<InWindow>,
    used: Vec<InWindow>,
    buckets: Vec<InBucket>,
    busy: Vec<Busy>,
}

#[derive(Serialize)]
struct Busy {
    subject: String,
    count: u32,
}

/// How replicas live together.
#[derive(Clone, Copy, Serialize)]
pub(super) struct Terms {
    /// Microseconds for which a Redis without data waits for replicas to come again.
    pub(super) gather: u64,
    /// How many there are, where that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) replicas: Option<NonZeroU32>,
}

/// A sign of life.
#[derive(Serialize)]
pub(super) struct Beat {
    #[serde(flatten)]
    pub(super) terms: Terms,
    /// Microseconds without one after which another replica is asked after.
    pub(super) silent: u64,
}

/// What the ledger says of a window.
#[derive(Serialize)]
pub(super) struct Seed {
    key: String,
    stop: u64,
    shares: Vec<Share>,
}

#[derive(Serialize)]
struct Share {
    replica: String,
    tokens: u64,
    cost: u64,
}

/// The end of a replica.
#[derive(Serialize)]
pub(super) struct Bury {
    pub(super) gone: String,
    /// The generation that is gone; a later one lives.
    pub(super) generation: String,
    pub(super) used: Vec<InWindow>,
}

// === impl InWindow ===

impl InWindow {
    pub(super) fn new(window: &WindowKey, worth: Worth) -> Self {
        Self { key: window.name(), stop: window.stop(), tokens: worth.tokens, cost: worth.cost.nanos() }
    }
}

// === impl Reserve ===

impl Reserve {
    pub(super) fn new(need: &Need<'_>, holds: &Holds, at: Duration) -> Self {
        // What one more token for each choice adds is what differs.
        let (prompt, one) = (need.at_most(0), need.at_most(1));
        let each = Worth { tokens: need.choices, cost: Money::from_nanos(one.cost.nanos() - prompt.cost.nanos()) };
        let tenant = need.asker.tenant;
        let quotas = need.asker.quotas().map(|(subject, quota)| {
            let counted = Counted::by(tenant, subject, quota);
            let key = WindowKey::new(&tenant.name, &counted, at);
            let window = holds.windows.iter().position(|window| *window == key).map_or(0, |index| index + 1);
            let unit = match quota.amount {
                Amount::Tokens(_) => "tokens",
                Amount::Cost(_) => "cost",
            };
            let (prompt, each) = (prompt.of(quota.amount), each.of(quota.amount));
            OfQuota { window, unit, amount: size(quota.amount), prompt, each, hard: quota.hard }
        });
        let limits = need.asker.limits().map(|(subject, limit)| OfLimit {
            subject: format!("{}|{subject}", tenant.name),
            requests_per_minute: limit.requests_per_minute,
            tokens_per_minute: limit.tokens_per_minute,
            concurrent: limit.concurrent,
            tokens_per_request: limit.tokens_per_request,
        });
        Self {
            windows: holds
                .windows
                .iter()
                .map(|window| Bounds { key: window.name(), start: window.span.start.as_secs(), stop: window.stop() })
                .collect(),
            quotas: quotas.collect(),
            limits: limits.collect(),
            max_tokens: need.max_tokens,
            prompt: need.prompt,
            choices: need.choices,
            prompt_cost: prompt.cost.nanos(),
            choice_cost: each.cost.nanos(),
        }
    }
}

// === impl Join ===

impl Join {
    /// Everything as of now, and up to where that is.
    pub(super) fn of(own: &Own, terms: Terms) -> (Self, HashMap<Name, Mark>) {
        let (mut marks, mut used) = (HashMap::new(), Vec::new());
        let mut held: BTreeMap<String, (u64, Worth)> = BTreeMap::new();
        let (mut minute, mut busy): (BTreeMap<String, InBucket>, BTreeMap<String, u32>) = (BTreeMap::new(), BTreeMap::new());
        own.show(|tenant, counters| {
            marks.insert(tenant.clone(), counters.mark());
            used.extend(counters.used());
            for (subject, limit, total) in counters.totals() {
                minute.insert(subject.clone(), InBucket { subject: subject.clone(), limit: *limit, held: 0, used: 0, total: *total });
            }
            for (holds, worth) in counters.open() {
                for window in &holds.windows {
                    held.entry(window.name()).or_insert_with(|| (window.stop(), Worth::default())).1.add(worth);
                }
                for (subject, limit) in &holds.minute {
                    let bucket = minute.entry(subject.clone());
                    let bucket = bucket.or_insert_with(|| InBucket { subject: subject.clone(), limit: 0, held: 0, used: 0, total: 0 });
                    (bucket.limit, bucket.held) = (*limit, bucket.held + worth.tokens);
                }
                for subject in &holds.busy {
                    *busy.entry(subject.clone()).or_default() += 1;
                }
            }
        });
        let held = held.into_iter().map(|(key, (stop, worth))| InWindow { key, stop, tokens: worth.tokens, cost: worth.cost.nanos() });
        let busy = busy.into_iter().map(|(subject, count)| Busy { subject, count });
        let join = Self { terms, held: held.collect(), used, buckets: minute.into_values().collect(), busy: busy.collect() };
        (join, marks)
    }
}

// === impl Seed ===

impl Seed {
    pub(super) fn new(window: &WindowKey, shares: &[(i64, Worth)]) -> Self {
        let share =
            |(replica, worth): &(i64, Worth)| Share { replica: replica.to_string(), tokens: worth.tokens, cost: worth.cost.nanos() };
        Self { key: window.name(), stop: window.stop(), shares: shares.iter().map(share).collect() }
    }
}

// === impl Settle ===

impl Settle {
    /// Leaves only what was used: Redis never heard that it was held.
    pub(super) fn forget_holds(&mut self) {
        self.held.clear();
        self.busy.clear();
        self.refused.clear();
        self.buckets.iter_mut().for_each(|bucket| bucket.held = 0);
    }
}
