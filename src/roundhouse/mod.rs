//! Builds every part in dependency order and owns start and shutdown.

mod certified;
mod control;
mod engines;
mod error;
mod fixed;
mod generate;
mod house;
mod listeners;
mod loading;
mod serve;
mod served;
mod start;
mod swap;
mod watch;

pub use engines::{Engine, LoadEngine, Models};
pub use error::StartError;
pub use generate::{Generate, GenerateError, generate};
pub use house::ReloadError;
pub use listeners::Listeners;
pub use serve::{Development, ServeError, serve};
pub use start::{Running, start};
