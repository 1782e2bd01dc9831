//! Limits and quotas that replicas share: Redis counts, each operation one script, by Redis's own clock.
//!
//! A thread of its own talks to Redis. What this process holds and has used it keeps itself ([`own`]), and says all of it
//! whenever it joins: at its start, and after Redis, a connection or an answer was lost. So nothing is lost or counted twice,
//! whatever Redis still knew.

mod answer;
mod ask;
mod flight;
mod holds;
mod line;
mod link;
mod loss;
mod own;
mod scripts;

use super::asked::Asked;
use super::ledger::{Inquiry, LedgerError};
use super::local::{Levels, Local};
use super::need::Need;
use super::window::{Counted, Worth};
use crate::call::{Error, Outcome};
use crate::clock::Clock;
use crate::config::{Name, OnStoreLoss, Secret, Store};
use futures_util::future::BoxFuture;
use holds::{Holds, WindowKey};
use link::{Command, Link};
use loss::Loss;
use metrics::Gauge;
use own::Own;
use std::num::NonZeroU32;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

/// When a refusal for a lost store is worth another try.
const RETRY: Duration = Duration::from_secs(1);

/// The handle of shared limits.
pub(super) struct Shared {
    commands: mpsc::UnboundedSender<Command>,
    own: Arc<Own>,
    loss: Arc<Loss>,
    on_store_loss: OnStoreLoss,
    replicas: NonZeroU32,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// What a call holds until it ends.
#[derive(Debug)]
pub(super) struct Held {
    own: own::Held,
    /// What it holds of this process's share, where Redis was lost.
    alone: Option<(Arc<Local>, Asked, super::local::Held)>,
}

/// Why limits can't be shared.
#[derive(Debug, thiserror::Error)]
pub enum SharedError {
    /// Redis says no, or isn't there.
    #[error("{0}")]
    Redis(#[from] redis::RedisError),
    /// The thread can't be started.
    #[error("its thread: {0}")]
    Thread(std::io::Error),
    /// The thread has ended.
    #[error("it is closed")]
    Closed,
    /// The ledger doesn't say what was used.
    #[error("what was used before: {0}")]
    Ledger(#[from] LedgerError),
}

/// A reservation that is asked for; given back if nobody takes it.
struct Asking<'a> {
    shared: &'a Shared,
    asked: &'a Asked,
    answer: oneshot::Receiver<link::Verdict>,
}

// === impl Shared ===

impl Shared {
    /// Connects to Redis and joins those who share it. Blocks until all is known that they hold and have used.
    ///
    /// # Errors
    /// Redis can't be reached or used.
    pub(super) fn open(
        url: &Secret,
        store: &Store,
        clock: Clock,
        replica: i64,
        inquiry: Option<Inquiry>,
        shown: Gauge,
    ) -> Result<Self, SharedError> {
        let client = redis::Client::open(url.expose())?;
        let (commands, receiver) = mpsc::unbounded_channel();
        let (own, loss) = (Arc::new(Own::default()), Arc::new(Loss::new(shown, clock)));
        let link = Link::new(client, receiver, own.clone(), loss.clone(), inquiry, replica, store.replicas);
        let (opened, wait) = channel();
        let thread =
            std::thread::Builder::new().name("limits".to_owned()).spawn(move || {
                match tokio::runtime::Builder::new_current_thread().enable_all().build() {
                    Ok(runtime) => runtime.block_on(link.run(opened)),
                    Err(error) => drop(opened.send(Err(SharedError::Thread(error)))),
                }
            });
        let thread = thread.map_err(SharedError::Thread)?;
        wait.recv().map_err(|_| SharedError::Closed)??;
        let replicas = store.replicas.unwrap_or(NonZeroU32::MIN);
        Ok(Self { commands, own, loss, on_store_loss: store.on_store_loss, replicas, thread: Mutex::new(Some(thread)) })
    }

    /// Lets Redis know what was used of these quotas, before a request meets them. Where Redis is lost, the first request
    /// after does that.
    ///
    /// # Errors
    /// The ledger doesn't answer.
    pub(super) fn prepare(&self, quotas: Vec<(Name, Counted)>) -> Result<(), SharedError> {
        let now = self.loss.now();
        let windows = quotas.iter().map(|(tenant, counted)| WindowKey::new(tenant, counted, now)).collect();
        let (done, wait) = channel();
        self.tell(Command::Prepare { windows, done });
        wait.recv().unwrap_or(Ok(()))
    }

    /// Reserves what the call could use at most, and says where its limits stand.
    ///
    /// # Errors
    /// The first limit or quota that doesn't let it pass; where Redis is lost, what the configuration says.
    pub(super) async fn reserve(&self, asked: &Asked) -> (Levels, Result<Held, Error>) {
        if !self.loss.is_lost() {
            let (tell, answer) = oneshot::channel();
            self.tell(Command::Reserve { asked: asked.clone(), answer: tell });
            let mut asking = Asking { shared: self, asked, answer };
            if let Ok((levels, result)) = (&mut asking.answer).await {
                return (levels, result.map(|own| Held { own, alone: None }));
            }
        }
        let refused = Err(Error::StoreLost { retry_after: RETRY });
        match (self.on_store_loss, self.loss.alone()) {
            (OnStoreLoss::Deny, _) => (Levels::default(), refused),
            (OnStoreLoss::Allow, _) => {
                (Levels::default(), Ok(Held { own: self.hold(&asked.need(), asked.need().max_tokens), alone: None }))
            }
            // It is back just now, or was never reported lost: the next try finds it.
            (OnStoreLoss::Local, None) => (Levels::default(), refused),
            (OnStoreLoss::Local, Some(local)) => self.reserve_alone(asked, local),
        }
    }

    fn reserve_alone(&self, asked: &Asked, local: Arc<Local>) -> (Levels, Result<Held, Error>) {
        let share = self.loss.share(asked, self.replicas);
        match local.reserve(&share.need()) {
            Ok((held, levels)) => {
                let own = self.hold(&asked.need(), held.max_tokens);
                (levels, Ok(Held { own, alone: Some((local, share, held)) }))
            }
            Err(error) => {
                // What a share is too small for may pass when Redis is back.
                let is_final =
                    matches!(error, Error::QuotaSpent { .. } | Error::TooLargeForLimit { limited: crate::call::Limited::Tokens, .. });
                let error = if is_final { Error::StoreLost { retry_after: RETRY } } else { error };
                (local.levels(&share.need()), Err(error))
            }
        }
    }

    /// Holds what Redis is told of when it is back.
    fn hold(&self, need: &Need<'_>, max_tokens: u32) -> own::Held {
        let at = self.loss.now();
        self.own.open(need, Arc::new(Holds::of(need, at)), max_tokens, at, false)
    }

    /// Gives back what was held and counts what was used; the future is ready when Redis knows, or is lost. `enqueue` runs
    /// under the tenant's lock.
    pub(super) fn settle(&self, need: &Need<'_>, held: Held, used: Worth, end: Outcome, enqueue: impl FnOnce()) -> BoxFuture<'static, ()> {
        let settled = self.own.settle(need, &held.own, used, end, enqueue);
        if let Some((local, share, held)) = held.alone {
            local.settle(&share.need(), held, used, end, || {});
        }
        let (known, wait) = oneshot::channel();
        self.tell(Command::Settle { settled: Box::new(settled), known: Some(known) });
        Box::pin(async move { drop(wait.await) })
    }

    /// Requests of a tenant in flight here, and the tokens they could use at most.
    pub(super) fn in_flight(&self, tenant: &Name) -> (u64, u64) {
        self.own.in_flight(tenant)
    }

    /// The thread ends only with its handle; a command nobody takes is answered by its channel's end.
    fn tell(&self, command: Command) {
        if self.commands.send(command).is_err() {
            self.loss.lost("its thread has ended");
        }
    }
}

impl Drop for Shared {
    /// Waits until Redis knows of everything that was settled, or is lost.
    fn drop(&mut self) {
        self.commands = mpsc::unbounded_channel().0;
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if thread.is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread of shared limits panicked");
        }
    }
}

// === impl Held ===

impl Held {
    /// Unix time of its admission.
    pub(super) fn at(&self) -> Duration {
        self.own.at
    }

    /// At most so many tokens for each choice.
    pub(super) fn max_tokens(&self) -> u32 {
        self.own.max_tokens
    }
}

// === impl Asking ===

impl Drop for Asking<'_> {
    /// A client that hung up while Redis was asked holds nothing.
    fn drop(&mut self) {
        self.answer.close();
        if let Ok((_, Ok(own))) = self.answer.try_recv() {
            drop(self.shared.settle(&self.asked.need(), Held { own, alone: None }, Worth::default(), Outcome::Refused, || {}));
        }
    }
}

#[cfg(test)]
mod tests;
