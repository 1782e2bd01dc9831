//! What others want to know of the ledger. The thread answers after the rows that were handed over before.

use super::database::Database;
use super::{LedgerError, schema};
use crate::tenant::subject::Subject;
use crate::tenant::window::Worth;
use std::ops::Range;
use std::sync::mpsc;
use std::time::Duration;
use tokio::sync::oneshot;

/// A question.
pub(in crate::tenant) enum Question {
    /// What was used.
    Used(Used, mpsc::Sender<Result<Worth, LedgerError>>),
    /// What was used by each replica that there ever was.
    Shares(Used, oneshot::Sender<Result<Vec<(i64, Worth)>, LedgerError>>),
    /// The replicas whose requests in flight aren't settled by others.
    Alive(oneshot::Sender<Result<Vec<i64>, LedgerError>>),
}

/// A question for sums.
#[derive(Clone, Debug)]
pub(in crate::tenant) struct Used {
    /// Whose.
    pub(in crate::tenant) tenant: String,
    /// By which key and for which model.
    pub(in crate::tenant) subject: Subject,
    /// Whether prompt tokens from the prefix cache count.
    pub(in crate::tenant) cached: bool,
    /// Of requests admitted then, in Unix time.
    pub(in crate::tenant) span: Range<Duration>,
}

// === impl Question ===

impl Question {
    /// Answers it. Whoever asked may be gone.
    pub(super) async fn answer(self, database: &mut Database) {
        match self {
            Question::Used(used, to) => {
                let shares = database.shares(&used, schema::USED).await;
                let sum = shares.map(|shares| shares.first().map(|(_, worth)| *worth).unwrap_or_default());
                let _ = to.send(sum.map_err(LedgerError::from));
            }
            Question::Shares(used, to) => {
                let shares = database.shares(&used, schema::SHARES.as_str()).await;
                let _ = to.send(shares.map_err(LedgerError::from));
            }
            Question::Alive(to) => {
                let alive = database.alive().await;
                let _ = to.send(alive.map_err(LedgerError::from));
            }
        }
    }
}
