//! `roundhouse serve`, which is also what `roundhouse` alone does.

use super::progress::Bar;
use super::{CliError, log};
use crate::config::Config;
use crate::roundhouse::{self, Development, Running};
use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Serve until SIGINT or SIGTERM. Without a configuration file: the default model, with a key made for this run.
#[derive(Debug, Default, clap::Args)]
pub(super) struct Serve {
    /// The configuration file.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

// === impl Serve ===

impl Serve {
    pub(super) fn run(self) -> Result<(), CliError> {
        let file = self.config.as_deref();
        let config = match file {
            Some(file) => Config::load(file)?,
            None => Config::default(),
        };
        static BAR: Bar = Bar::new();
        log::start(&config.log);
        let mut greeted = Ok(());
        roundhouse::serve(config, file, &BAR, |running, config, development| {
            greeted = greet(running, config, development);
        })?;
        Ok(greeted?)
    }
}

/// What a person needs to begin. The development key goes to the terminal and nowhere else.
fn greet(running: &Running, config: &Config, development: Option<&Development>) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    let models: Vec<_> = config.models.keys().map(|name| name.as_str()).collect();
    writeln!(out, "serving {} on http://{}", models.join(", "), running.address())?;
    writeln!(out, "metrics on http://{}/metrics", running.admin_address())?;
    if let (Some(development), Some(model)) = (development, models.first()) {
        writeln!(out, "\nA key for development, valid until this process ends. Try:\n")?;
        writeln!(out, "{}", curl(running.address(), development.secret.expose(), model))?;
    }
    out.flush()
}

fn curl(address: SocketAddr, secret: &str, model: &str) -> String {
    let body = serde_json::json!({ "model": model, "messages": [{ "role": "user", "content": "Hello!" }] });
    format!("curl http://{address}/v1/chat/completions -H 'authorization: Bearer {secret}' -H 'content-type: application/json' -d '{body}'")
}
