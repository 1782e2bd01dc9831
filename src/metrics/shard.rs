//! What a shard publishes of itself, from its own thread.

use super::{BATCH_TOKENS, KV_BLOCKS, METADATA, PREEMPTIONS, QUEUE, RUNNING, STEP, Sum, WAITING, key, label};
use crate::config::Name;
use metrics::{Counter, Gauge, Histogram, Label, Recorder};
use metrics_exporter_prometheus::PrometheusRecorder;
use std::time::Duration;

/// The metrics of one shard.
pub struct ShardMetrics {
    running: Gauge,
    waiting: Gauge,
    blocks_used: Gauge,
    blocks_cached: Gauge,
    blocks_free: Gauge,
    preemptions: Counter,
    step: Histogram,
    batch_tokens: Histogram,
    queue: Histogram,
    busy: Sum,
}

/// What a shard holds at the moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShardLoad {
    /// Sequences in the running batch.
    pub running: usize,
    /// Sequences that wait for their first step.
    pub waiting: usize,
    /// KV blocks that sequences hold.
    pub blocks_used: usize,
    /// Unreferenced KV blocks that may be found again.
    pub blocks_cached: usize,
    /// KV blocks with nothing in them.
    pub blocks_free: usize,
    /// Preemptions since the shard's start.
    pub preemptions: u64,
}

// === impl ShardMetrics ===

impl ShardMetrics {
    pub(super) fn new(recorder: &PrometheusRecorder, shard: &Name, busy: Sum) -> Self {
        let labels = || vec![label("shard", shard)];
        let gauge = |name| recorder.register_gauge(&key(name, labels()), &METADATA);
        let histogram = |name| recorder.register_histogram(&key(name, labels()), &METADATA);
        let blocks = |state| {
            recorder.register_gauge(&key(KV_BLOCKS, vec![label("shard", shard), Label::from_static_parts("state", state)]), &METADATA)
        };
        Self {
            running: gauge(RUNNING),
            waiting: gauge(WAITING),
            blocks_used: blocks("used"),
            blocks_cached: blocks("cached"),
            blocks_free: blocks("free"),
            preemptions: recorder.register_counter(&key(PREEMPTIONS, labels()), &METADATA),
            step: histogram(STEP),
            batch_tokens: histogram(BATCH_TOKENS),
            queue: histogram(QUEUE),
            busy,
        }
    }

    /// What the shard holds now.
    pub fn load(&self, load: &ShardLoad) {
        self.running.set(load.running as f64);
        self.waiting.set(load.waiting as f64);
        self.blocks_used.set(load.blocks_used as f64);
        self.blocks_cached.set(load.blocks_cached as f64);
        self.blocks_free.set(load.blocks_free as f64);
        self.preemptions.absolute(load.preemptions);
    }

    /// A step of `batch_tokens` tokens that kept the device busy for `device_time`.
    pub fn step(&self, batch_tokens: u32, device_time: Duration) {
        self.step.record(device_time.as_secs_f64());
        self.batch_tokens.record(f64::from(batch_tokens));
        self.busy.add(u64::try_from(device_time.as_nanos()).unwrap_or(u64::MAX));
    }

    /// A sequence has waited this long for its first step.
    pub fn queued(&self, waited: Duration) {
        self.queue.record(waited.as_secs_f64());
    }
}
