//! Server-sent events, as bytes: written, and read from others.

mod reader;

use bytes::BytesMut;

pub use reader::{Reader, TooLong};

/// Ends a stream that was answered in full.
pub const DONE: &[u8] = b"data: [DONE]\n\n";
/// A comment that keeps proxies from taking silence for death.
pub const PING: &[u8] = b": ping\n\n";

/// Appends one event to `out`; `write` appends its data, which has no line breaks (JSON has none).
pub fn event(out: &mut BytesMut, write: impl FnOnce(&mut BytesMut)) {
    out.extend_from_slice(b"data: ");
    write(out);
    out.extend_from_slice(b"\n\n");
}
