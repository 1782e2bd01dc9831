//! The command line. Data goes to stdout, everything else to stderr; 1 is a failure, 2 a wrong usage.

mod check;
mod error;
mod generate;
mod keys;
mod log;
mod progress;
mod pull;
mod serve;

use crate::config::Log;
use clap::{Parser, Subcommand};
use error::CliError;
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
