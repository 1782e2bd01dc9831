//! A remote server that does as it is told, byte by byte: what clients of real ones run into.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

/// What happens once a request was read.
#[derive(Clone)]
pub(crate) enum Deed {
    /// These bytes are sent, and the connection is closed.
    Say(Vec<u8>),
    /// These bytes are sent, and the connection stays open.
    SayAndWait(Vec<u8>),
    /// The first bytes once, then the second again and again until so many were sent or the other side has gone.
    Repeat(Vec<u8>, Vec<u8>, usize),
}

/// The scripted server. Its health checks are answered well and aren't counted.
pub(crate) struct BadUpstream {
    pub(crate) address: SocketAddr,
    deeds: Arc<Mutex<Vec<Deed>>>,
    requests: Arc<Mutex<Vec<String>>>,
    sent: Arc<AtomicUsize>,
    connections: Arc<AtomicUsize>,
    /// A connection whose request was answered has been closed by the other side.
    pub(crate) gone: mpsc::UnboundedReceiver<()>,
    /// A request has been read.
    pub(crate) asked: mpsc::UnboundedReceiver<()>,
}

struct Served {
    deeds: Arc<Mutex<Vec<Deed>>>,
    requests: Arc<Mutex<Vec<String>>>,
    sent: Arc<AtomicUsize>,
    gone: mpsc::UnboundedSender<()>,
    asked: mpsc::UnboundedSender<()>,
}

// === impl BadUpstream ===

impl BadUpstream {
    /// Does this deed for every request.
    pub(crate) async fn always(deed: Deed) -> Self {
        Self::each(vec![deed]).await
    }

    /// Does one deed after the other, and the last for ever.
    pub(crate) async fn each(deeds: Vec<Deed>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let address = listener.local_addr().expect("it is bound");
        let (tell_gone, gone) = mpsc::unbounded_channel();
        let (tell_asked, asked) = mpsc::unbounded_channel();
        let mut deeds = deeds;
        deeds.reverse();
        let (deeds, requests, sent) = (Arc::new(Mutex::new(deeds)), Arc::<Mutex<Vec<String>>>::default(), Arc::<AtomicUsize>::default());
        let served =
            Arc::new(Served { deeds: deeds.clone(), requests: requests.clone(), sent: sent.clone(), gone: tell_gone, asked: tell_asked });
        let connections = Arc::<AtomicUsize>::default();
        let counted = connections.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                counted.fetch_add(1, SeqCst);
                let served = served.clone();
                tokio::spawn(async move { served.connection(stream).await });
            }
        });
        Self { address, deeds, requests, sent, connections, gone, asked }
    }

    /// From now on it does this.
    pub(crate) fn changes_to(&self, deed: Deed) {
        *self.deeds.lock().expect("nothing panicked") = vec![deed];
    }

    /// Heads and bodies of the requests so far.
    pub(crate) fn requests(&self) -> Vec<String> {
        self.requests.lock().expect("nothing panicked").clone()
    }

    /// Connections that were taken.
    pub(crate) fn connections(&self) -> usize {
        self.connections.load(SeqCst)
    }

    /// Bytes of repeated deeds that were taken.
    pub(crate) fn sent(&self) -> usize {
        self.sent.load(SeqCst)
    }
}

// === impl Served ===

impl Served {
    async fn connection(&self, mut stream: TcpStream) {
        while let Some(request) = read_request(&mut stream).await {
            if request.starts_with("GET ") {
                if stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").await.is_err() {
                    return;
                }
                continue;
            }
            self.requests.lock().expect("nothing panicked").push(request);
            self.asked.send(()).ok();
            let deed = {
                let mut deeds = self.deeds.lock().expect("nothing panicked");
                if deeds.len() > 1 { deeds.pop() } else { deeds.last().cloned() }
            };
            match deed.expect("there is a deed") {
                Deed::Say(bytes) => {
                    stream.write_all(&bytes).await.ok();
                    stream.shutdown().await.ok();
                    return;
                }
                Deed::SayAndWait(bytes) => {
                    if stream.write_all(&bytes).await.is_err() {
                        break;
                    }
                }
                Deed::Repeat(first, again, most) => {
                    stream.write_all(&first).await.ok();
                    let mut sent = 0;
                    while sent < most && stream.write_all(&again).await.is_ok() {
                        sent += again.len();
                        self.sent.fetch_add(again.len(), SeqCst);
                    }
                    break;
                }
            }
        }
        self.gone.send(()).ok();
    }
}

/// One request; `None` where the other side has gone.
async fn read_request(stream: &mut TcpStream) -> Option<String> {
    let mut read = Vec::new();
    let mut piece = [0; 4096];
    loop {
        if let Some(end) = read.windows(4).position(|four| four == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&read[..end]).to_ascii_lowercase();
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).and_then(|length| length.parse().ok());
            if read.len() >= end + 4 + length.unwrap_or(0_usize) {
                return String::from_utf8(read).ok();
            }
        }
        match stream.read(&mut piece).await {
            Ok(0) | Err(_) => return None,
            Ok(bytes) => read.extend_from_slice(&piece[..bytes]),
        }
    }
}

// === answers ===

/// The head of a stream that ends with its connection.
pub(crate) const HEAD: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n";

/// A chunk of a chat answer.
pub(crate) fn chunk(text: &str) -> String {
    format!("data: {}\n\n", serde_json::json!({ "choices": [{ "index": 0, "delta": { "content": text }, "finish_reason": null }] }))
}

/// The chunk that ends a chat answer.
pub(crate) fn finish(reason: &str) -> String {
    format!("data: {}\n\n", serde_json::json!({ "choices": [{ "index": 0, "delta": {}, "finish_reason": reason }] }))
}

/// The chunk of the usage.
pub(crate) fn usage(prompt: u32, completion: u32) -> String {
    let usage = serde_json::json!({ "prompt_tokens": prompt, "completion_tokens": completion });
    format!("data: {}\n\n", serde_json::json!({ "choices": [], "usage": usage }))
}

pub(crate) const DONE: &str = "data: [DONE]\n\n";

/// A stream of these events.
pub(crate) fn stream(events: &[&str]) -> Deed {
    Deed::Say(format!("{HEAD}{}", events.concat()).into_bytes())
}

/// An answer in one piece.
pub(crate) fn answer(status: &str, headers: &str, body: &str) -> Deed {
    Deed::Say(format!("HTTP/1.1 {status}\r\n{headers}content-length: {}\r\nconnection: close\r\n\r\n{body}", body.len()).into_bytes())
}

/// A good and short answer.
pub(crate) fn good() -> Deed {
    stream(&[&chunk("Hel"), &chunk("lo"), &finish("stop"), &usage(5, 2), DONE])
}
