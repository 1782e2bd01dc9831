//! Where shards stand. They are asked when the page is written: one that is stuck can't say so by itself.

use super::SHARD_STATE;
use super::sums::label;
use crate::config::Name;
use std::collections::BTreeMap;
use std::fmt::Write;

/// Tells a shard's state; `None` where it isn't there any more.
type Ask = Box<dyn Fn() -> Option<&'static str> + Send + Sync>;

/// Whom to ask, by shard.
#[derive(Default)]
pub(super) struct States(BTreeMap<Name, Ask>);

// === impl States ===

impl States {
    /// Asks `ask` for this shard's state from now on.
    pub(super) fn watch(&mut self, shard: &Name, ask: impl Fn() -> Option<&'static str> + Send + Sync + 'static) {
        self.0.insert(shard.clone(), Box::new(ask));
    }

    /// Appends a series for each shard, labelled with the state that it is in.
    pub(super) fn render(&self, page: &mut String) {
        let mut states = self.0.iter().filter_map(|(shard, ask)| Some((shard, ask()?))).peekable();
        if states.peek().is_none() {
            return;
        }
        // Writing to a String can't fail.
        let _ = writeln!(
            page,
            "# HELP {SHARD_STATE} The state each shard is in: loading, ready, stuck, draining, lost.\n# TYPE {SHARD_STATE} gauge"
        );
        for (shard, state) in states {
            let _ = writeln!(page, "{SHARD_STATE}{{{},state=\"{state}\"}} 1", label("shard", shard));
        }
    }
}
