//! Why commands fail.

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum CliError {
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
    Explain(#[from] super::check::ExplainError),
    /// No key could be made.
    #[error("the system has no randomness to make a key from: {0}")]
    Randomness(#[from] getrandom::Error),
    /// What should be printed couldn't be.
    #[error("can't print: {0}")]
    Output(#[from] std::io::Error),
}
