//! What requests leave behind. Handles are looked up by the names they are labelled with and kept, so that a request
//! allocates nothing for its metrics.

use super::{DURATION, ITL, METADATA, Metrics, REQUESTS, TOKENS, TPOT, TTFT, UNKNOWN, key};
use crate::config::Name;
use dashmap::DashMap;
use metrics::{Counter, Histogram, Label, Recorder};
use std::hash::Hash;
use std::sync::Arc;

/// Who was served what by whom; `None` reads as `unknown`. Only configured names, so their number is bounded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Served {
    /// The tenant.
    pub tenant: Option<Name>,
    /// The configured model.
    pub model: Option<Name>,
    /// The variant.
    pub variant: Option<Name>,
    /// The backend.
    pub backend: Option<Name>,
}

/// How long requests of one model, variant and backend took.
pub struct LatencyMetrics {
    /// From the head being read to the first content byte being written, in seconds.
    pub ttft: Histogram,
    /// (last token − first token) / (tokens − 1), in seconds.
    pub tpot: Histogram,
    /// Between two pieces of one choice's text, in seconds.
    pub itl: Histogram,
    /// From the head being read to the end of the answer, in seconds.
    pub duration: Histogram,
}

/// Tokens of one tenant and model.
pub struct TokenMetrics {
    /// Prompt tokens, cached ones included.
    pub prompt: Counter,
    /// Those of the prompt that came from the prefix cache.
    pub cached: Counter,
    /// Generated tokens.
    pub completion: Counter,
}

#[derive(Default)]
pub(super) struct Cache {
    requests: DashMap<(Served, u16), Counter>,
    latency: DashMap<Served, Arc<LatencyMetrics>>,
    tokens: DashMap<(Name, Name), Arc<TokenMetrics>>,
}

// === impl Metrics ===

impl Metrics {
    /// Counts one request by its answer's status.
    pub fn count_request(&self, served: Served, status: u16) {
        let counter = kept(&self.0.requests.requests, (served, status), |(served, status)| {
            let labels = vec![
                named("tenant", served.tenant.as_ref()),
                named("model", served.model.as_ref()),
                named("variant", served.variant.as_ref()),
                named("backend", served.backend.as_ref()),
                Label::new("status", status.to_string()),
            ];
            self.0.recorder.register_counter(&key(REQUESTS, labels), &METADATA)
        });
        counter.increment(1);
    }

    /// The latencies of a model's variant on a backend. They aren't kept per tenant: that would be too many series.
    pub fn latency(&self, served: Served) -> Arc<LatencyMetrics> {
        let served = Served { tenant: None, ..served };
        kept(&self.0.requests.latency, served, |served| {
            let histogram = |name| {
                let labels = vec![
                    named("model", served.model.as_ref()),
                    named("variant", served.variant.as_ref()),
                    named("backend", served.backend.as_ref()),
                ];
                self.0.recorder.register_histogram(&key(name, labels), &METADATA)
            };
            Arc::new(LatencyMetrics { ttft: histogram(TTFT), tpot: histogram(TPOT), itl: histogram(ITL), duration: histogram(DURATION) })
        })
    }

    /// The token counters of a tenant and a model.
    pub fn tokens(&self, tenant: &Name, model: &Name) -> Arc<TokenMetrics> {
        kept(&self.0.requests.tokens, (tenant.clone(), model.clone()), |(tenant, model)| {
            let counter = |kind| {
                let labels = vec![named("tenant", Some(tenant)), named("model", Some(model)), Label::from_static_parts("kind", kind)];
                self.0.recorder.register_counter(&key(TOKENS, labels), &METADATA)
            };
            Arc::new(TokenMetrics { prompt: counter("prompt"), cached: counter("cached"), completion: counter("completion") })
        })
    }
}

/// The map's value for `key`, made on first use. Registering the same series twice gives the same series, so a race is harmless.
fn kept<K: Eq + Hash, V: Clone>(map: &DashMap<K, V>, key: K, make: impl FnOnce(&K) -> V) -> V {
    if let Some(value) = map.get(&key) {
        return value.clone();
    }
    let value = make(&key);
    map.entry(key).or_insert(value).clone()
}

fn named(label: &'static str, name: Option<&Name>) -> Label {
    match name {
        Some(name) => Label::new(label, name.as_str().to_owned()),
        None => Label::from_static_parts(label, UNKNOWN),
    }
}
