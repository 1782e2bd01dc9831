//! One row of the ledger: one request.

use crate::call::{Outcome, Record, Usage};
use crate::config::{Money, Name, Prices};
use std::time::Duration;

/// A request that holds something, and whose end will be a row.
#[derive(Debug)]
pub(in crate::tenant) struct Open {
    /// Its number in this process.
    pub(in crate::tenant) seq: u64,
    /// Unix time of its admission.
    pub(in crate::tenant) at: Duration,
    pub(in crate::tenant) tenant: Name,
    pub(in crate::tenant) key: Option<Name>,
    pub(in crate::tenant) model: Name,
    pub(in crate::tenant) prices: Prices,
    /// Where the rest is noted: variant, backend, configuration and what was used so far.
    pub(in crate::tenant) record: Record,
}

/// A request's bill.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::tenant) struct Row {
    pub(super) seq: u64,
    /// Unix time of its admission.
    pub(super) at: Duration,
    pub(super) request: String,
    pub(super) tenant: Name,
    pub(super) key: Option<Name>,
    pub(super) model: Name,
    pub(super) rule: Option<Name>,
    pub(super) variant: Option<Name>,
    pub(super) backend: Option<Name>,
    pub(super) usage: Usage,
    pub(super) cost: Money,
    pub(super) outcome: &'static str,
    pub(super) config: u64,
}

// === impl Open ===

impl Open {
    /// The row as of now, with this outcome.
    pub(in crate::tenant) fn row(&self, outcome: &'static str) -> Row {
        let notes = self.record.lock();
        Row {
            seq: self.seq,
            at: self.at,
            request: notes.id.clone(),
            tenant: self.tenant.clone(),
            key: self.key.clone(),
            model: self.model.clone(),
            rule: notes.rule.clone(),
            variant: notes.variant.clone(),
            backend: notes.backend.clone(),
            usage: notes.usage,
            cost: notes.usage.cost(&self.prices),
            outcome,
            config: notes.config_version,
        }
    }
}

// === impl Row ===

impl Row {
    /// What it used.
    pub(in crate::tenant) fn usage(&self) -> &Usage {
        &self.usage
    }
}

/// An outcome as rows name it.
pub(in crate::tenant) fn outcome(end: Outcome) -> &'static str {
    match end {
        Outcome::Done => "done",
        Outcome::Refused => "refused",
        Outcome::Error => "error",
        Outcome::Deadline => "deadline",
        Outcome::ClientGone => "client_gone",
        Outcome::Panic => "panic",
    }
}
