//! What the process's surroundings say. Together with `${ENV}` secrets the only place that reads environment variables.

use super::Secret;
use std::path::PathBuf;

/// The hub that `hf:` sources come from unless `HF_ENDPOINT` names a mirror.
const HUB: &str = "https://huggingface.co";

/// The process's surroundings, read once at start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Environment {
    /// The folder for downloaded weights; may not exist yet.
    pub cache_dir: PathBuf,
    /// The base URL of `hf:` sources, without a slash at its end.
    pub hub_endpoint: String,
    /// The bearer token for `hf:` sources.
    pub hub_token: Option<Secret>,
    /// A PEM file of root certificates that downloads trust besides the web's own.
    pub certificates: Option<PathBuf>,
}

// === impl Environment ===

impl Environment {
    /// Reads this process's environment: `XDG_CACHE_HOME` (else `HOME/.cache`), `HF_ENDPOINT`, `HF_TOKEN` and
    /// `SSL_CERT_FILE`.
    ///
    /// A process without a home folder caches below the system's folder for temporary files.
    pub fn from_process() -> Self {
        Self::from_lookup(&variable)
    }

    fn from_lookup(lookup: &dyn Fn(&str) -> Option<String>) -> Self {
        let set = |name: &str| lookup(name).filter(|value| !value.is_empty());
        // The XDG specification: a relative XDG_CACHE_HOME is invalid and ignored.
        let xdg = set("XDG_CACHE_HOME").map(PathBuf::from).filter(|folder| folder.is_absolute());
        let cache = xdg.or_else(|| set("HOME").map(|home| PathBuf::from(home).join(".cache"))).unwrap_or_else(std::env::temp_dir);
        let hub = set("HF_ENDPOINT").unwrap_or_else(|| HUB.to_owned());
        Self {
            cache_dir: cache.join("roundhouse"),
            hub_endpoint: hub.trim_end_matches('/').to_owned(),
            hub_token: set("HF_TOKEN").map(Secret::new),
            certificates: set("SSL_CERT_FILE").map(PathBuf::from),
        }
    }
}

/// The value of an environment variable; `None` where it is unset or not text.
pub(super) fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(variables: &[(&str, &str)]) -> Environment {
        Environment::from_lookup(&|name| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned()))
    }

    #[test]
    fn the_cache_folder_follows_the_xdg_rules() {
        assert_eq!(with(&[("XDG_CACHE_HOME", "/x"), ("HOME", "/h")]).cache_dir, PathBuf::from("/x/roundhouse"));
        assert_eq!(with(&[("XDG_CACHE_HOME", "relative"), ("HOME", "/h")]).cache_dir, PathBuf::from("/h/.cache/roundhouse"));
        assert_eq!(with(&[("XDG_CACHE_HOME", ""), ("HOME", "/h")]).cache_dir, PathBuf::from("/h/.cache/roundhouse"));
        assert!(with(&[]).cache_dir.ends_with("roundhouse"));
    }

    #[test]
    fn a_hub_mirror_and_a_token_are_taken_from_the_environment() {
        assert_eq!(with(&[]).hub_endpoint, HUB);
        let environment = with(&[("HF_ENDPOINT", "https://mirror.example/"), ("HF_TOKEN", "hf_secret")]);
        assert_eq!(environment.hub_endpoint, "https://mirror.example");
        assert_eq!(environment.hub_token.as_ref().map(Secret::expose), Some("hf_secret"));
        assert!(!format!("{environment:?}").contains("hf_secret"));
    }
}
