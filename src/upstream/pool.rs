//! Each thread's own connections to remotes: no lock, and an answer is read where its connection's task runs.

use super::connect::{Connection, Sender};
use super::failure::Failure;
use super::remote::Remote;
use super::request::Message;
use http::Response;
use hyper::body::Incoming;
use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use tokio::task::AbortHandle;

/// The connection that an answer comes on. Dropped before the answer's end it is cut, so that the remote notices; over
/// HTTP/2 dropping the answer itself resets its stream, and the connection goes on.
pub(super) struct Link {
    remote: Weak<Remote>,
    /// `None` once it was given back.
    sender: Option<Sender>,
    /// Of a connection that isn't shared.
    driver: Option<AbortHandle>,
}

/// One thread's connections to one remote.
#[derive(Default)]
struct Pool {
    of: Weak<Remote>,
    /// Those without a request, the latest used last.
    idle: Vec<Idle>,
    /// The one that many requests share, where the remote speaks HTTP/2.
    shared: Option<Sender>,
}

struct Idle {
    sender: Sender,
    driver: AbortHandle,
    since: Instant,
}

thread_local! {
    /// By the remote's id. Touched only between awaits.
    static POOLS: RefCell<HashMap<u64, Pool>> = RefCell::default();
}

/// A connection that waited longer for a request is closed: the other side may be about to.
const IDLE: Duration = Duration::from_secs(60);

/// Sends a message and waits for the head of its answer.
///
/// A remote may close a connection that was kept at the very moment when a message is sent on it. Then, as nothing of an
/// answer came, the message goes over a new one, once.
pub(super) async fn send(remote: &Arc<Remote>, message: &Message) -> Result<(Response<Incoming>, Link), Failure> {
    if let Some(link) = Link::kept(remote) {
        match link.send(remote, message).await {
            Err(Failure::Broke(error)) if !error.is_parse() => forget(remote.id), // the others are as old
            sent => return sent,
        }
    }
    Link::new(remote).await?.send(remote, message).await
}

// === impl Link ===

impl Link {
    /// A connection that is there already.
    fn kept(remote: &Arc<Remote>) -> Option<Self> {
        let (sender, driver) = POOLS.with_borrow_mut(|pools| pools.get_mut(&remote.id)?.take())?;
        Some(Self { remote: Arc::downgrade(remote), sender: Some(sender), driver })
    }

    async fn new(remote: &Arc<Remote>) -> Result<Self, Failure> {
        let Connection { sender, driver } = remote.connector.connect().await?;
        let of = Arc::downgrade(remote);
        let Some(shared) = sender.share() else {
            return Ok(Self { remote: of, sender: Some(sender), driver: Some(driver) });
        };
        POOLS.with_borrow_mut(|pools| Pool::of(pools, remote).shared = Some(shared));
        Ok(Self { remote: of, sender: Some(sender), driver: None })
    }

    async fn send(mut self, remote: &Remote, message: &Message) -> Result<(Response<Incoming>, Self), Failure> {
        let sender = self.sender.as_mut().expect("invariant: it wasn't given back");
        let request = message.request(remote, matches!(sender, Sender::Http2(_)));
        let response = sender.send(request).await.map_err(Failure::Broke)?;
        Ok((response, self))
    }

    /// The answer was read to its end: the connection waits for the next request.
    pub(super) fn give_back(mut self) {
        let (Some(sender), Some(driver), Some(remote)) = (self.sender.take(), self.driver.take(), self.remote.upgrade()) else { return };
        POOLS.with_borrow_mut(|pools| Pool::of(pools, &remote).idle.push(Idle { sender, driver, since: Instant::now() }));
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        if let Some(driver) = self.driver.take() {
            driver.abort();
        }
    }
}

// === impl Pool ===

impl Pool {
    /// This thread's pool of a remote. Those of remotes that are no longer configured go when a new one comes.
    fn of<'a>(pools: &'a mut HashMap<u64, Pool>, remote: &Arc<Remote>) -> &'a mut Pool {
        if !pools.contains_key(&remote.id) {
            pools.retain(|_, pool| pool.of.strong_count() > 0);
            pools.insert(remote.id, Pool { of: Arc::downgrade(remote), ..Pool::default() });
        }
        pools.get_mut(&remote.id).expect("invariant: it was inserted")
    }

    fn take(&mut self) -> Option<(Sender, Option<AbortHandle>)> {
        if let Some(shared) = self.shared.as_ref().filter(|shared| shared.is_open()) {
            return Some((shared.share()?, None));
        }
        self.shared = None;
        let young = |idle: &Idle| idle.since.elapsed() < IDLE;
        // The oldest wait at the front.
        let old = self.idle.iter().position(young).unwrap_or(self.idle.len());
        self.idle.drain(..old);
        while let Some(Idle { sender, driver, .. }) = self.idle.pop() {
            if sender.is_open() {
                return Some((sender, Some(driver)));
            }
        }
        None
    }
}

fn forget(remote: u64) {
    POOLS.with_borrow_mut(|pools| pools.remove(&remote));
}
