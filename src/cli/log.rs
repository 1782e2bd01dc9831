//! Log lines on stderr.

use crate::config::{Log, LogFormat};
use std::io::{IsTerminal, stderr};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

/// Starts logging, from `info` up unless `RUST_LOG` says otherwise: lines for people, or one JSON object a line.
pub(super) fn start(log: &Log) {
    let mut filter = EnvFilter::builder().with_default_directive(LevelFilter::INFO.into()).from_env_lossy();
    if !log.requests {
        filter = filter.add_directive("request=off".parse().expect("invariant: this is a directive"));
    }
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(stderr);
    match log.format {
        LogFormat::Text => lines.with_ansi(stderr().is_terminal()).init(),
        LogFormat::Json => lines.json().flatten_event(true).init(),
    }
}
