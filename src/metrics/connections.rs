//! What happens on a port before there is a request.

use super::{CONNECTIONS, CONNECTIONS_CUT, CONNECTIONS_REFUSED, METADATA, Metrics, key};
use metrics::{Counter, Gauge, Label, Recorder};

/// The connections of one port, cheap to clone.
#[derive(Clone)]
pub struct ConnectionMetrics {
    /// Those that are open.
    pub open: Gauge,
    /// Those that were one too many.
    pub refused: Counter,
    port: &'static str,
    metrics: Metrics,
}

// === impl Metrics ===

impl Metrics {
    /// The connections of this port.
    pub fn connections(&self, port: &'static str) -> ConnectionMetrics {
        let labels = || vec![Label::from_static_parts("port", port)];
        ConnectionMetrics {
            open: self.0.recorder.register_gauge(&key(CONNECTIONS, labels()), &METADATA),
            refused: self.0.recorder.register_counter(&key(CONNECTIONS_REFUSED, labels()), &METADATA),
            port,
            metrics: self.clone(),
        }
    }
}

// === impl ConnectionMetrics ===

impl ConnectionMetrics {
    /// Counts a connection or stream that waited for its client longer than `why` allows.
    pub fn cut(&self, why: &'static str) {
        let labels = vec![Label::from_static_parts("port", self.port), Label::from_static_parts("reason", why)];
        self.metrics.0.recorder.register_counter(&key(CONNECTIONS_CUT, labels), &METADATA).increment(1);
    }
}
