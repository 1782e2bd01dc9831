//! The real server on ports of its own.

use super::Silent;
use roundhouse::config::{Config, Environment, Key, Ledger, Name, Tenant};
use roundhouse::roundhouse::{Listeners, LoadEngine, Models, Running, start};
use std::path::PathBuf;
use std::sync::Arc;

/// The secret of the key that [`config`] knows.
pub(crate) const KEY: &str = "rh_a-key-for-tests-only";

/// A running server, stopped when dropped.
pub(crate) type Server = Running;

/// The default configuration on ports of the system's choice, with one tenant `acme` whose key is [`KEY`].
pub(crate) fn config() -> Config {
    let mut config = Config::default();
    config.server.listen.set_port(0);
    config.admin.listen.set_port(0);
    config.server.threads = 1;
    config.store.ledger = Ledger::Off;
    let key = Key::new(Name::from("ci"), *blake3::hash(KEY.as_bytes()).as_bytes());
    let acme = Name::from("acme");
    config.tenants.insert(acme.clone(), Arc::new(Tenant { keys: vec![key], ..Tenant::new(acme) }));
    config
}

/// Starts a server whose engines come from `engines`.
pub(crate) fn with(config: Config, engines: impl LoadEngine + Send + 'static) -> Server {
    of_file(config, None, engines)
}

/// As [`with`], for a configuration from a file, which is watched.
pub(crate) fn of_file(config: Config, file: Option<PathBuf>, engines: impl LoadEngine + Send + 'static) -> Server {
    let listeners = Listeners::bind(&config).expect("a port of the system's choice is free");
    start(Arc::new(config), file, Box::new(engines), listeners).expect("the server starts")
}

/// Starts a server with the default model.
pub(crate) fn real() -> Server {
    let config = config();
    let models = Models::new(&config, &Environment::from_process(), &Silent).expect("the device opens");
    with(config, models)
}
