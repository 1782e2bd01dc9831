//! What is known of one remote, and its calls in flight.

use super::breaker::{Breaker, Pass};
use super::connect::Connector;
use super::failure::UpstreamError;
use super::recent::Recent;
use super::request::Endpoints;
use crate::api::openai::Remark;
use crate::backend::State;
use crate::call::{Call, Error};
use crate::clock::Clock;
use crate::config;
use metrics::Gauge;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// One remote server.
pub(super) struct Remote {
    /// Tells remotes apart whose names are the same before and after a reload.
    pub(super) id: u64,
    pub(super) config: Arc<config::Upstream>,
    pub(super) connector: Connector,
    pub(super) endpoints: Endpoints,
    pub(super) clock: Clock,
    breaker: Breaker,
    recent: Recent,
    in_flight: AtomicU32,
    /// As the health checks say.
    healthy: AtomicBool,
    /// 1 while it takes calls, else 0.
    gauge: Gauge,
}

/// A call's place among those in flight. What came of the call is told once; where nobody tells, its client left.
pub(super) struct Place {
    remote: Arc<Remote>,
    pass: Pass,
    asked: Instant,
    told: bool,
}

/// When it is worth another try while as many calls are in flight as may be.
const FULL: Duration = Duration::from_secs(1);
/// When it is worth another try while the breaker is open.
const BROKEN: Duration = Duration::from_secs(5);

// === impl Remote ===

impl Remote {
    /// # Errors
    /// What is configured can't be used.
    pub(super) fn new(config: Arc<config::Upstream>, gauge: Gauge, clock: Clock) -> Result<Arc<Self>, UpstreamError> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let remote = Self {
            id: NEXT.fetch_add(1, Relaxed),
            connector: Connector::new(&config)?,
            endpoints: Endpoints::new(&config)?,
            config,
            clock,
            breaker: Breaker::default(),
            recent: Recent::default(),
            in_flight: AtomicU32::new(0),
            healthy: AtomicBool::new(true),
            gauge,
        };
        remote.publish();
        Ok(Arc::new(remote))
    }

    pub(super) fn state(&self) -> State {
        if self.healthy.load(Relaxed) && self.breaker.admits(self.clock.now()) { State::Ready } else { State::Lost }
    }

    /// Shows the state to whoever reads the metrics.
    pub(super) fn publish(&self) {
        self.gauge.set(if self.state() == State::Ready { 1.0 } else { 0.0 });
    }

    pub(super) fn set_healthy(&self, healthy: bool) {
        self.healthy.store(healthy, Relaxed);
    }

    pub(super) fn in_flight(&self) -> u32 {
        self.in_flight.load(Relaxed)
    }

    /// What a call's first token takes by what was seen lately.
    pub(super) fn expected(&self) -> Duration {
        self.recent.expected(self.clock.now())
    }

    /// A remark as others may hear it: some servers repeat the credentials they were sent, and those are ours.
    pub(super) fn without_key(&self, remark: Remark) -> Remark {
        let Some(key) = &self.config.api_key else { return remark };
        Remark { message: key.hidden_in(&remark.message), param: remark.param.map(|param| key.hidden_in(&param)), ..remark }
    }

    /// Takes a place for a call.
    ///
    /// # Errors
    /// There are as many calls as may be, or the remote is left alone for a while.
    pub(super) fn enter(self: &Arc<Self>, call: &Call) -> Result<Place, Error> {
        let model = || call.model.name.to_string();
        let asked = self.clock.now();
        if self.in_flight.fetch_add(1, Relaxed) >= self.config.max_connections.get() {
            self.in_flight.fetch_sub(1, Relaxed);
            return Err(Error::Overloaded { model: model(), retry_after: FULL });
        }
        let Some(pass) = self.breaker.enter(asked) else {
            self.in_flight.fetch_sub(1, Relaxed);
            return Err(Error::NoCapacity { model: model(), retry_after: BROKEN });
        };
        Ok(Place { remote: self.clone(), pass, asked, told: false })
    }
}

// === impl Place ===

impl Place {
    /// The call has its first content.
    pub(super) fn began(&self) {
        let now = self.remote.clock.now();
        self.remote.recent.note(now.saturating_duration_since(self.asked), now);
        self.remote.breaker.began(self.pass);
    }

    /// The call was answered, or refused with a reason: the remote is there and works.
    pub(super) fn worked(mut self) {
        self.told = true;
        self.remote.breaker.worked();
    }

    /// The remote failed.
    pub(super) fn failed(mut self) {
        self.told = true;
        if self.remote.breaker.failed(self.remote.clock.now()) {
            tracing::error!(backend = %self.remote.config.name, "an upstream failed again and again: it is left alone for a while");
            self.remote.publish();
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.remote.in_flight.fetch_sub(1, Relaxed);
        if !self.told {
            self.remote.breaker.abandoned(self.pass, self.remote.clock.now());
        }
    }
}
