//! Tenants at work: whose key is it, and how many requests may it still send.

mod accounts;
mod asked;
mod bucket;
mod keys;
mod ledger;
mod level;
mod limits;
mod local;
mod need;
mod shared;
mod subject;
mod tokens;
mod usage;
mod window;

pub use accounts::{Accounts, AccountsError, Granted, Granting, Reservation, Reserving};
pub use keys::{Credentials, Grant, Holder, KeyError, KeyState, Keys, Listed, NewKey, Source, new_key};
pub use ledger::LedgerError;
pub use local::Levels;
pub use shared::SharedError;
pub use usage::{By, UsageQuery, UsageRow};
