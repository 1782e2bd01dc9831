//! `roundhouse keys`

use super::CliError;
use crate::config::Name;
use crate::tenant;
use std::io::Write;
use std::str::FromStr;

/// Make API keys.
#[derive(Debug, clap::Subcommand)]
pub(super) enum Keys {
    /// Make a key: prints its secret, which is kept nowhere, and the hash that belongs into the configuration.
    New {
        /// The tenant it is for.
        #[arg(long, value_parser = Name::from_str)]
        tenant: Name,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
}

// === impl Keys ===

impl Keys {
    pub(super) fn run(self) -> Result<(), CliError> {
        let Keys::New { tenant, json } = self;
        let key = tenant::new_key()?;
        let (secret, hash) = (key.secret.expose(), blake3::Hash::from_bytes(key.hash).to_hex());
        let mut out = std::io::stdout().lock();
        if json {
            writeln!(out, "{}", serde_json::json!({ "tenant": tenant, "secret": secret, "hash": hash.as_str() }))?;
        } else {
            writeln!(out, "secret  {secret}\nhash    {hash}\n")?;
            writeln!(out, "# for the configuration, with a name of your choice:\n[[tenants.\"{tenant}\".keys]]")?;
            writeln!(out, "name = \"key\"\nhash = \"{hash}\"")?;
        }
        Ok(())
    }
}
