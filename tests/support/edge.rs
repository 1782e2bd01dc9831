//! The real HTTP edge on a free port, with backends that do as they are told, and a client to talk to it.

#![allow(dead_code, reason = "each test binary uses its own part of this")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use roundhouse::backend::{Backend, Offer, State};
use roundhouse::call::{Call, Error, Event, Finish, Lease, Outcome, Release, Reply, Usage};
use roundhouse::clock::Clock;
use roundhouse::config::{Config, Name};
use roundhouse::gateway::listener::bind;
use roundhouse::gateway::tls::Tls;
use roundhouse::gateway::{Gateway, Parts, Served, Stack};
use roundhouse::metrics::Metrics;
use roundhouse::route::{Experiments, Rendering};
use roundhouse::tenant::{Accounts, Credentials, Keys};
use roundhouse::text::{Text, Vocabulary};
use serde_json::Value;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::mpsc;

/// A key of the tenant acme, which may use `tiny` and `twin`.
pub(crate) const KEY: &str = "rh_the-key-of-acme-that-no-log-may-show";
/// A key of acme that has no requests left.
pub(crate) const SPENT_KEY: &str = "rh_the-spent-key-of-acme";
/// A key of the tenant other, which may only use `twin`, ten times a minute.
pub(crate) const OTHER_KEY: &str = "rh_the-key-of-other";
/// Tokens a sequence may have; every byte of a prompt is one.
pub(crate) const CONTEXT: u32 = 40_000;
/// How long the gateway waits for open requests.
pub(crate) const DRAIN: Duration = Duration::from_secs(20);

const TEMPLATE: &str = "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}\
     {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

type Script = dyn Fn(Call) -> BoxFuture<'static, Result<Reply, Error>> + Send + Sync;

/// A backend that answers as its script says.
pub(crate) struct Scripted {
    pub state: Mutex<State>,
    pub cost: Mutex<Duration>,
    script: Box<Script>,
    calls: Mutex<Vec<Call>>,
}

// === impl Scripted ===

impl Scripted {
    pub(crate) fn new<F>(script: impl Fn(Call) -> F + Send + Sync + 'static) -> Arc<Self>
    where
        F: Future<Output = Result<Reply, Error>> + Send + 'static,
    {
        let script = Box::new(move |call| -> BoxFuture<'static, _> { Box::pin(script(call)) });
        Arc::new(Self { state: Mutex::new(State::Ready), cost: Mutex::default(), script, calls: Mutex::default() })
    }

    /// Says these events, whatever it is asked.
    pub(crate) fn says(events: Vec<Event>) -> Arc<Self> {
        Self::new(move |_| {
            let events: Vec<_> = events.iter().cloned().map(Ok).collect();
            async move { Ok(Reply::new(futures_util::stream::iter(events))) }
        })
    }

    /// Fails with this error, whatever it is asked.
    pub(crate) fn fails(error: Error) -> Arc<Self> {
        Self::new(move |_| std::future::ready(Err(error.clone())))
    }

    pub(crate) fn calls(&self) -> Vec<Call> {
        self.calls.lock().unwrap().clone()
    }
}

impl Backend for Scripted {
    fn state(&self) -> State {
        *self.state.lock().unwrap()
    }

    fn supports(&self, _: &Call) -> Result<(), Error> {
        Ok(())
    }

    fn offer(&self, _: &Call) -> Offer {
        Offer { cached_tokens: Some(0), queue_time: *self.cost.lock().unwrap(), ..Offer::default() }
    }

    fn call(&self, call: Call) -> BoxFuture<'static, Result<Reply, Error>> {
        self.calls.lock().unwrap().push(call.clone());
        (self.script)(call)
    }
}

/// Tells how what it is held by has ended.
pub(crate) struct Ended(pub(crate) mpsc::UnboundedSender<Outcome>);

impl Release for Ended {
    fn release(self: Box<Self>, end: Outcome, _: &Usage) -> Option<BoxFuture<'static, ()>> {
        self.0.send(end).ok();
        None
    }
}

/// A backend whose replies are what is sent into `events`, and whose leases tell their ends.
pub(crate) struct Driven {
    pub backend: Arc<Scripted>,
    /// A sender for each call that has begun.
    pub begun: mpsc::UnboundedReceiver<mpsc::UnboundedSender<Result<Event, Error>>>,
    pub ended: mpsc::UnboundedReceiver<Outcome>,
}

/// A driven backend; `eager` ones give their reply at once, others never.
pub(crate) fn driven(eager: bool) -> Driven {
    let (tell_begun, begun) = mpsc::unbounded_channel();
    let (tell_ended, ended) = mpsc::unbounded_channel();
    let backend = Scripted::new(move |_| {
        let (events, mut said) = mpsc::unbounded_channel();
        let lease = Lease::on(Ended(tell_ended.clone()));
        let begun = tell_begun.clone();
        lease.hold(async move {
            begun.send(events).unwrap();
            if !eager {
                std::future::pending::<()>().await;
            }
            Ok(Reply::new(futures_util::stream::poll_fn(move |cx| said.poll_recv(cx))))
        })
    });
    Driven { backend, begun, ended }
}

pub(crate) fn text(choice: u32, text: &str) -> Event {
    Event::Text { choice, text: text.into(), ids: text.bytes().map(u32::from).collect(), logprobs: Vec::new() }
}

pub(crate) fn finish(choice: u32) -> Event {
    Event::Finish { choice, reason: Finish::Stop }
}

pub(crate) fn usage(prompt_tokens: u32, cached_tokens: u32, completion_tokens: u32) -> Event {
    Event::Usage(Usage { prompt_tokens, cached_tokens, completion_tokens, device_time: Duration::from_millis(1) })
}

/// A short answer in three pieces.
pub(crate) fn hello() -> Vec<Event> {
    vec![text(0, "Hel"), text(0, "lo"), text(0, " wörld"), finish(0), usage(9, 4, 12)]
}

/// The edge at work.
pub(crate) struct Edge {
    pub gateway: Gateway,
    pub metrics: Metrics,
    pub address: SocketAddr,
}

// === impl Edge ===

impl Edge {
    /// An edge whose model `tiny` is served by these backends as replicas, `b0` and on, and `twin` by the first.
    pub(crate) fn start(backends: &[Arc<Scripted>]) -> Self {
        Self::with("", backends)
    }

    /// The same with more lines under `[server]`.
    pub(crate) fn with(server: &str, backends: &[Arc<Scripted>]) -> Self {
        Self::open(server, None, backends)
    }

    /// The same over TLS.
    pub(crate) fn secured(tls: Arc<Tls>, backends: &[Arc<Scripted>]) -> Self {
        Self::open("", Some(tls), backends)
    }

    fn open(server: &str, tls: Option<Arc<Tls>>, backends: &[Arc<Scripted>]) -> Self {
        let names: Vec<_> = (0..backends.len()).map(|index| format!("b{index}")).collect();
        let config = Arc::new(Config::parse(&config(server, &names), Path::new("test.toml")).unwrap());
        let text = Some(Arc::new(tokenizer()));
        let rendering = Rendering { text: text.clone(), context: CONTEXT, pool_tokens: CONTEXT * 2, local: false };
        let served = |model: &roundhouse::config::Model| {
            let variants = model.variants.keys().map(|variant| (variant.clone(), rendering.clone())).collect();
            Served { text: text.clone(), variants }
        };
        let clock = Clock::system();
        let metrics = Metrics::new();
        let stack = Stack::build(Parts {
            served: config.models.iter().map(|(name, model)| (name.clone(), served(model))).collect(),
            backends: names
                .iter()
                .zip(backends)
                .map(|(name, backend)| (Name::from(name.as_str()), backend.clone() as Arc<dyn Backend>))
                .collect(),
            keys: Arc::new(Keys::new(config.clone(), &Credentials::open(&config.store, clock.clone()).unwrap())),
            accounts: Arc::new(Accounts::open(&config.store, clock.clone(), &metrics).unwrap()),
            experiments: Arc::new(Experiments::new(metrics.clone(), clock.clone())),
            metrics: metrics.clone(),
            clock,
            config,
        });
        let stack = Arc::new(arc_swap::ArcSwap::from_pointee(stack));
        let gateway = Gateway::open(bind(SocketAddr::from(([127, 0, 0, 1], 0)), 2).unwrap(), tls, stack, Arc::default(), DRAIN).unwrap();
        Self { address: gateway.address(), gateway, metrics }
    }

    /// A connection to it.
    pub(crate) async fn connect(&self) -> Client {
        connect(self.address).await
    }

    /// Sends one request on a connection of its own and reads the whole answer.
    pub(crate) async fn send(&self, request: Request<Full<Bytes>>) -> Answer {
        Answer::read(self.connect().await.sender.send_request(request).await.unwrap()).await
    }

    /// Sends JSON with acme's key.
    pub(crate) async fn post(&self, path: &str, body: Value) -> Answer {
        self.send(post(path, KEY, body)).await
    }

    /// Ends it and waits until it has ended.
    pub(crate) async fn close(self) {
        tokio::task::spawn_blocking(move || self.gateway.close()).await.unwrap();
    }
}

/// One HTTP/1.1 connection; dropping it hangs up.
pub(crate) struct Client {
    pub sender: SendRequest<Full<Bytes>>,
    connection: tokio::task::JoinHandle<()>,
}

pub(crate) async fn connect(address: SocketAddr) -> Client {
    let stream = TcpStream::connect(address).await.unwrap();
    let (sender, connection) = handshake(TokioIo::new(stream)).await.unwrap();
    Client { sender, connection: tokio::spawn(async move { drop(connection.await) }) }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.connection.abort();
    }
}

/// A whole answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Bytes,
}

// === impl Answer ===

impl Answer {
    pub(crate) async fn read(response: Response<Incoming>) -> Self {
        let (head, body) = response.into_parts();
        Self { status: head.status.as_u16(), headers: head.headers, body: body.collect().await.unwrap().to_bytes() }
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    /// Status, type, code and parameter of an error, which must have its shape.
    pub(crate) fn error(&self) -> (u16, String, String, Option<String>) {
        let body = self.json();
        let error = body["error"].as_object().unwrap_or_else(|| panic!("no error: {self:?}"));
        assert_eq!(error.keys().collect::<Vec<_>>(), ["message", "type", "param", "code"]);
        assert!(error["message"].as_str().is_some_and(|message| !message.is_empty()), "{body}");
        assert_eq!(self.header("content-type"), Some("application/json"));
        let text = |name: &str| error[name].as_str().map(str::to_owned);
        (self.status, text("type").unwrap(), text("code").unwrap(), text("param"))
    }

    /// The data of a stream's events, and whether `[DONE]` came last.
    pub(crate) fn events(&self) -> (Vec<Value>, bool) {
        let stream = std::str::from_utf8(&self.body).unwrap();
        let data: Vec<_> = stream.split_terminator("\n\n").map(|event| event.strip_prefix("data: ").unwrap()).collect();
        let done = data.last() == Some(&"[DONE]");
        let events = data[..data.len() - usize::from(done)].iter();
        (events.map(|data| serde_json::from_str(data).unwrap()).collect(), done)
    }
}

/// A request with a JSON body.
pub(crate) fn post(path: &str, key: &str, body: Value) -> Request<Full<Bytes>> {
    let request = Request::post(path).header("host", "test").header("authorization", format!("Bearer {key}"));
    request.header("content-type", "application/json").body(Full::from(body.to_string())).unwrap()
}

pub(crate) fn get(path: &str, key: &str) -> Request<Full<Bytes>> {
    Request::get(path).header("host", "test").header("authorization", format!("Bearer {key}")).body(Full::default()).unwrap()
}

fn config(server: &str, backends: &[String]) -> String {
    let shards: String = backends.iter().map(|name| format!("[shards.{name}]\nweights = \"file:none.gguf\"\n")).collect();
    let hash = |key: &str| blake3::hash(key.as_bytes()).to_hex();
    format!(
        r#"
[store]
ledger = "off"
[server]
{server}
{shards}
[models.tiny]
aliases = ["default"]
default_max_tokens = 32
variants = {{ only = {{ backends = {backends:?}, sampling = {{ temperature = 0.5, top_p = 0.25 }} }} }}
[models.twin]
variants = {{ single = {{ backends = ["b0"] }} }}
[tenants.acme]
models = ["tiny", "twin"]
keys = [
    {{ name = "ci", hash = "{}" }},
    {{ name = "spent", hash = "{}", limits = {{ requests_per_minute = 0 }} }},
]
[tenants.other]
models = ["twin"]
limits = {{ requests_per_minute = 10 }}
keys = [{{ name = "main", hash = "{}" }}]
"#,
        hash(KEY),
        hash(SPENT_KEY),
        hash(OTHER_KEY),
    )
}

/// A byte-level tokenizer without merges: a token a byte, and two special ones.
pub(crate) fn tokenizer() -> Text {
    let mut tokens: Vec<String> = byte_characters().map(String::from).collect();
    tokens.extend(["<|im_start|>".to_owned(), "<|im_end|>".to_owned()]);
    let mut types = vec![1; 256];
    types.extend([3, 3]);
    let vocabulary = Vocabulary {
        model: "gpt2".to_owned(),
        pre: "smollm".to_owned(),
        scores: Vec::new(),
        merges: Vec::new(),
        bos: None,
        eos: Some(257),
        eot: None,
        eom: None,
        unk: None,
        add_bos: false,
        add_space_prefix: false,
        tokens,
        types,
    };
    Text::new(vocabulary, Some(TEMPLATE)).unwrap()
}

/// GPT-2's stand-ins for bytes: printable ones stand for themselves, the others for characters from U+0100 on.
fn byte_characters() -> impl Iterator<Item = char> {
    let printable = |byte: u8| matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    let mut next = 0x100;
    (0..=255).map(move |byte| {
        if printable(byte) {
            return char::from(byte);
        }
        next += 1;
        char::from_u32(next - 1).unwrap()
    })
}
