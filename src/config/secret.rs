//! A value that is never shown.

use std::fmt;

/// A secret; its `Debug` hides it and there is no `Display`.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

// === impl Secret ===

impl Secret {
    /// Wraps a secret value.
    pub fn new(value: String) -> Self {
        Self(value)
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
