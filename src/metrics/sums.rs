//! Counters with decimals. The exporter's are whole numbers, so these are kept in billionths and written here.

use crate::config::Name;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// All series of one counter.
pub(super) struct Sums {
    name: &'static str,
    text: &'static str,
    /// Billionths, by rendered labels.
    series: BTreeMap<String, Sum>,
}

/// A counter of billionths: nanoseconds, nano-units of money.
#[derive(Clone, Debug, Default)]
pub struct Sum(Arc<AtomicU64>);

/// A label as the Prometheus text format writes it.
pub(super) fn label(name: &str, value: &Name) -> String {
    let escaped = value.as_str().replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    format!("{name}=\"{escaped}\"")
}

// === impl Sum ===

impl Sum {
    /// Adds so many billionths.
    pub fn add(&self, billionths: u64) {
        self.0.fetch_add(billionths, Relaxed);
    }
}

// === impl Sums ===

impl Sums {
    pub(super) fn new(name: &'static str, text: &'static str) -> Self {
        Self { name, text, series: BTreeMap::new() }
    }

    /// The series of these labels; the same labels give the same one again.
    pub(super) fn of(&mut self, labels: &[(&str, &Name)]) -> Sum {
        let labels: Vec<_> = labels.iter().map(|(name, value)| label(name, value)).collect();
        self.series.entry(labels.join(",")).or_default().clone()
    }

    /// Appends the counter in the Prometheus text format, if it has any series.
    pub(super) fn render(&self, page: &mut String) {
        let Self { name, text, series } = self;
        if series.is_empty() {
            return;
        }
        // Writing to a String can't fail.
        let _ = writeln!(page, "# HELP {name} {text}\n# TYPE {name} counter");
        for (labels, sum) in series {
            let _ = writeln!(page, "{name}{{{labels}}} {}", sum.0.load(Relaxed) as f64 / 1e9);
        }
    }
}
