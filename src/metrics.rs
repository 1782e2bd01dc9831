//! Every metric, declared once. A recorder of its own, so several servers can live in one process.

mod connections;
mod requests;
mod shard;
mod states;
mod sums;

use crate::config::Name;
use metrics::{Gauge, Key, KeyName, Label, Level, Metadata, Recorder, Unit};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle, PrometheusRecorder};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use connections::ConnectionMetrics;
pub use requests::{LatencyMetrics, Served, TokenMetrics};
pub use shard::{ShardLoad, ShardMetrics};
pub use sums::Sum;

use states::States;
use sums::Sums;

/// What a label reads while its value isn't known: a request refused before its model was found has no model.
pub const UNKNOWN: &str = "unknown";

const REQUESTS: &str = "roundhouse_requests_total";
const TOKENS: &str = "roundhouse_tokens_total";
const COST: &str = "roundhouse_cost_total";
const TTFT: &str = "roundhouse_time_to_first_token_seconds";
const TPOT: &str = "roundhouse_time_per_output_token_seconds";
const ITL: &str = "roundhouse_inter_token_latency_seconds";
const DURATION: &str = "roundhouse_request_duration_seconds";
const QUEUE: &str = "roundhouse_queue_seconds";
const KV_BLOCKS: &str = "roundhouse_kv_blocks";
const RUNNING: &str = "roundhouse_running_sequences";
const WAITING: &str = "roundhouse_waiting_sequences";
const STEP: &str = "roundhouse_step_seconds";
const BATCH_TOKENS: &str = "roundhouse_batch_tokens";
const PREEMPTIONS: &str = "roundhouse_preemptions_total";
const SHARD_STATE: &str = "roundhouse_shard_state";
const DEVICE_BUSY: &str = "roundhouse_device_busy_seconds_total";
const CONNECTIONS: &str = "roundhouse_connections";
const CONNECTIONS_REFUSED: &str = "roundhouse_connections_refused_total";
const CONNECTIONS_CUT: &str = "roundhouse_connections_cut_total";
const UPSTREAM_STATE: &str = "roundhouse_upstream_state";
const EXPERIMENT_OUT: &str = "roundhouse_experiment_out";
const RELOADS: &str = "roundhouse_config_reloads_total";
const STORE_LOST: &str = "roundhouse_store_lost";
const CONFIG_VERSION: &str = "roundhouse_config_version";

/// Seconds from a fast decode step to a long prompt's prefill; two to three buckets a decade.
const SECONDS: &[f64] = &[0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 60.0, 120.0, 300.0];
/// Tokens of one step, up to the usual step budgets.
const STEP_TOKENS: &[f64] = &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0];

const METADATA: Metadata<'static> = Metadata::new("roundhouse", Level::INFO, None);

/// All metrics of one server, cheap to clone.
#[derive(Clone)]
pub struct Metrics(Arc<Registry>);

struct Registry {
    recorder: PrometheusRecorder,
    handle: PrometheusHandle,
    config_version: Gauge,
    requests: requests::Cache,
    busy: Mutex<Sums>,
    cost: Mutex<Sums>,
    states: Mutex<States>,
}

// === impl Metrics ===

impl Metrics {
    /// A new, empty set of metrics.
    #[expect(clippy::new_without_default, reason = "a set of metrics is made once and on purpose")]
    pub fn new() -> Self {
        let recorder = PrometheusBuilder::new()
            .set_buckets(SECONDS)
            .and_then(|builder| builder.set_buckets_for_metric(Matcher::Full(BATCH_TOKENS.to_owned()), STEP_TOKENS))
            .expect("invariant: the bucket lists aren't empty")
            .build_recorder();
        describe(&recorder);
        let handle = recorder.handle();
        let config_version = recorder.register_gauge(&Key::from_static_name(CONFIG_VERSION), &METADATA);
        Self(Arc::new(Registry {
            recorder,
            handle,
            config_version,
            requests: requests::Cache::default(),
            busy: Mutex::new(Sums::new(DEVICE_BUSY, "Time the shard kept its device busy.")),
            cost: Mutex::new(Sums::new(COST, "What requests cost, by the prices of their models.")),
            states: Mutex::default(),
        }))
    }

    /// The version of the configuration that new requests get.
    pub fn config_version(&self, version: u64) {
        self.0.config_version.set(version as f64);
    }

    /// The configuration file was read again, and `outcome` came of it: changed, unchanged or refused.
    pub fn reloaded(&self, outcome: &'static str) {
        let labels = vec![Label::from_static_parts("outcome", outcome)];
        self.0.recorder.register_counter(&key(RELOADS, labels), &METADATA).increment(1);
    }

    /// Whether a store, `ledger` or `limits`, doesn't do its work.
    pub fn store_lost(&self, store: &'static str) -> Gauge {
        self.0.recorder.register_gauge(&key(STORE_LOST, vec![Label::from_static_parts("store", store)]), &METADATA)
    }

    /// The metrics of one shard; the same name gives the same metrics again.
    pub fn shard(&self, name: &Name) -> ShardMetrics {
        ShardMetrics::new(&self.0.recorder, name, locked(&self.0.busy).of(&[("shard", name)]))
    }

    /// Whether an upstream takes calls; the same name gives the same series again.
    pub fn upstream_state(&self, name: &Name) -> Gauge {
        self.0.recorder.register_gauge(&key(UPSTREAM_STATE, vec![label("backend", name)]), &METADATA)
    }

    /// Whether a guardrail keeps requests from a variant of an experiment; the same names give the same series again.
    pub fn experiment_out(&self, experiment: &Name, variant: &Name) -> Gauge {
        let labels = vec![label("experiment", experiment), label("variant", variant)];
        self.0.recorder.register_gauge(&key(EXPERIMENT_OUT, labels), &METADATA)
    }

    /// Shows the state of a shard, which `state` is asked for whenever the metrics are read.
    pub fn shard_state(&self, name: &Name, state: impl Fn() -> Option<&'static str> + Send + Sync + 'static) {
        locked(&self.0.states).watch(name, state);
    }

    /// Folds the samples of histograms into their buckets. Samples pile up until this or [`render`](Self::render), so
    /// somebody calls it every few seconds.
    pub fn upkeep(&self) {
        self.0.handle.run_upkeep();
    }

    /// Everything in the Prometheus text format.
    pub fn render(&self) -> String {
        let mut page = self.0.handle.render();
        locked(&self.0.busy).render(&mut page);
        locked(&self.0.cost).render(&mut page);
        locked(&self.0.states).render(&mut page);
        page
    }

    /// What a tenant's requests cost, in nano-units of this currency.
    pub fn cost(&self, tenant: &Name, currency: &Name) -> Sum {
        locked(&self.0.cost).of(&[("tenant", tenant), ("currency", currency)])
    }
}

fn describe(recorder: &PrometheusRecorder) {
    let counter =
        |name: &'static str, unit, text: &'static str| recorder.describe_counter(KeyName::from_const_str(name), unit, text.into());
    let gauge = |name: &'static str, text: &'static str| recorder.describe_gauge(KeyName::from_const_str(name), None, text.into());
    let histogram =
        |name: &'static str, unit, text: &'static str| recorder.describe_histogram(KeyName::from_const_str(name), Some(unit), text.into());
    counter(REQUESTS, None, "Requests answered, refused or abandoned.");
    counter(TOKENS, None, "Tokens by kind: prompt, cached (those of the prompt that came from the prefix cache), completion.");
    histogram(TTFT, Unit::Seconds, "From the request's head being read to the first content byte being written.");
    histogram(TPOT, Unit::Seconds, "(last token - first token) / (tokens - 1), per request.");
    histogram(ITL, Unit::Seconds, "Between two pieces of one choice's text.");
    histogram(DURATION, Unit::Seconds, "From the request's head being read to the end of its answer.");
    histogram(QUEUE, Unit::Seconds, "From a sequence's arrival at its shard to its first step.");
    gauge(KV_BLOCKS, "KV blocks of the shard's pool by state: used, cached (reusable), free.");
    gauge(RUNNING, "Sequences in the running batch.");
    gauge(WAITING, "Sequences that wait for their first step.");
    histogram(STEP, Unit::Seconds, "Device time of one step.");
    histogram(BATCH_TOKENS, Unit::Count, "Tokens computed in one step.");
    counter(PREEMPTIONS, None, "Sequences put back because KV blocks ran out.");
    gauge(UPSTREAM_STATE, "Whether an upstream takes calls: 1, or 0 while its health checks fail or its breaker is open.");
    gauge(EXPERIMENT_OUT, "Whether a guardrail keeps requests from a variant: 1, or 0 when it gets them again.");
    gauge(CONNECTIONS, "Open connections by port.");
    counter(CONNECTIONS_REFUSED, None, "Connections closed at once because there were server.max_connections.");
    counter(
        CONNECTIONS_CUT,
        None,
        "Connections and HTTP/2 streams that waited for their client longer than the reason, a key of [server], allows.",
    );
    counter(RELOADS, None, "Times the configuration file was read again, by outcome: changed, unchanged, refused.");
    gauge(STORE_LOST, "1 while a store doesn't do its work, by store: ledger, limits.");
    gauge(CONFIG_VERSION, "Version of the configuration that new requests get.");
}

/// A panic while a series was looked up leaves the others as they are.
fn locked<T>(series: &Mutex<T>) -> MutexGuard<'_, T> {
    series.lock().unwrap_or_else(PoisonError::into_inner)
}

fn key(name: &'static str, labels: Vec<Label>) -> Key {
    Key::from_parts(KeyName::from_const_str(name), labels)
}

fn label(name: &'static str, value: &Name) -> Label {
    Label::new(name, value.as_str().to_owned())
}

#[cfg(test)]
mod tests;
