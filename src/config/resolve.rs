//! Raw → [`Config`]: defaults filled in, references and values checked. Goes on after a problem, so that all are told at once.

mod auth;
mod rules;
mod server;
mod serving;
mod shards;
mod store;
mod tenants;
mod upstreams;

use super::environment::variable;
use super::problem::{Finding, join, nearest};
use super::raw::{Given, Named, Raw};
use super::read::{Read, read};
use super::{Config, ConfigError, Name, Problem};
use rules::Rules;
use shards::Backends;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::Path;
use toml::Spanned;

/// What resolving needs beside the raw file, and what it finds.
struct Resolver<'a> {
    /// The folder that relative paths belong to.
    folder: &'a Path,
    /// Environment variables.
    variable: &'a dyn Fn(&str) -> Option<String>,
    findings: Vec<Finding>,
    broken: BTreeSet<String>,
}

// === impl Config ===

impl Config {
    /// Reads a configuration file.
    ///
    /// # Errors
    /// The file can't be read, or names everything in it that is wrong.
    pub fn load(file: &Path) -> Result<Config, ConfigError> {
        let text = std::fs::read_to_string(file).map_err(|source| ConfigError::Read { file: file.to_owned(), source })?;
        Self::parse(&text, file)
    }

    /// Reads a configuration from text. `file` is named in errors, and relative paths belong to its folder.
    ///
    /// # Errors
    /// Everything in the text that is wrong.
    pub fn parse(text: &str, file: &Path) -> Result<Config, ConfigError> {
        parse_with(text, file, &variable)
    }
}

impl Default for Config {
    /// The built-in configuration: what an empty file means.
    fn default() -> Self {
        let mut resolver = Resolver::new(Path::new(""), &|_| None, BTreeSet::new());
        let config = resolver.config(Raw::default());
        debug_assert!(resolver.findings.is_empty(), "the built-in configuration is valid");
        config
    }
}

fn parse_with(text: &str, file: &Path, variable: &dyn Fn(&str) -> Option<String>) -> Result<Config, ConfigError> {
    let Read { raw, mut findings, broken } = read(text);
    let folder = file.parent().unwrap_or(Path::new(""));
    let mut resolver = Resolver::new(folder, variable, broken);
    let config = resolver.config(raw);
    // Broken TOML leaves nothing to resolve: what would then be found missing isn't.
    findings.append(&mut resolver.findings);
    if findings.is_empty() {
        return Ok(config);
    }
    findings.sort_by_key(|finding| finding.span.start);
    Err(ConfigError::Invalid { problems: findings.into_iter().map(|finding| Problem::at(file, text, finding)).collect() })
}

// === impl Resolver ===

impl<'a> Resolver<'a> {
    fn new(folder: &'a Path, variable: &'a dyn Fn(&str) -> Option<String>, broken: BTreeSet<String>) -> Self {
        Self { folder, variable, findings: Vec::new(), broken }
    }

    fn config(&mut self, raw: Raw) -> Config {
        let public = raw.server.listen.as_ref().map(Spanned::span);
        let server = self.server(raw.server);
        let admin = self.admin(raw.admin, server.listen, public);
        let log = self.log(raw.log);
        let auth = self.auth(raw.auth);
        let store = self.store(raw.store);
        let billing = self.billing(raw.billing);
        let devices = self.devices(raw.devices);
        let tenants = raw.tenants.keys().map(|name| name.get_ref().clone());
        let mut known = Rules { tenants: tenants.collect(), ..Rules::default() };
        let (shards, upstreams, models) = match (raw.shards, raw.upstreams, raw.models) {
            (None, None, None) => {
                let (shards, models) = shards::built_in();
                (shards, BTreeMap::new(), models)
            }
            (shards, upstreams, models) => {
                let (shards, upstreams) = (shards.unwrap_or_default(), upstreams.unwrap_or_default());
                let given: Vec<_> = named("shard", &shards).chain(named("upstream", &upstreams)).collect();
                let shards = self.shards(shards, &devices);
                let upstreams = self.upstreams(upstreams, &shards);
                let backends = Backends { shards: &shards, upstreams: &upstreams };
                let models = self.models(models.unwrap_or_default(), &backends, &given, &mut known);
                (shards, upstreams, models)
            }
        };
        let tenants = self.tenants(raw.tenants, &models);
        Config { version: 1, server, admin, log, auth, store, billing, devices, shards, upstreams, models, tenants }
    }

    fn refuse(&mut self, span: Range<usize>, key: &str, message: impl Into<String>) {
        self.findings.push(Finding { span, key: key.to_owned(), message: message.into() });
    }

    /// The value of a key that has no default; `None` is reported, unless the value was there and wrong.
    fn required<T>(&mut self, value: Given<T>, table: &Range<usize>, path: &str, key: &str) -> Option<T> {
        let path = join(path, key);
        if value.is_none() && !self.broken.iter().any(|broken| *broken == path || broken.starts_with(&format!("{path}["))) {
            self.refuse(table.clone(), &path, "this key is missing");
        }
        value.map(Spanned::into_inner)
    }

    /// Checks that a name can be one. It was taken as it is so that the rest can be read.
    fn name(&mut self, name: &Spanned<Name>, path: &str) {
        if let Err(error) = name.get_ref().as_str().parse::<Name>() {
            self.refuse(name.span(), path, error.to_string());
        }
    }
}

/// The end of a message about a name that refers to nothing.
fn or_nearest<'n>(kind: &str, given: &Name, valid: impl IntoIterator<Item = &'n Name>) -> String {
    match nearest(given.as_str(), valid.into_iter().map(Name::as_str)) {
        Some(name) => format!("there is no {kind} `{given}`; did you mean `{name}`?"),
        None => format!("there is no {kind} `{given}`"),
    }
}

/// The names of a table's entries, with what they are names of.
fn named<T>(kind: &'static str, table: &Named<T>) -> impl Iterator<Item = (&'static str, Spanned<Name>)> {
    table.keys().map(move |name| (kind, name.clone()))
}

/// The value given, or the default.
fn or<T>(given: Given<T>, default: T) -> T {
    given.map_or(default, Spanned::into_inner)
}

#[cfg(test)]
mod tests;
