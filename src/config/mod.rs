//! One resolved, immutable snapshot of the configuration. Raw file → [`Config`] is the only conversion.

mod auth;
mod environment;
mod machine;
mod moment;
mod money;
mod name;
mod problem;
mod quota;
mod raw;
mod read;
mod resolve;
mod resolved;
mod scope;
mod secret;
mod server;
mod store;
mod tenant;
mod units;
mod upstream;
mod weights;

pub use auth::{Algorithm, Auth, Issuer, KeySource};
pub use environment::Environment;
pub use moment::{Moment, MomentError};
pub use money::{Money, MoneyError, Prices};
pub use name::{Name, NameError};
pub use problem::{ConfigError, Problem};
pub use quota::{Amount, Per, Quota, Zone};
pub use resolved::*;
pub use scope::{Endpoint, Network, NetworkError, Scope};
pub use secret::Secret;
pub use server::{ClientAuth, Http2, Server, Tls};
pub use store::{Billing, Durability, Ledger, OnStoreLoss, Store};
pub use tenant::{Class, Key, Limit, Limits, Tenant};
pub use units::duration;
pub use upstream::{BaseUrl, BaseUrlError, Health, Retries, Timeouts, Tokenizer, Upstream, UpstreamTls};
pub use weights::{Weights, WeightsError};
