//! What is wrong with a configuration, and where in the file.

use serde::Serialize;
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// A configuration that can't be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file can't be read.
    #[error("{}: {source}", file.display())]
    Read {
        /// Which file.
        file: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file is wrong, in one place or several.
    #[error("{}", each_on_a_line(problems))]
    Invalid {
        /// Every problem found, in the order of the file; never empty.
        problems: Vec<Problem>,
    },
}

/// One thing that is wrong at one place of the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// The file, as it was named.
    pub file: PathBuf,
    /// The line, from 1.
    pub line: usize,
    /// The column in characters, from 1.
    pub column: usize,
    /// The key's path, `shards.smol-q4.device`; empty where the file isn't TOML.
    pub key: String,
    /// What is wrong and what would be right.
    pub message: String,
}

/// A problem whose place is still a range of bytes.
#[derive(Debug)]
pub(super) struct Finding {
    pub(super) span: Range<usize>,
    pub(super) key: String,
    pub(super) message: String,
}

// === impl Problem ===

impl Problem {
    pub(super) fn at(file: &Path, text: &str, finding: Finding) -> Self {
        let before = text.get(..finding.span.start).unwrap_or(text);
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        Self {
            file: file.to_owned(),
            line: before.matches('\n').count() + 1,
            column: before[line_start..].chars().count() + 1,
            key: finding.key,
            message: finding.message,
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}: ", self.file.display(), self.line, self.column)?;
        if !self.key.is_empty() {
            write!(f, "{}: ", self.key)?;
        }
        f.write_str(&self.message)
    }
}

fn each_on_a_line(problems: &[Problem]) -> String {
    problems.iter().map(Problem::to_string).collect::<Vec<_>>().join("\n")
}

/// A key's path with one more part, quoted as TOML wants it.
pub(super) fn join(path: &str, part: &str) -> String {
    let bare = !part.is_empty() && part.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-');
    let part = if bare { part.to_owned() } else { format!("{part:?}") };
    if path.is_empty() { part } else { format!("{path}.{part}") }
}

/// The valid name that `given` was most likely meant to be, if one is near.
pub(super) fn nearest<'a>(given: &str, valid: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let distance = |name: &str| strsim::damerau_levenshtein(&given.to_lowercase(), &name.to_lowercase());
    let most = (given.chars().count() / 3).max(2);
    valid.into_iter().map(|name| (distance(name), name)).filter(|(distance, _)| *distance <= most).min().map(|(_, name)| name)
}

/// The end of a message about an unknown name: the nearest valid one, or all of them.
pub(super) fn instead<'a>(given: &str, valid: impl IntoIterator<Item = &'a str> + Clone) -> String {
    if let Some(name) = nearest(given, valid.clone()) {
        return format!("did you mean `{name}`?");
    }
    let all = valid.into_iter().map(|name| format!("`{name}`")).collect::<Vec<_>>();
    if all.is_empty() { "there is none".to_owned() } else { format!("there is {}", all.join(", ")) }
}
