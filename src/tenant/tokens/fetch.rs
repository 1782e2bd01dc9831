//! Key sets at URLs: fetched in the background, again while they are used, and kept while that fails.

use super::set::KeySet;
use crate::config::Environment;
use crate::outbound::{self, redacted};
use arc_swap::ArcSwap;
use bytes::Bytes;
use http::Uri;
use http_body_util::{BodyExt, Empty, Limited};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::mpsc as queue;
use tokio::time::Instant;

/// How often a set is fetched again.
const REFRESH: Duration = Duration::from_secs(300);
/// When a fetch that failed is tried again.
const RETRY: Duration = Duration::from_secs(15);
/// Unknown keys make a set be fetched at once, `BURST` times in a row, and then so often: whoever makes up tokens can't
/// make us bother the issuer more.
const BETWEEN: Duration = Duration::from_secs(30);
const BURST: u32 = 4;
/// How long one fetch may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// Bytes of a set; real ones have some thousand.
const MOST_BYTES: usize = 1 << 20;

type Https = Client<HttpsConnector<HttpConnector>, Empty<Bytes>>;

/// All key sets at URLs. They outlive a configuration.
#[derive(Default)]
pub(in crate::tenant) struct KeySets(Mutex<Shelf>);

#[derive(Default)]
struct Shelf {
    remotes: HashMap<String, Arc<Remote>>,
    /// Starts with the first URL.
    thread: Option<Thread>,
}

struct Thread {
    remotes: queue::UnboundedSender<Watched>,
    handle: JoinHandle<()>,
}

/// The set at one URL.
pub(super) struct Remote {
    set: ArcSwap<KeySet>,
    wanted: queue::Sender<()>,
}

/// What the thread is told of a remote.
struct Watched {
    url: String,
    remote: Weak<Remote>,
    wanted: queue::Receiver<()>,
    /// Told when the first fetch has ended.
    first: mpsc::Sender<()>,
}

/// Why a set can't be had.
#[derive(Debug, thiserror::Error)]
enum FetchError {
    #[error("{0}")]
    Network(#[from] hyper_util::client::legacy::Error),
    #[error("{0}")]
    Body(Box<dyn std::error::Error + Send + Sync>),
    #[error("it answers with status {0}")]
    Status(u16),
    #[error("this is no key set: {0}")]
    Json(#[from] serde_json::Error),
    #[error("nothing came for {} s", PATIENCE.as_secs())]
    Late,
}

// === impl KeySets ===

impl KeySets {
    /// The set at this URL. A new one is fetched first, which blocks for some seconds at most.
    pub(super) fn remote(&self, url: &str) -> Arc<Remote> {
        let mut shelf = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(remote) = shelf.remotes.get(url) {
            return remote.clone();
        }
        let (wanted, wants) = queue::channel(1);
        let (first, fetched) = mpsc::channel();
        let remote = Arc::new(Remote { set: ArcSwap::default(), wanted });
        shelf.remotes.insert(url.to_owned(), remote.clone());
        let watched = Watched { url: url.to_owned(), remote: Arc::downgrade(&remote), wanted: wants, first };
        let thread = match shelf.thread.take().map_or_else(Thread::start, Ok) {
            Ok(thread) => shelf.thread.insert(thread),
            Err(error) => {
                tracing::error!(%error, "no thread to fetch the keys of tokens: such tokens aren't taken");
                return remote;
            }
        };
        // The thread lives as long as its handle, unless it panicked; then the set stays as it is.
        if thread.remotes.send(watched).is_ok() {
            let _ = fetched.recv_timeout(PATIENCE); // late or not: a set that isn't there yet is empty
        }
        remote
    }

    /// Forgets the sets at other URLs.
    pub(in crate::tenant) fn keep(&self, wanted: impl Fn(&str) -> bool) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remotes.retain(|url, _| wanted(url));
    }
}

impl Drop for KeySets {
    fn drop(&mut self) {
        let thread = self.0.get_mut().unwrap_or_else(PoisonError::into_inner).thread.take();
        if let Some(Thread { remotes, handle }) = thread {
            drop(remotes);
            if handle.join().is_err() {
                tracing::error!("the thread that fetches the keys of tokens panicked");
            }
        }
    }
}

// === impl Thread ===

impl Thread {
    fn start() -> std::io::Result<Self> {
        let (remotes, mut added) = queue::unbounded_channel::<Watched>();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let client = client();
        let handle = std::thread::Builder::new().name("jwks".to_owned()).spawn(move || {
            runtime.block_on(async {
                while let Some(watched) = added.recv().await {
                    tokio::spawn(watched.watch(client.clone()));
                }
            });
            runtime.shutdown_background(); // a name that is being looked up keeps nobody waiting
        })?;
        Ok(Self { remotes, handle })
    }
}

// === impl Remote ===

impl Remote {
    /// The set as last fetched; an empty one before.
    pub(super) fn set(&self) -> Arc<KeySet> {
        self.set.load_full()
    }

    /// A key is missing. It doesn't wait.
    pub(super) fn want(&self) {
        let _ = self.wanted.try_send(()); // where the queue is full somebody has asked already
    }
}

// === impl Watched ===

impl Watched {
    /// Keeps the set up to date until nobody uses it.
    async fn watch(mut self, client: Https) {
        let mut failing = false;
        // The moment from which fetches that were asked for would be evenly spaced: the generic cell rate algorithm.
        let mut even = Instant::now();
        loop {
            let fetched = tokio::time::timeout(PATIENCE, fetch(&client, &self.url)).await.unwrap_or(Err(FetchError::Late));
            let Some(remote) = self.remote.upgrade() else { return };
            match fetched.and_then(|text| remote.take(&text)) {
                Ok(()) => {
                    if std::mem::take(&mut failing) {
                        tracing::warn!(url = redacted::address(&self.url), "the keys of tokens can be fetched again");
                    }
                }
                Err(error) if !failing => {
                    failing = true;
                    tracing::error!(url = redacted::address(&self.url), %error, "the keys of tokens can't be fetched: those known stay in use");
                }
                Err(_) => {}
            }
            drop(remote);
            let _ = self.first.send(()); // nobody waits after the first time
            let next = Instant::now() + if failing { RETRY } else { REFRESH };
            tokio::select! {
                () = tokio::time::sleep_until(next) => {}
                wanted = self.wanted.recv() => match wanted {
                    Some(()) => {
                        let now = Instant::now();
                        tokio::time::sleep_until((even - BETWEEN * (BURST - 1)).max(now)).await;
                        even = even.max(now) + BETWEEN;
                    }
                    None => return,
                }
            }
        }
    }
}

impl Remote {
    /// Takes up what was fetched. The same text stays the same set, so that tokens checked with it stay known.
    fn take(&self, text: &str) -> Result<(), FetchError> {
        if !self.set.load().says(text) {
            self.set.store(Arc::new(KeySet::parse(text)?));
        }
        Ok(())
    }
}

async fn fetch(client: &Https, url: &str) -> Result<String, FetchError> {
    let uri: Uri = url.parse().expect("invariant: the configuration takes only addresses");
    let answer = client.get(uri).await?;
    if !answer.status().is_success() {
        return Err(FetchError::Status(answer.status().as_u16()));
    }
    let body = Limited::new(answer.into_body(), MOST_BYTES).collect().await.map_err(FetchError::Body)?.to_bytes();
    Ok(String::from_utf8_lossy(&body).into_owned())
}

/// Trusted are the web's root certificates and those of `SSL_CERT_FILE`.
fn client() -> Https {
    let mut roots = outbound::web();
    if let Some(file) = Environment::from_process().certificates
        && let Err(error) = outbound::add(&mut roots, &file)
    {
        tracing::error!(file = %file.display(), %error, "these root certificates can't be used: the web's are");
    }
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_connect_timeout(Some(PATIENCE));
    let connector =
        HttpsConnectorBuilder::new().with_tls_config(outbound::trusting(roots)).https_or_http().enable_http1().wrap_connector(tcp);
    Client::builder(TokioExecutor::new()).build(connector)
}
