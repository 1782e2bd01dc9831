//! `[server]`.

use super::serving::{loopback, threads};
use super::{Resolver, or};
use crate::config::problem::join;
use crate::config::raw::{self, Given};
use crate::config::units::{Bytes, Threads, Time};
use crate::config::{ClientAuth, Http2, Server, Tls, UnknownParameters, machine};
use std::num::NonZeroU32;
use std::time::Duration;
use toml::Spanned;

/// Chat histories with long documents fit; measured peers refuse at 32 KiB to 1 MiB, which users ran into.
const MAX_BODY: u64 = 16 << 20;
/// Cookies, tokens and traces of every proxy on the way fit.
const MAX_HEAD: u64 = 64 << 10;
/// What is above costs more than it is worth: the parser's buffer is as large.
const MOST_HEAD: u64 = 1 << 20;
/// An idle connection takes about 20 KiB, so this many take less than a model.
const MAX_CONNECTIONS: u32 = 10_000;
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// The largest body in this time is 2.3 Mbit/s.
const BODY_TIMEOUT: Duration = Duration::from_secs(60);
/// As long as OpenAI's clients wait.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(600);
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);
/// Longer than load balancers keep theirs (60 s): whoever sends requests should be the one who closes.
const KEEP_ALIVE: Duration = Duration::from_secs(75);
/// A long answer ends within it; orchestrators wait about as long before they kill.
const DRAIN: Duration = Duration::from_secs(30);
const MAX_STREAMS: u32 = 256;
const PING: Duration = Duration::from_secs(30);

impl Resolver<'_> {
    pub(super) fn server(&mut self, raw: raw::Server) -> Server {
        let head = raw.max_head.as_ref().map(Spanned::span);
        let body = raw.max_body.as_ref().map(Spanned::span);
        let server = Server {
            listen: or(raw.listen, loopback(8080)).0,
            threads: threads(or(raw.threads, Threads::Auto), machine::processors),
            tls: self.tls(raw.tls, "server.tls"),
            max_connections: raw.max_connections.map_or(MAX_CONNECTIONS, |most| most.into_inner().get()) as usize,
            max_head: or(raw.max_head, Bytes(MAX_HEAD)).0,
            max_body: or(raw.max_body, Bytes(MAX_BODY)).0,
            head_timeout: self.time(raw.head_timeout, HEAD_TIMEOUT, "server.head_timeout"),
            body_timeout: self.time(raw.body_timeout, BODY_TIMEOUT, "server.body_timeout"),
            request_timeout: self.time(raw.request_timeout, REQUEST_TIMEOUT, "server.request_timeout"),
            write_timeout: self.time(raw.write_timeout, WRITE_TIMEOUT, "server.write_timeout"),
            keep_alive: self.time(raw.keep_alive, KEEP_ALIVE, "server.keep_alive"),
            drain: or(raw.drain, Time(DRAIN)).0,
            http2: Http2 {
                max_streams: raw.http2.max_streams.map_or(MAX_STREAMS, |most: Spanned<NonZeroU32>| most.into_inner().get()),
                ping: self.time(raw.http2.ping, PING, "server.http2.ping"),
            },
            unknown_parameters: or(raw.unknown_parameters, UnknownParameters::Refuse),
            show_backend: or(raw.show_backend, true),
        };
        if let (Some(span), 0) = (body, server.max_body) {
            self.refuse(span, "server.max_body", "no request fits into 0 bytes");
        }
        if let Some(span) = head.filter(|_| !(1024..=MOST_HEAD).contains(&server.max_head)) {
            self.refuse(span, "server.max_head", "a request's head may have from 1KiB to 1MiB");
        }
        server
    }

    /// How a port is encrypted; `path` is where the file says so.
    pub(super) fn tls(&mut self, raw: Option<Spanned<raw::Tls>>, path: &str) -> Option<Tls> {
        let raw = raw?;
        let (table, raw) = (raw.span(), raw.into_inner());
        if let (Some(auth), None) = (&raw.client_auth, &raw.client_ca) {
            let message = "without `client_ca` no client is asked for a certificate";
            self.refuse(auth.span(), &join(path, "client_auth"), message);
        }
        let cert = self.required(raw.cert, &table, path, "cert");
        let key = self.required(raw.key, &table, path, "key");
        Some(Tls {
            cert: self.folder.join(cert?),
            key: self.folder.join(key?),
            client_ca: raw.client_ca.map(|file| self.folder.join(file.into_inner())),
            client_auth: or(raw.client_auth, ClientAuth::default()),
        })
    }

    /// A length of time that isn't 0, which would end everything at once.
    pub(super) fn time(&mut self, given: Given<Time>, default: Duration, key: &str) -> Duration {
        let span = given.as_ref().map(Spanned::span);
        let time = or(given, Time(default)).0;
        if let Some(span) = span.filter(|_| time.is_zero()) {
            self.refuse(span, key, "this has to be longer than 0s");
        }
        time
    }
}
