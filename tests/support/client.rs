//! A small HTTP client: one connection a request, JSON in, JSON or events out.

use bytes::Bytes;
use http::{HeaderMap, Method, Request};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use std::net::SocketAddr;

/// Talks to one server with one key.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    address: SocketAddr,
    key: Option<String>,
}

/// A whole answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

/// An answer that is still coming.
pub(crate) struct Streaming {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    body: Incoming,
    buffer: Vec<u8>,
}

// === impl Client ===

impl Client {
    pub(crate) fn new(address: SocketAddr, key: Option<&str>) -> Self {
        Self { address, key: key.map(str::to_owned) }
    }

    /// Sends a request and returns as soon as the answer's head is there.
    pub(crate) async fn send(&self, method: Method, path: &str, headers: &[(&str, &str)], body: impl Into<Bytes>) -> Streaming {
        let io = TokioIo::new(tokio::net::TcpStream::connect(self.address).await.expect("the server listens"));
        let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await.expect("the server speaks HTTP");
        tokio::spawn(connection);
        let mut request = Request::builder().method(method).uri(path).header("host", "roundhouse");
        if let Some(key) = &self.key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::new(body.into())).expect("the request is well formed");
        let (head, body) = sender.send_request(request).await.expect("the server answers").into_parts();
        Streaming { status: head.status.as_u16(), headers: head.headers, body, buffer: Vec::new() }
    }

    /// Posts JSON and returns as soon as the answer's head is there.
    pub(crate) async fn stream(&self, path: &str, body: &Value) -> Streaming {
        self.send(Method::POST, path, &[("content-type", "application/json")], body.to_string()).await
    }

    /// Posts JSON and reads the whole answer.
    pub(crate) async fn post(&self, path: &str, body: &Value) -> Answer {
        self.stream(path, body).await.whole().await
    }

    /// Gets a path.
    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.send(Method::GET, path, &[], Bytes::new()).await.whole().await
    }
}

// === impl Answer ===

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error} in {:?}", self.body))
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().expect("headers are text"))
    }
}

// === impl Streaming ===

impl Streaming {
    pub(crate) async fn whole(self) -> Answer {
        let body = self.body.collect().await.expect("the body arrives").to_bytes();
        Answer { status: self.status, headers: self.headers, body }
    }

    /// The next event's data; comments are skipped. `None` at the end of the body.
    pub(crate) async fn next(&mut self) -> Option<String> {
        loop {
            if let Some(end) = self.buffer.windows(2).position(|two| two == b"\n\n") {
                let event: Vec<u8> = self.buffer.drain(..end + 2).collect();
                let event = String::from_utf8(event).expect("events are UTF-8");
                match event.trim_end().strip_prefix("data: ") {
                    Some(data) => return Some(data.to_owned()),
                    None => continue,
                }
            }
            let frame = self.body.frame().await?.expect("the body arrives");
            self.buffer.extend_from_slice(frame.data_ref().expect("no trailers"));
        }
    }

    /// Every chunk up to `[DONE]`, which has to come last.
    pub(crate) async fn chunks(mut self) -> Vec<Value> {
        let mut chunks = Vec::new();
        loop {
            match self.next().await.expect("the stream ends with [DONE]").as_str() {
                "[DONE]" => break,
                data => chunks.push(serde_json::from_str(data).expect("chunks are JSON")),
            }
        }
        assert_eq!(self.next().await, None, "nothing comes after [DONE]");
        chunks
    }
}
