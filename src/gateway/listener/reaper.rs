//! Ends what waits for its client longer than it may. It looks at all connections of a thread from time to time, so that
//! none of them needs a timer of its own; for the same reason it is the ticker of requests' deadlines.

use super::Bounds;
use super::pace::{Pace, Phase};
use crate::config::Server;
use crate::layer::alarm;
use crate::metrics::ConnectionMetrics;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::task::AbortHandle;
use tokio::time::Instant;

/// The tasks of one thread that wait for clients.
pub(super) struct Reaper {
    watched: Mutex<Vec<Watched>>,
    bounds: Bounds,
    metrics: ConnectionMetrics,
}

/// A connection or a stream of one.
struct Watched {
    task: AbortHandle,
    pace: Arc<Pace>,
    phase: Phase,
    since: Instant,
}

/// tokio wakes itself up for every timer that becomes the earliest; one that is always earlier spares that for all others.
const TICK: Duration = Duration::from_millis(50);
/// Looks at a wait that often before it is too long, so none lasts longer than it may by more than this part of it.
const LOOKS: u32 = 8;
/// It looks at least so often.
const SELDOM: Duration = Duration::from_secs(1);
/// So many are no burden.
const FEW: usize = 64;

// === impl Reaper ===

impl Reaper {
    pub(super) fn new(bounds: Bounds, metrics: ConnectionMetrics) -> Arc<Self> {
        Arc::new(Self { watched: Mutex::default(), bounds, metrics })
    }

    /// Ends this task once it waits too long.
    pub(super) fn watch(&self, task: AbortHandle, pace: Arc<Pace>) {
        let phase = pace.phase();
        let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        if watched.len() == watched.capacity() {
            watched.retain(|one| !one.task.is_finished()); // they hold their memory until they are forgotten
            let alive = watched.len();
            watched.reserve(alive.max(FEW));
        }
        watched.push(Watched { task, pace, phase, since: Instant::now() });
    }

    /// Looks from time to time, for ever.
    pub(super) async fn run(self: Arc<Self>) {
        let mut tick = tokio::time::interval(TICK);
        let mut last = Instant::now();
        loop {
            let now = tick.tick().await;
            alarm::ring();
            let config = (self.bounds)();
            let bounds = &config.server;
            let shortest = bounds.head_timeout.min(bounds.keep_alive).min(bounds.write_timeout);
            if now - last >= (shortest / LOOKS).min(SELDOM) {
                last = now;
                self.look(now, bounds);
            }
        }
    }

    fn look(&self, now: Instant, bounds: &Server) {
        let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        watched.retain_mut(|one| {
            if one.task.is_finished() {
                return false;
            }
            let phase = one.pace.phase();
            if phase != one.phase {
                (one.phase, one.since) = (phase, now);
                return true;
            }
            let Some((most, why)) = phase.bound(bounds) else { return true };
            let cut = now - one.since >= most;
            if cut {
                tracing::debug!(why, "a client is cut");
                self.metrics.cut(why);
                one.task.abort();
            }
            !cut
        });
        let room = 2 * watched.len().max(FEW);
        if watched.capacity() > 2 * room {
            watched.shrink_to(room);
        }
    }
}

// === impl Phase ===

impl Phase {
    /// How long it may last, and what it is called where it lasts longer.
    fn bound(self, bounds: &Server) -> Option<(Duration, &'static str)> {
        match self {
            Phase::Head(_) => Some((bounds.head_timeout, "head_timeout")),
            Phase::Idle(_) => Some((bounds.keep_alive, "keep_alive")),
            Phase::Stalled(_) => Some((bounds.write_timeout, "write_timeout")),
            Phase::Busy => None,
        }
    }
}
