//! All upstreams, and the thread that asks them again and again whether they are there.

use super::failure::{Failure, UpstreamError};
use super::remote::Remote;
use super::request::Message;
use super::{Upstream, pool};
use crate::clock::Clock;
use crate::config::{Config, Name};
use crate::metrics::Metrics;
use http::StatusCode;
use http_body_util::{BodyExt, Limited};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;
use tokio::sync::mpsc;

/// The upstreams of all configurations. One whose configuration stays the same outlives a reload.
pub struct Upstreams {
    metrics: Metrics,
    clock: Clock,
    shelf: Mutex<Shelf>,
}

#[derive(Default)]
struct Shelf {
    present: BTreeMap<Name, Arc<Upstream>>,
    /// Starts with the first upstream.
    thread: Option<Thread>,
}

struct Thread {
    remotes: mpsc::UnboundedSender<Weak<Remote>>,
    handle: JoinHandle<()>,
}

/// One answer that isn't there means little; two in a row mean that nobody is there.
const STRIKES: u32 = 2;
/// Bytes that are read of an answer, so that its connection can be used again.
const ANSWER: usize = 1 << 20;

// === impl Upstreams ===

impl Upstreams {
    /// No upstreams yet.
    pub fn new(metrics: Metrics, clock: Clock) -> Self {
        Self { metrics, clock, shelf: Mutex::default() }
    }

    /// Those of a configuration. Nothing is waited for: they are taken for healthy until a check says otherwise.
    ///
    /// # Errors
    /// One can't be used as configured; then nothing changed.
    pub fn configure(&self, config: &Config) -> Result<BTreeMap<Name, Arc<Upstream>>, UpstreamError> {
        let mut shelf = self.shelf.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut upstreams, mut new) = (BTreeMap::new(), Vec::new());
        for (name, configured) in &config.upstreams {
            let upstream = match shelf.present.get(name).filter(|present| present.config() == configured) {
                Some(present) => present.clone(),
                None => {
                    let upstream = Arc::new(Upstream::new(configured.clone(), &self.metrics, self.clock.clone())?);
                    new.push(Arc::downgrade(&upstream.remote));
                    upstream
                }
            };
            upstreams.insert(name.clone(), upstream);
        }
        if !new.is_empty() {
            let thread = match shelf.thread.take() {
                Some(thread) => thread,
                None => Thread::start().map_err(UpstreamError::Thread)?,
            };
            for remote in new {
                if thread.remotes.send(remote).is_err() {
                    tracing::error!("the thread of the upstreams' health checks has ended: they are taken for healthy");
                }
            }
            shelf.thread = Some(thread);
        }
        shelf.present = upstreams.clone();
        Ok(upstreams)
    }

    /// Those of the latest configuration.
    pub fn present(&self) -> BTreeMap<Name, Arc<Upstream>> {
        self.shelf.lock().unwrap_or_else(PoisonError::into_inner).present.clone()
    }
}

impl Drop for Upstreams {
    fn drop(&mut self) {
        let thread = self.shelf.get_mut().unwrap_or_else(PoisonError::into_inner).thread.take();
        if let Some(Thread { remotes, handle }) = thread {
            drop(remotes);
            if handle.join().is_err() {
                tracing::error!("the thread of the upstreams' health checks panicked");
            }
        }
    }
}

// === impl Thread ===

impl Thread {
    fn start() -> std::io::Result<Self> {
        let (remotes, mut added) = mpsc::unbounded_channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let handle = std::thread::Builder::new().name("upstreams".to_owned()).spawn(move || {
            runtime.block_on(async {
                while let Some(remote) = added.recv().await {
                    tokio::spawn(watch(remote));
                }
            });
            runtime.shutdown_background(); // a name that is being looked up keeps nobody waiting
        })?;
        Ok(Self { remotes, handle })
    }
}

/// Checks a remote for as long as it is configured.
async fn watch(remote: Weak<Remote>) {
    let mut strikes = 0;
    loop {
        let Some(remote) = remote.upgrade() else { return };
        let (name, interval) = (remote.config.name.clone(), remote.config.health.interval);
        match check(&remote).await {
            Ok(()) => {
                if strikes >= STRIKES {
                    tracing::warn!(backend = %name, "an upstream is there again");
                }
                strikes = 0;
            }
            Err(failure) => {
                strikes += 1;
                if strikes == STRIKES {
                    tracing::error!(backend = %name, "an upstream gets no calls: at its health checks it {failure}");
                }
            }
        }
        remote.set_healthy(strikes < STRIKES);
        remote.publish();
        drop(remote);
        tokio::time::sleep(interval).await;
    }
}

/// Whoever answers is there, whatever the answer; but 5xx says that it can't do its work.
async fn check(remote: &Arc<Remote>) -> Result<(), Failure> {
    let patience = remote.config.timeouts.connect;
    let asked = async {
        let (response, link) = pool::send(remote, &Message::health(remote)).await?;
        let status = response.status();
        if Limited::new(response.into_body(), ANSWER).collect().await.is_ok() {
            link.give_back();
        }
        if status.is_server_error() && status != StatusCode::NOT_IMPLEMENTED { Err(Failure::Status(status.as_u16())) } else { Ok(()) }
    };
    tokio::time::timeout(patience, asked).await.unwrap_or(Err(Failure::Silent(patience)))
}
