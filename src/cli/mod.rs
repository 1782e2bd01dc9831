//! The command line. Data goes to stdout, everything else to stderr; 1 is a failure, 2 a wrong usage.

mod check;
mod keys;
mod log;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// An LLM gateway, router and inference engine in one binary.
#[derive(Debug, Parser)]
#[command(name = "roundhouse", version, arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Check(check::Check),
    #[command(subcommand)]
    Keys(keys::Keys),
}

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
enum CliError {
    /// The configuration is wrong; one line a problem, as compilers write them.
    #[error(transparent)]
    Config(#[from] crate::config::ConfigError),
    /// No key could be made.
    #[error("the system has no randomness to make a key from: {0}")]
    Randomness(#[from] getrandom::Error),
    /// What should be printed couldn't be.
    #[error("can't write to stdout: {0}")]
    Output(#[from] std::io::Error),
}

/// Runs the program.
pub fn main() -> ExitCode {
    let arguments = Arguments::parse();
    log::start();
    match arguments.command.run() {
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
        match self {
            Command::Check(check) => check.run(),
            Command::Keys(keys) => keys.run(),
        }
    }
}
