//! One resolved, immutable snapshot of the configuration. Raw file → [`Config`] is the only conversion.

mod name;
mod resolved;
mod secret;

pub use name::Name;
pub use resolved::*;
pub use secret::Secret;
