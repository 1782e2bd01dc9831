//! `roundhouse keys`

use super::CliError;
use crate::clock::Clock;
use crate::config::{self, Config, Endpoint, Limit, Limits, Moment, Name, Network};
use crate::tenant::{self, Credentials, Grant, Listed, NewKey};
use serde_json::json;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

/// Make, list, revoke and rotate API keys. A server beside it knows of a change within a second.
#[derive(Debug, clap::Subcommand)]
pub(super) enum Keys {
    New(New),
    List(List),
    Revoke(Revoke),
    Rotate(Rotate),
}

/// Make a key: prints its secret, which is kept nowhere. With a configuration its hash goes into the store; without one it
/// is printed too, for the configuration.
#[derive(Debug, clap::Args)]
pub(super) struct New {
    /// The configuration file, whose store keeps the key.
    #[arg(long, value_name = "FILE", requires = "name")]
    config: Option<PathBuf>,
    /// The tenant it is for.
    #[arg(long, value_parser = Name::from_str)]
    tenant: Name,
    /// Its name, for logs and bills.
    #[arg(long, value_parser = Name::from_str, requires = "config")]
    name: Option<Name>,
    /// When it ends: 2027-01-01T00:00:00Z, or a length of time from now such as 90d.
    #[arg(long, value_name = "TIME", value_parser = expiry, requires = "config")]
    expires: Option<Moment>,
    /// The models it may ask for, separated by commas.
    #[arg(long, value_delimiter = ',', value_parser = Name::from_str, requires = "config")]
    models: Option<Vec<Name>>,
    /// The endpoints it may use: chat, completions, models.
    #[arg(long, value_delimiter = ',', value_parser = Endpoint::from_str, requires = "config")]
    endpoints: Option<Vec<Endpoint>>,
    /// The networks it may come from, such as 10.0.0.0/8.
    #[arg(long, value_delimiter = ',', value_parser = Network::from_str, requires = "config")]
    networks: Option<Vec<Network>>,
    /// Most requests a minute.
    #[arg(long, value_name = "N", requires = "config")]
    requests_per_minute: Option<u32>,
    /// Most prompt and generated tokens a minute.
    #[arg(long, value_name = "N", requires = "config")]
    tokens_per_minute: Option<u64>,
    /// Most prompt and output tokens of one request.
    #[arg(long, value_name = "N", requires = "config")]
    tokens_per_request: Option<u64>,
    /// Most requests at work at once.
    #[arg(long, value_name = "N", requires = "config")]
    concurrent: Option<u32>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// List the keys of the configuration and of its store, without their secrets.
#[derive(Debug, clap::Args)]
pub(super) struct List {
    /// The configuration file.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Only this tenant's.
    #[arg(long, value_parser = Name::from_str)]
    tenant: Option<Name>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Which key.
#[derive(Debug, clap::Args)]
struct One {
    /// The configuration file.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Whose key it is.
    #[arg(long, value_parser = Name::from_str)]
    tenant: Name,
    /// Its name.
    #[arg(long, value_parser = Name::from_str)]
    name: Name,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Revoke a key for good. One of the configuration file stays revoked until the file has another hash for it.
#[derive(Debug, clap::Args)]
pub(super) struct Revoke {
    #[command(flatten)]
    one: One,
}

/// Give a key another secret, with the same name, scope and limits.
#[derive(Debug, clap::Args)]
pub(super) struct Rotate {
    #[command(flatten)]
    one: One,
    /// How long the old secret is taken beside the new one, such as 1h; not at all without.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    overlap: Option<Duration>,
}

// === impl Keys ===

impl Keys {
    pub(super) fn run(self) -> Result<(), CliError> {
        match self {
            Keys::New(new) => new.run(),
            Keys::List(list) => list.run(),
            Keys::Revoke(Revoke { one }) => one.revoke(),
            Keys::Rotate(Rotate { one, overlap }) => one.rotate(overlap.unwrap_or_default()),
        }
    }
}

// === impl New ===

impl New {
    fn run(self) -> Result<(), CliError> {
        let Self { config, tenant, name, expires, models, endpoints, networks, json, .. } = self;
        let Self { requests_per_minute, tokens_per_minute, tokens_per_request, concurrent, .. } = self;
        let (Some(config), Some(name)) = (config, name) else { return print_for_file(&tenant, &tenant::new_key()?, json) };
        let limit = Limit { requests_per_minute, tokens_per_minute, concurrent, tokens_per_request };
        let limits = Limits { all: limit, ..Limits::default() };
        let grant = Grant { models, endpoints, networks, expires, limits };
        let key = block_on(open(&config)?.make(&tenant, &name, grant))??;
        print_secret(&tenant, &name, &key, json)
    }
}

fn print_for_file(tenant: &Name, key: &NewKey, json: bool) -> Result<(), CliError> {
    let (secret, hash) = (key.secret.expose(), blake3::Hash::from_bytes(key.hash).to_hex());
    let mut out = std::io::stdout().lock();
    if json {
        writeln!(out, "{}", json!({ "tenant": tenant, "secret": secret, "hash": hash.as_str() }))?;
    } else {
        writeln!(out, "secret  {secret}\nhash    {hash}\n")?;
        writeln!(out, "# for the configuration, with a name of your choice:\n[[tenants.\"{tenant}\".keys]]")?;
        writeln!(out, "name = \"key\"\nhash = \"{hash}\"")?;
    }
    Ok(())
}

fn print_secret(tenant: &Name, name: &Name, key: &NewKey, json: bool) -> Result<(), CliError> {
    let mut out = std::io::stdout().lock();
    if json {
        writeln!(out, "{}", json!({ "tenant": tenant, "name": name, "secret": key.secret.expose() }))?;
    } else {
        writeln!(out, "{}", key.secret.expose())?;
    }
    Ok(())
}

// === impl List ===

impl List {
    fn run(self) -> Result<(), CliError> {
        let keys = open(&self.config)?.list(self.tenant.as_ref());
        let mut out = std::io::stdout().lock();
        if self.json {
            writeln!(out, "{}", json!({ "keys": keys }))?;
            return Ok(());
        }
        let width = keys.iter().map(|key| full_name(key).len()).max().unwrap_or_default();
        for key in &keys {
            writeln!(out, "{:width$}  {:8}  {}", full_name(key), key.state.as_str(), terms(key))?;
        }
        Ok(())
    }
}

fn full_name(key: &Listed) -> String {
    format!("{}/{}", key.tenant, key.name)
}

fn terms(key: &Listed) -> String {
    let mut terms = vec![format!("in the {}", key.source.as_str())];
    for (what, at) in [("created", key.created), ("expires", key.expires), ("revoked", key.revoked)] {
        terms.extend(at.map(|at| format!("{what} {at}")));
    }
    terms.extend(key.scope.models.as_deref().map(|names| listed("models", names)));
    terms.extend(key.scope.endpoints.as_deref().map(|endpoints| listed("endpoints", endpoints)));
    terms.extend(key.scope.networks.as_deref().map(|networks| listed("networks", networks)));
    terms.join(", ")
}

fn listed(what: &str, items: &[impl ToString]) -> String {
    format!("{what} [{}]", items.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))
}

// === impl One ===

impl One {
    fn revoke(self) -> Result<(), CliError> {
        block_on(open(&self.config)?.revoke(&self.tenant, &self.name))??;
        let mut out = std::io::stdout().lock();
        if self.json {
            writeln!(out, "{}", json!({ "tenant": self.tenant, "name": self.name, "state": "revoked" }))?;
        } else {
            writeln!(out, "{}/{} is revoked", self.tenant, self.name)?;
        }
        Ok(())
    }

    fn rotate(self, overlap: Duration) -> Result<(), CliError> {
        let key = block_on(open(&self.config)?.rotate(&self.tenant, &self.name, overlap))??;
        print_secret(&self.tenant, &self.name, &key, self.json)
    }
}

fn open(file: &Path) -> Result<tenant::Keys, CliError> {
    let config = Arc::new(Config::load(file)?);
    let credentials = Credentials::open(&config.store, Clock::system())?;
    Ok(tenant::Keys::new(config, &credentials))
}

fn block_on<T>(work: impl Future<Output = T>) -> std::io::Result<T> {
    Ok(tokio::runtime::Builder::new_current_thread().build()?.block_on(work))
}

fn duration(text: &str) -> Result<Duration, String> {
    config::duration(text).ok_or_else(|| "a length of time has a unit: 500ms, 30s, 5m, 1h or 7d".to_owned())
}

fn expiry(text: &str) -> Result<Moment, String> {
    match config::duration(text) {
        Some(from_now) => Ok(Moment::from_unix(Clock::system().unix().saturating_add(from_now))),
        None => text.parse().map_err(|error: config::MomentError| format!("{error}; or a length of time from now such as 90d")),
    }
}
