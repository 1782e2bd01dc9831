//! What the router sees of whatever answers calls: an in-process shard, a remote server.

use crate::call::{Call, Error, Reply};
use crate::config::Retries;
use futures_util::future::BoxFuture;
use std::time::Duration;

/// Where a backend stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Is being loaded; takes calls when that is done.
    Loading,
    /// Takes calls.
    Ready,
    /// Has work and gets nowhere with it. Takes no new calls until it does.
    Stuck,
    /// Takes no new calls, finishes what runs.
    Draining,
    /// Gone; its calls have failed.
    Lost,
}

// === impl State ===

impl State {
    /// As status, logs and metrics name it.
    pub fn as_str(self) -> &'static str {
        match self {
            State::Loading => "loading",
            State::Ready => "ready",
            State::Stuck => "stuck",
            State::Draining => "draining",
            State::Lost => "lost",
        }
    }
}

impl std::fmt::Display for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What a call would cost at a backend, from its published state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offer {
    /// Prompt tokens that it needn't compute; none where it can't tell, as a remote.
    pub cached_tokens: Option<u32>,
    /// Sequences that run or wait there, or calls.
    pub in_flight: u32,
    /// Time to compute what isn't cached of the prompt once its turn comes.
    pub prefill_time: Duration,
    /// Time until its turn comes.
    pub queue_time: Duration,
    /// Time until the queue takes it; zero where it has room.
    pub room_in: Duration,
}

/// Answers calls.
pub trait Backend: Send + Sync {
    /// Where it stands.
    fn state(&self) -> State;

    /// Whether it can do what the call asks.
    ///
    /// # Errors
    /// Names the parameter it can't serve.
    fn supports(&self, call: &Call) -> Result<(), Error>;

    /// What the call would cost here. Reads published state only, no I/O.
    fn offer(&self, call: &Call) -> Offer;

    /// How often one call may be tried here before it has content.
    fn retries(&self) -> Retries {
        Retries::NONE
    }

    /// Starts the call. `Ok` comes with the first event at hand; until then the router may go elsewhere. Dropping the
    /// future or the reply cancels the work within one engine step.
    fn call(&self, call: Call) -> BoxFuture<'static, Result<Reply, Error>>;
}
