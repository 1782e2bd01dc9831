//! A value that is never shown.

use serde::{Serialize, Serializer};
use std::fmt;

/// A secret; its `Debug` and what it serializes to hide it, and there is no `Display`.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

// === impl Secret ===

impl Secret {
    /// Wraps a secret value.
    pub fn new(value: String) -> Self {
        Self(value)
    }

    /// The value itself, for the one place that sends it on. Never for a log, an error or an answer.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// `text` with `***` wherever it has this secret.
    pub fn hidden_in(&self, text: &str) -> String {
        if self.0.is_empty() { text.to_owned() } else { text.replace(&self.0, "***") }
    }

    /// Whether `given` is this secret, in time that depends on neither.
    pub fn matches(&self, given: &[u8]) -> bool {
        blake3::hash(self.0.as_bytes()) == blake3::hash(given)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str("***")
    }
}
