//! Builds every part in dependency order and owns start and shutdown.

mod certified;
mod engines;
mod error;
mod generate;
mod listeners;
mod serve;
mod start;

pub use engines::{Engine, LoadEngine, Models};
pub use error::StartError;
pub use generate::{Generate, GenerateError, generate};
pub use listeners::Listeners;
pub use serve::{Development, ServeError, serve};
pub use start::{Running, start};
