//! A progress bar on stderr.

use crate::model::source::Progress;
use indicatif::{ProgressBar, ProgressStyle};
use std::sync::{Mutex, PoisonError};

/// Shows downloads; silent where stderr is no terminal.
#[derive(Debug, Default)]
pub(super) struct Bar(Mutex<Option<ProgressBar>>);

// === impl Bar ===

impl Bar {
    /// One that shows nothing yet.
    pub(super) const fn new() -> Self {
        Self(Mutex::new(None))
    }
}

impl Progress for Bar {
    fn start(&self, total: Option<u64>, what: &str) {
        let bar = match total {
            Some(total) => ProgressBar::new(total).with_style(style("{msg} {wide_bar} {binary_bytes}/{binary_total_bytes} {eta}")),
            None => ProgressBar::new_spinner().with_style(style("{msg} {spinner} {binary_bytes}")),
        };
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(bar.with_message(what.to_owned()));
    }

    fn advance(&self, bytes: u64) {
        if let Some(bar) = &*self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            bar.inc(bytes);
        }
    }

    fn done(&self) {
        if let Some(bar) = self.0.lock().unwrap_or_else(PoisonError::into_inner).take() {
            bar.finish_and_clear();
        }
    }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).expect("the template is a constant that parses")
}
