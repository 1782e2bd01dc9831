//! One request of an experiment: counted once, however it ends.

use super::{End, Ended, Experiment};
use crate::call::{Error, Lease, Outcome, Record, Release, Reply, Usage};
use crate::clock::Clock;
use crate::config::{Name, Prices};
use futures_util::future::BoxFuture;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// A request of an experiment until it ends.
pub(in crate::route) struct Trial {
    pub(in crate::route) experiment: Arc<Experiment>,
    /// The variant that its rule gave it.
    pub(in crate::route) variant: Name,
    /// Its sticky unit.
    pub(in crate::route) unit: u64,
    pub(in crate::route) record: Record,
    pub(in crate::route) prices: Option<Prices>,
    pub(in crate::route) clock: Clock,
    /// Whether it was refused, or failed, by the server's fault.
    pub(in crate::route) failed: Arc<AtomicBool>,
}

// === impl Trial ===

impl Trial {
    /// Runs the call below and counts it when its reply ends.
    pub(in crate::route) async fn over(self, below: impl Future<Output = Result<Reply, Error>>) -> Result<Reply, Error> {
        let failed = self.failed.clone();
        let noted = async move {
            let answer = below.await;
            if let Err(error) = &answer {
                failed.store(is_ours(error), Relaxed);
            }
            answer
        };
        Lease::on(self).hold(noted).await
    }
}

/// Whether an error is the server's: what was wrong with the request, or over its limits, says nothing about a variant.
fn is_ours(error: &Error) -> bool {
    let failed = matches!(error.outcome(), Outcome::Error | Outcome::Deadline);
    failed || matches!(error, Error::Overloaded { .. } | Error::NoCapacity { .. })
}

impl Release for Trial {
    fn release(self: Box<Self>, end: Outcome, _: &Usage) -> Option<BoxFuture<'static, ()>> {
        let now = self.clock.now();
        let (ended, elsewhere) = {
            let notes = self.record.lock();
            let (sum, choices) = notes.paces;
            let ended = Ended {
                unit: self.unit,
                end: End::Answered,
                ttft: notes.first_token.map(|first| first - notes.arrived),
                tpot: (choices > 0).then(|| sum / choices.max(1)),
                latency: now - notes.arrived,
                usage: notes.usage,
                cost: self.prices.map_or(0, |prices| notes.usage.cost(&prices).nanos()),
            };
            (ended, notes.fallback_from.is_some())
        };
        let end = match end {
            Outcome::Done if elsewhere => End::Elsewhere,
            Outcome::Done => End::Answered,
            Outcome::Error | Outcome::Deadline | Outcome::Panic => End::Failed,
            Outcome::Refused if self.failed.load(Relaxed) => End::Failed,
            Outcome::Refused => return None,
            Outcome::ClientGone if elsewhere => End::Elsewhere,
            Outcome::ClientGone => End::Left,
        };
        self.experiment.count(&self.variant, &Ended { end, ..ended }, self.clock.unix());
        None
    }
}
