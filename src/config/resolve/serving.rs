//! `[admin]` and `[devices]`.

use super::{Resolver, or};
use crate::config::units::{Address, Memory, SecretSource, Threads};
use crate::config::{Admin, Device, Isa, Log, Name, Secret, machine, raw};
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::ops::Range;
use toml::Spanned;

/// Leaves room for the rest of the machine.
const DEVICE_MEMORY: Memory = Memory::Percent(70.0);

impl Resolver<'_> {
    /// `public` is what `server.listen` says, and where if the file says so.
    pub(super) fn admin(&mut self, raw: raw::Admin, public: SocketAddr, at: Option<Range<usize>>) -> Admin {
        let span = raw.listen.as_ref().map(Spanned::span).or(at).unwrap_or_default();
        let listen = or(raw.listen, loopback(9090)).0;
        if collide(listen, public) {
            self.refuse(span.clone(), "admin.listen", format!("`server.listen` takes this port already, at {public}"));
        }
        let has_token = raw.token.is_some() || self.broken.contains("admin.token");
        if !has_token && !listen.ip().is_loopback() {
            self.refuse(span, "admin.listen", "an admin port without `admin.token` listens on a loopback address only");
        }
        let token = raw.token.and_then(|source| self.secret(source, "admin.token"));
        Admin { listen, token, tls: self.tls(raw.tls, "admin.tls") }
    }

    pub(super) fn log(&mut self, raw: raw::Log) -> Log {
        let default = Log::default();
        Log { format: or(raw.format, default.format), requests: or(raw.requests, default.requests) }
    }

    pub(super) fn devices(&mut self, raw: raw::Devices) -> BTreeMap<Name, Device> {
        let raw = raw.cpu;
        let memory = raw.memory.as_ref().map(Spanned::span).unwrap_or_default();
        let device = Device {
            threads: threads(or(raw.threads, Threads::Auto), machine::cores),
            isa: or(raw.isa, Isa::Auto),
            memory: match or(raw.memory, DEVICE_MEMORY) {
                Memory::Bytes(bytes) => bytes,
                Memory::Percent(percent) => (machine::memory() as f64 * percent / 100.0) as u64,
            },
        };
        if device.memory == 0 {
            self.refuse(memory, "devices.cpu.memory", "no weights fit into 0 bytes");
        }
        BTreeMap::from([(Name::from("cpu"), device)])
    }

    /// Fetches a secret. What it is never appears in a message.
    pub(super) fn secret(&mut self, source: Spanned<SecretSource>, key: &str) -> Option<Secret> {
        let span = source.span();
        let found = match source.into_inner() {
            SecretSource::Variable(name) => (self.variable)(&name).ok_or_else(|| format!("the environment has no variable `{name}`")),
            SecretSource::File(file) => {
                let file = self.folder.join(file);
                std::fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))
            }
        };
        // A file that holds a secret usually ends with a newline, which isn't part of it.
        let secret = found.map(|text| text.trim_end_matches(['\r', '\n']).to_owned());
        match secret {
            Ok(secret) if !secret.is_empty() => return Some(Secret::new(secret)),
            Ok(_) => self.refuse(span, key, "this secret is empty"),
            Err(message) => self.refuse(span, key, message),
        }
        None
    }
}

pub(super) fn loopback(port: u16) -> Address {
    Address((Ipv4Addr::LOCALHOST, port).into())
}

pub(super) fn threads(given: Threads, auto: fn() -> usize) -> usize {
    match given {
        Threads::Auto => auto(),
        Threads::Exactly(threads) => threads,
    }
}

/// Whether two listeners would want the same port. The system picks another one for each port 0.
fn collide(one: SocketAddr, other: SocketAddr) -> bool {
    let same_ip = one.ip() == other.ip() || one.ip().is_unspecified() || other.ip().is_unspecified();
    one.port() == other.port() && one.port() != 0 && same_ip
}
