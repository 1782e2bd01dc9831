//! Tenants at work: whose key is it, and how many requests may it still send.

mod keys;
mod level;
mod limits;

pub use keys::{Holder, Keys, NewKey, new_key};
pub use limits::{RequestLimits, Taken};
