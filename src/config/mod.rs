//! One resolved, immutable snapshot of the configuration. Raw file → [`Config`] is the only conversion.

mod environment;
mod machine;
mod name;
mod problem;
mod raw;
mod read;
mod resolve;
mod resolved;
mod secret;
mod units;
mod weights;

pub use environment::Environment;
pub use name::{Name, NameError};
pub use problem::{ConfigError, Problem};
pub use resolved::*;
pub use secret::Secret;
pub use weights::{Weights, WeightsError};
