//! The main job: configuration, weights, server, until the process is told to stop.

use super::{Listeners, LoadEngine, Models, Running, StartError, start};
use crate::config::{Config, ConfigError, Environment, Key, Name, Secret, Tenant};
use crate::model::source::Progress;
use crate::tenant::new_key;
use std::path::Path;
use std::sync::Arc;

/// Why the server ended before anybody told it to.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The configuration can't be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A part doesn't start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The process can't wait for signals.
    #[error("can't wait for signals: {0}")]
    Signals(std::io::Error),
}

/// What a start without a file made up.
#[derive(Debug)]
pub struct Development {
    /// The key's secret, known to nobody else.
    pub secret: Secret,
}

/// Serves until SIGINT or SIGTERM, then drains. Without a file the built-in configuration is served with a development key
/// that lives in memory only. `ready` hears when clients may come.
///
/// # Errors
/// The configuration is wrong, or a part of it doesn't start.
pub fn serve(
    file: Option<&Path>,
    progress: &dyn Progress,
    ready: impl FnOnce(&Running, &Config, Option<&Development>),
) -> Result<(), ServeError> {
    let (mut config, mut development) = match file {
        Some(file) => (Config::load(file)?, None),
        None => (Config::default(), None),
    };
    if file.is_none() {
        development = Some(add_development_key(&mut config)?);
    }
    // Addresses first: a port that is taken should not cost a download.
    let listeners = Listeners::bind(&config)?;
    let mut models = Models::new(&config, &Environment::from_process(), progress)?;
    let config = Arc::new(config);
    let running = start(config.clone(), &mut models as &mut dyn LoadEngine, listeners)?;
    ready(&running, &config, development.as_ref());
    let signal = wait_for_signal().map_err(ServeError::Signals)?;
    tracing::info!(signal, "stopping: what runs is finished first");
    running.stop();
    Ok(())
}

fn add_development_key(config: &mut Config) -> Result<Development, StartError> {
    let key = new_key().map_err(|error| StartError::Random(error.to_string()))?;
    let name = Name::from("development");
    let tenant = Tenant { keys: vec![Key::new(name.clone(), key.hash)], ..Tenant::new(name.clone()) };
    config.tenants.insert(name, Arc::new(tenant));
    Ok(Development { secret: key.secret })
}

fn wait_for_signal() -> std::io::Result<&'static str> {
    use tokio::signal::unix::{SignalKind, signal};
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
        Ok(tokio::select! {
            _ = interrupt.recv() => "SIGINT",
            _ = terminate.recv() => "SIGTERM",
        })
    })
}
