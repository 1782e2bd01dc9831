//! The main job: configuration, weights, server, until the process is told to stop.

use super::{Listeners, Models, Running, StartError, start};
use crate::config::{Config, Environment, Key, Name, Secret, Tenant};
use crate::model::source::Progress;
use crate::tenant::new_key;
use std::path::Path;
use std::sync::Arc;
use tokio::signal::unix::{self, SignalKind};

/// Why the server ended before anybody told it to.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
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

/// Serves until SIGINT or SIGTERM, then drains; a second one of these ends the process at once. SIGHUP reads the file
/// again. Without a file `config` is served with a development key that lives in memory only. `ready` hears when clients
/// may come.
///
/// # Errors
/// A part of the configuration doesn't start.
pub fn serve(
    mut config: Config,
    file: Option<&Path>,
    progress: &'static (dyn Progress + Sync),
    ready: impl FnOnce(&Running, &Config, Option<&Development>),
) -> Result<(), ServeError> {
    let development = if file.is_none() { Some(add_development_key(&mut config)?) } else { None };
    // Addresses first: a port that is taken should not cost a download.
    let listeners = Listeners::bind(&config)?;
    let models = Models::new(&config, &Environment::from_process(), progress)?;
    let config = Arc::new(config);
    let mut signals = Signals::new().map_err(ServeError::Signals)?;
    let running = start(config.clone(), file.map(Path::to_owned), Box::new(models), listeners)?;
    ready(&running, &config, development.as_ref());
    let signal = loop {
        match signals.next() {
            // A signal to stop may come while it loads.
            Signal::Reload => {
                if let Err(error) = running.reload_aside() {
                    tracing::error!(%error, "no thread for a reload");
                }
            }
            Signal::Stop(name, _) => break name,
        }
    };
    tracing::info!(signal, "stopping: what runs is finished first");
    signals.end_at_the_next_one().map_err(ServeError::Signals)?;
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

/// What the process is told.
enum Signal {
    Reload,
    /// By this signal, of this number.
    Stop(&'static str, i32),
}

/// Signals to this process, from the moment this is made.
struct Signals {
    runtime: tokio::runtime::Runtime,
    hangup: unix::Signal,
    interrupt: unix::Signal,
    terminate: unix::Signal,
}

// === impl Signals ===

impl Signals {
    fn new() -> std::io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let inside = runtime.enter();
        let hangup = unix::signal(SignalKind::hangup())?;
        let (interrupt, terminate) = (unix::signal(SignalKind::interrupt())?, unix::signal(SignalKind::terminate())?);
        drop(inside);
        Ok(Self { runtime, hangup, interrupt, terminate })
    }

    /// Waits for the next one.
    fn next(&mut self) -> Signal {
        let Self { runtime, hangup, interrupt, terminate } = self;
        runtime.block_on(async {
            tokio::select! {
                _ = hangup.recv() => Signal::Reload,
                _ = interrupt.recv() => Signal::Stop("SIGINT", SignalKind::interrupt().as_raw_value()),
                _ = terminate.recv() => Signal::Stop("SIGTERM", SignalKind::terminate().as_raw_value()),
            }
        })
    }

    /// Whoever asks again doesn't want to wait: the process ends as if it had not caught the signal.
    fn end_at_the_next_one(mut self) -> std::io::Result<()> {
        let wait = move || {
            loop {
                if let Signal::Stop(signal, number) = self.next() {
                    tracing::warn!(signal, "stopping at once: what still runs is cut");
                    std::process::exit(128 + number);
                }
            }
        };
        std::thread::Builder::new().name("signals".to_owned()).spawn(wait).map(drop)
    }
}
