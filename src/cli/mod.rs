//! The command line. Data goes to stdout, everything else to stderr; 1 is a failure, 2 a wrong usage.

mod check;
mod generate;
mod keys;
mod log;
mod progress;
mod pull;
mod serve;

use crate::config::Log;
use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// An LLM gateway, router and inference engine in one binary.
#[derive(Debug, Parser)]
#[command(name = "roundhouse", version)]
struct Arguments {
    /// Without a command: `serve`, with the built-in configuration.
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    Serve(serve::Serve),
    Check(check::Check),
    Pull(pull::Pull),
    Generate(generate::Generate),
    #[command(subcommand)]
    Keys(keys::Keys),
}

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
enum CliError {
    /// The configuration is wrong; one line a problem, as compilers write them.
    #[error(transparent)]
    Config(#[from] crate::config::ConfigError),
    /// The server or its engine doesn't start.
    #[error(transparent)]
    Serve(#[from] crate::roundhouse::ServeError),
    /// A device doesn't open.
    #[error(transparent)]
    Start(#[from] crate::roundhouse::StartError),
    /// Nothing could be generated.
    #[error(transparent)]
    Generate(#[from] crate::roundhouse::GenerateError),
    /// Weights can't be had.
    #[error(transparent)]
    Source(#[from] crate::model::source::SourceError),
    /// A weights file can't be read.
    #[error(transparent)]
    Gguf(#[from] crate::model::gguf::GgufError),
    /// Weights can't be requantized.
    #[error(transparent)]
    Quantize(#[from] crate::model::quantize::QuantizeError),
    /// The store can't be opened.
    #[error("store.ledger: {0}")]
    Ledger(#[from] crate::tenant::LedgerError),
    /// A key can't be changed.
    #[error(transparent)]
    Key(#[from] crate::tenant::KeyError),
    /// The request to explain isn't one.
    #[error("--explain: {0}")]
    Explain(#[from] check::ExplainError),
    /// No key could be made.
    #[error("the system has no randomness to make a key from: {0}")]
    Randomness(#[from] getrandom::Error),
    /// What should be printed couldn't be.
    #[error("can't print: {0}")]
    Output(#[from] std::io::Error),
}

/// Runs the program.
pub fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match arguments.command.unwrap_or(Command::Serve(serve::Serve::default())).run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

// === impl Command ===

impl Command {
    fn run(self) -> Result<(), CliError> {
        if !matches!(self, Command::Serve(_)) {
            log::start(&Log::default()); // a server logs as its configuration says
        }
        match self {
            Command::Serve(serve) => serve.run(),
            Command::Check(check) => check.run(),
            Command::Pull(pull) => pull.run(),
            Command::Generate(generate) => generate.run(),
            Command::Keys(keys) => keys.run(),
        }
    }
}
