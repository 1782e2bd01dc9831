//! Servers of the tiny model whose tenants have limits, quotas and a ledger.

use super::tiny_model::{self, TinyModel};
use super::{Silent, server};
use roundhouse::config::{Config, Environment};
use roundhouse::roundhouse::Models;
use serde_json::Value;
use sqlx::{Connection, Row};
use std::collections::HashMap;
use std::path::PathBuf;

/// A folder with weights, a ledger and a configuration file.
pub(crate) struct Place {
    folder: tempfile::TempDir,
    store: String,
    tenants: String,
}

// === impl Place ===

impl Place {
    /// `tenants` is what follows the rest of the file; `KEY_HASH` in it becomes the hash of [`server::KEY`].
    pub(crate) fn new(tenants: &str) -> Self {
        Self::with("ledger = \"sqlite:ledger.db\"", tenants)
    }

    /// The same with other lines under `[store]`.
    pub(crate) fn with(store: &str, tenants: &str) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder can be made");
        let weights = tiny_model::llama(TinyModel { context: 256, ..TinyModel::default() });
        std::fs::write(folder.path().join("tiny.gguf"), weights).expect("a temporary file can be written");
        let mut place = Self { folder, store: store.to_owned(), tenants: String::new() };
        place.change(tenants);
        place
    }

    /// The same place with other tenants.
    pub(crate) fn change(&mut self, tenants: &str) {
        self.tenants = tenants.replace("KEY_HASH", &blake3::hash(server::KEY.as_bytes()).to_hex());
        std::fs::write(self.file(), self.text()).expect("a temporary file can be written");
    }

    /// The configuration file.
    pub(crate) fn file(&self) -> PathBuf {
        self.folder.path().join("roundhouse.toml")
    }

    /// The URL of the ledger in its folder.
    pub(crate) fn ledger(&self) -> String {
        format!("sqlite:{}", self.folder.path().join("ledger.db").display())
    }

    /// A server in this process.
    pub(crate) fn start(&self) -> server::Server {
        let config = Config::parse(&self.text(), &self.file()).expect("the configuration is valid");
        let models = Models::new(&config, &Environment::from_process(), &Silent).expect("the device opens");
        server::with(config, models)
    }

    /// A server in this process that watches its file.
    pub(crate) fn start_with_file(&self) -> server::Server {
        self.watched(self.file())
    }

    /// This place after [`change`](Self::change).
    pub(crate) fn changed(mut self, tenants: &str) -> Self {
        self.change(tenants);
        self
    }

    /// A server in this process that watches `file`, which holds or links to this configuration.
    pub(crate) fn watched(&self, file: PathBuf) -> server::Server {
        let config = Config::load(&file).expect("the configuration is valid");
        let models = Models::new(&config, &Environment::from_process(), &Silent).expect("the device opens");
        server::of_file(config, Some(file), models)
    }

    /// What the configuration file says.
    pub(crate) fn text(&self) -> String {
        format!(
            "server = {{ listen = \"127.0.0.1:0\", threads = 1 }}\nadmin.listen = \"127.0.0.1:0\"\n\
             [store]\n{}\n[devices.cpu]\nthreads = 1\nmemory = \"256MiB\"\n\
             [shards.tiny]\nweights = \"file:tiny.gguf\"\nkv_cache = {{ memory = \"16MiB\" }}\n\
             [models.tiny]\nprices = {{ input = 0.05, cached_input = 0.01, output = 0.20 }}\nvariants.only.backends = [\"tiny\"]\n{}",
            self.store, self.tenants
        )
    }
}

/// What a number of an SQL query on a ledger is.
pub(crate) fn query(ledger: &str, sql: &'static str) -> i64 {
    fetch(ledger, sql)[0].get(0)
}

/// Outcome and generated tokens of every request, by its id.
pub(crate) fn rows(ledger: &str) -> HashMap<String, (String, i64)> {
    let rows = fetch(ledger, "SELECT request, outcome, output FROM requests");
    rows.iter().map(|row| (row.get(0), (row.get(1), row.get(2)))).collect()
}

fn fetch(ledger: &str, sql: &'static str) -> Vec<sqlx::any::AnyRow> {
    let url = ledger.to_owned();
    let thread = std::thread::spawn(move || {
        sqlx::any::install_default_drivers();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime can be made");
        runtime.block_on(async {
            let mut connection = sqlx::AnyConnection::connect(&url).await.expect("the ledger opens");
            sqlx::query(sql).fetch_all(&mut connection).await.expect("the ledger answers")
        })
    });
    thread.join().expect("the query runs")
}

/// Tokens of a usage object: of the prompt, and generated.
pub(crate) fn usage(answer: &Value) -> (i64, i64) {
    let count = |name: &str| answer["usage"][name].as_i64().unwrap_or_else(|| panic!("no usage in {answer}"));
    (count("prompt_tokens"), count("completion_tokens"))
}
