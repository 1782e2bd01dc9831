//! The tower layers of the stack, one a file. They are always ready: nothing below queues, so `poll_ready` has nothing
//! to wait for and a clone may be called at once.

pub mod admit;
pub mod alarm;
pub mod authenticate;
pub mod deadline;
pub mod limit;
pub mod meter;
pub mod trace;

use crate::call::{Peer, Record};
use crate::tenant::Holder;

pub use admit::Admit;
pub use authenticate::Authenticate;
pub use deadline::Deadline;
pub use limit::Limit;
pub use meter::Meter;
pub use trace::Trace;

/// One request above `translate`, still in HTTP.
pub struct Incoming<B> {
    /// The request.
    pub http: http::Request<B>,
    /// Where it came from.
    pub peer: Peer,
    /// Its notes.
    pub record: Record,
    /// Who sent it; set by [`Authenticate`].
    pub holder: Option<Holder>,
}

#[cfg(test)]
mod tests;
