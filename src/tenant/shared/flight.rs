//! Questions on their way to Redis, many at once on one connection.

use super::SharedError;
use super::holds::WindowKey;
use super::line::{Around, Line, Reserved};
use super::link::{Command, SILENT, Verdict};
use super::own;
use crate::call::Outcome;
use crate::tenant::asked::Asked;
use crate::tenant::window::Worth;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use std::sync::mpsc::Sender;
use tokio::sync::oneshot;

/// What comes back from a question.
pub(super) enum Landed {
    /// Nothing more is to be done.
    Done,
    /// A reservation nobody waits for any more.
    Unwanted(Box<own::Ended>),
    /// This process has to join again, and to ask this again then.
    Stranger(Option<Command>),
    /// Others may be gone.
    Around(Around),
    /// Redis is lost.
    Lost(SharedError),
}

/// Questions on their way.
pub(super) type Flights = FuturesUnordered<BoxFuture<'static, Landed>>;

/// Reserves what a call could use at most.
pub(super) fn reserve(mut line: Line, asked: Asked, answer: oneshot::Sender<Verdict>) -> BoxFuture<'static, Landed> {
    Box::pin(async move {
        match line.reserve(&asked).await {
            Ok(Reserved::Answered(levels, result)) => match answer.send((levels, result)) {
                Err((_, Ok(held))) => {
                    let need = asked.need();
                    Landed::Unwanted(Box::new(line.parts.own.settle(&need, &held, Worth::default(), Outcome::Refused, || {})))
                }
                Ok(()) | Err((_, Err(_))) => Landed::Done,
            },
            Ok(Reserved::Stranger) => Landed::Stranger(Some(Command::Reserve { asked, answer })),
            Err(error @ SharedError::Redis(_)) => Landed::Lost(error),
            // The ledger is lost or slow, and says so itself; this question has no answer.
            Err(_) => Landed::Done,
        }
    })
}

/// Tells what became of a call.
pub(super) fn settle(mut line: Line, settled: Box<own::Ended>, known: Option<oneshot::Sender<()>>) -> BoxFuture<'static, Landed> {
    Box::pin(async move {
        let landed = match line.settle(&settled.ask).await {
            Ok(true) => Landed::Done,
            Ok(false) => Landed::Stranger(None),
            Err(error) => Landed::Lost(error),
        };
        drop(known);
        landed
    })
}

/// Gives a sign of life.
pub(super) fn beat(mut line: Line) -> BoxFuture<'static, Landed> {
    Box::pin(async move { line.beat(SILENT).await.map_or_else(Landed::Lost, Landed::Around) })
}

/// Asks after a silent replica.
pub(super) fn bury(mut line: Line, gone: String) -> BoxFuture<'static, Landed> {
    Box::pin(async move {
        match line.bury(gone).await {
            Err(error @ SharedError::Redis(_)) => Landed::Lost(error),
            // Without the ledger nobody knows; the next sign of life asks again.
            Ok(()) | Err(_) => Landed::Done,
        }
    })
}

/// Makes counters known before requests meet them.
pub(super) fn prepare(mut line: Line, windows: Vec<WindowKey>, done: Sender<Result<(), SharedError>>) -> BoxFuture<'static, Landed> {
    Box::pin(async move {
        let mut result = Ok(());
        for window in &windows {
            result = match line.begin(window).await {
                Ok(()) => line.seed(window).await,
                error => error,
            };
            if result.is_err() {
                break;
            }
        }
        // Whoever waits may have given up.
        match result {
            Err(error @ SharedError::Redis(_)) => Landed::Lost(error),
            result => {
                let _ = done.send(result);
                Landed::Done
            }
        }
    })
}
