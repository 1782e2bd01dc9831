//! What is noted about one request on its way, for the log line, the headers and the metrics.

use super::{Outcome, Usage};
use crate::config::Name;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A shared handle to a request's notes. `trace` makes it; every layer may write its field.
#[derive(Clone, Debug)]
pub struct Record(Arc<Mutex<Fields>>);

/// The notes themselves.
#[derive(Clone, Debug)]
pub struct Fields {
    /// The request's id, the client's own or made.
    pub id: String,
    /// When the request's head had been read.
    pub arrived: Instant,
    /// The version of the configuration that serves it.
    pub config_version: u64,
    /// Who asks, once known.
    pub tenant: Option<Name>,
    /// By which of the tenant's keys.
    pub key: Option<Name>,
    /// The configured model asked for.
    pub model: Option<Name>,
    /// The rule that chose the variant, where there are rules.
    pub rule: Option<Name>,
    /// The variant that answers.
    pub variant: Option<Name>,
    /// The variant that its rule chose, where another one has to answer instead.
    pub fallback_from: Option<Name>,
    /// The backend that took it.
    pub backend: Option<Name>,
    /// Where the requests-per-minute limit stands, from the very counter that enforces it.
    pub requests: Option<Level>,
    /// Where the tokens-per-minute limit stands, likewise.
    pub tokens: Option<Level>,
    /// Soft quotas that are passed, as `1000 tokens per day`.
    pub passed_quotas: Vec<String>,
    /// The client's `traceparent`, where it has the form of one.
    pub traceparent: Option<String>,
    /// The backends that could have taken it, and what each one offered.
    pub considered: Vec<Considered>,
    /// How often backends were asked.
    pub attempts: u32,
    /// Those that failed before they had said anything, and what they did.
    pub failed: Vec<(Name, String)>,
    /// Whether `usage` is, in part, not counted but estimated: nobody reported it.
    pub estimated: bool,
    /// When the first content left for the client.
    pub first_byte: Option<Instant>,
    /// When the first piece of its answer came from its backend.
    pub first_token: Option<Instant>,
    /// The time per output token after the first of each choice that has ended, summed up, and of how many.
    pub paces: (Duration, u32),
    /// What it used so far.
    pub usage: Usage,
    /// How it ended.
    pub outcome: Option<Outcome>,
}

/// A backend that could have taken a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Considered {
    /// Its name.
    pub backend: Name,
    /// Prompt tokens that are in its cache, where it can tell.
    pub cached_tokens: Option<u32>,
    /// Time until the call's turn would come there.
    pub queue_time: Duration,
    /// Time to compute its prompt then.
    pub prefill_time: Duration,
}

/// A limit and where it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Level {
    /// What the limit allows in one window.
    pub limit: u64,
    /// What is left of it now.
    pub remaining: u64,
    /// Until nothing of it is used.
    pub reset: Duration,
}

// === impl Record ===

impl Record {
    /// A record of a request that arrived at `arrived`.
    pub fn new(id: String, arrived: Instant, config_version: u64) -> Self {
        Self(Arc::new(Mutex::new(Fields {
            id,
            arrived,
            config_version,
            tenant: None,
            key: None,
            model: None,
            rule: None,
            variant: None,
            fallback_from: None,
            backend: None,
            requests: None,
            tokens: None,
            passed_quotas: Vec::new(),
            traceparent: None,
            considered: Vec::new(),
            attempts: 0,
            failed: Vec::new(),
            estimated: false,
            first_byte: None,
            first_token: None,
            paces: (Duration::ZERO, 0),
            usage: Usage::default(),
            outcome: None,
        })))
    }

    /// The notes, locked. Never held across an await.
    pub fn lock(&self) -> MutexGuard<'_, Fields> {
        // A panic while a note was written leaves at worst one stale field.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
