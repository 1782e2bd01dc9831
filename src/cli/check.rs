//! `roundhouse check`

mod allowance;
mod explain;

use super::CliError;
use crate::config::{ClientAuth, Config, ConfigError, Key, KeySource, Ledger, LimitStore, Store, Tls};
use allowance::allowance;
use std::io::{self, Write};
use std::path::PathBuf;

pub(super) use explain::ExplainError;

/// Check a configuration without starting anything: prints what would run, or every problem with its line and column.
#[derive(Debug, clap::Args)]
pub(super) struct Check {
    /// The configuration file.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Print JSON: `{"valid": true, "config": {…}}` or `{"valid": false, "problems": […]}`.
    #[arg(long)]
    json: bool,
    /// Say where a request would go and why, and nothing else: `{"model": …, "tenant": …, "key": …, "prompt_tokens": …,
    /// "endpoint": …, "class": …, "user": …, "headers": {…}}`, all but the model as they are needed.
    #[arg(long, value_name = "REQUEST")]
    explain: Option<String>,
}

// === impl Check ===

impl Check {
    pub(super) fn run(self) -> Result<(), CliError> {
        let checked = Config::load(&self.config);
        let mut out = io::stdout().lock();
        if let (Ok(config), Some(request)) = (&checked, &self.explain) {
            let explained = explain::explain(config, request)?;
            match self.json {
                true => writeln!(out, "{}", serde_json::json!(explained))?,
                false => write!(out, "{explained}")?,
            }
            return Ok(());
        }
        match &checked {
            Ok(config) if self.json => writeln!(out, "{}", serde_json::json!({ "valid": true, "config": config }))?,
            Ok(config) => summary(config, &mut out)?,
            Err(ConfigError::Invalid { problems }) if self.json => {
                writeln!(out, "{}", serde_json::json!({ "valid": false, "problems": problems }))?;
            }
            Err(_) => {}
        }
        checked.map(drop).map_err(CliError::from)
    }
}

/// What would run, a line each.
fn summary(config: &Config, out: &mut impl Write) -> io::Result<()> {
    let (server, admin) = (&config.server, &config.admin);
    let (listen, threads, connections) = (server.listen, server.threads, server.max_connections);
    let (public, private) = (encryption(server.tls.as_ref()), encryption(admin.tls.as_ref()));
    writeln!(
        out,
        "public  {listen}, {public}, {threads} threads, {connections} connections, bodies up to {}, requests up to {:?}",
        size(server.max_body),
        server.request_timeout
    )?;
    writeln!(out, "admin   {}, {private}, {}", admin.listen, if admin.token.is_some() { "with a token" } else { "without a token" })?;
    writeln!(out, "store   {}", stores(&config.store))?;
    for (name, device) in &config.devices {
        writeln!(out, "device  {name}: {} threads, isa {}, {}", device.threads, device.isa, size(device.memory))?;
    }
    for (name, shard) in &config.shards {
        let kv = &shard.kv_cache;
        write!(out, "shard   {name}: {} on {}, quantize {}, ", shard.weights, shard.device, shard.quantize)?;
        write!(out, "KV {} of {} in blocks of {} tokens, ", size(kv.memory), kv.dtype, kv.block_tokens)?;
        writeln!(out, "{} sequences run and {} wait", shard.max_sequences, shard.max_waiting)?;
    }
    for (name, upstream) in &config.upstreams {
        let model = upstream.model.as_deref().map_or(String::new(), |model| format!(", model {model}"));
        let key = if upstream.api_key.is_some() { "with a key" } else { "without a key" };
        writeln!(out, "remote  {name}: {}{model}, {key}, {} calls at once", upstream.url, upstream.max_connections)?;
    }
    for (name, model) in &config.models {
        let aliases = if model.aliases.is_empty() { String::new() } else { format!(" ({})", list(&model.aliases)) };
        for (variant, served) in &model.variants {
            let system = if served.system.is_some() { ", with a system message" } else { "" };
            writeln!(out, "model   {name}{aliases}: variant {variant} on {}{system}", list(&served.backends))?;
        }
        for rule in &model.rules {
            writeln!(out, "rule    {name}/{}: {}", rule.name, explain::leads_to(rule))?;
        }
    }
    for (name, tenant) in &config.tenants {
        let models = tenant.models.as_ref().map_or("all models".to_owned(), |models| format!("models [{}]", list(models)));
        writeln!(out, "tenant  {name}: {models}, {}", allowance(&tenant.limits, &tenant.quotas).unwrap_or_else(|| "unlimited".to_owned()))?;
        for key in &tenant.keys {
            writeln!(
                out,
                "key     {name}/{}: {}{}",
                key.name,
                allowance(&key.limits, &key.quotas).unwrap_or_else(|| "as its tenant".to_owned()),
                confined(key)
            )?;
        }
    }
    for issuer in &config.auth.jwt {
        let keys = match &issuer.keys {
            KeySource::Url(url) => url.clone(),
            KeySource::File { path, .. } => path.display().to_string(),
        };
        writeln!(out, "tokens  of {} for {}, tenant in `{}`, keys from {keys}", issuer.issuer, issuer.audience, issuer.tenant_claim)?;
    }
    if config.tenants.is_empty() {
        writeln!(out, "tenant  none: a start makes one key for development and prints it")?;
    }
    Ok(())
}

/// Which stores there are; not where, which may be secret.
fn stores(store: &Store) -> String {
    let ledger = match &store.ledger {
        Ledger::Off => "no ledger".to_owned(),
        Ledger::Sqlite(file) => format!("ledger in {}", file.display()),
        Ledger::Postgres(_) => "ledger in Postgres".to_owned(),
    };
    let limits = match (&store.limits, store.replicas) {
        (LimitStore::Local, _) => "limits counted here".to_owned(),
        (LimitStore::Redis(_), None) => "limits shared through Redis".to_owned(),
        (LimitStore::Redis(_), Some(replicas)) => format!("limits shared through Redis by {replicas} replicas"),
    };
    format!("{ledger}, {limits}")
}

fn list(items: &[impl ToString]) -> String {
    items.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// What a key is confined to, behind a comma each.
fn confined(key: &Key) -> String {
    let mut text = String::new();
    for (what, items) in [
        ("models", key.scope.models.as_deref().map(list)),
        ("endpoints", key.scope.endpoints.as_deref().map(list)),
        ("networks", key.scope.networks.as_deref().map(list)),
    ] {
        if let Some(items) = items {
            text.push_str(&format!(", {what} [{items}]"));
        }
    }
    if let Some(expires) = key.expires {
        text.push_str(&format!(", expires {expires}"));
    }
    text
}

fn encryption(tls: Option<&Tls>) -> &'static str {
    match tls.map(|tls| tls.client_ca.as_ref().map(|_| tls.client_auth)) {
        None => "plain HTTP",
        Some(None) => "TLS",
        Some(Some(ClientAuth::Optional)) => "TLS with certificates of clients that have one",
        Some(Some(ClientAuth::Required)) => "TLS with certificates of clients",
    }
}

fn size(bytes: u64) -> String {
    indicatif::BinaryBytes(bytes).to_string()
}
