//! What was used, as an answer: for operators of all tenants, for clients of their own.

use super::body::Body;
use super::respond;
use crate::call::Error;
use crate::config::{Config, Moment, Name};
use crate::tenant::{Accounts, UsageQuery, UsageRow};
use http::{HeaderMap, Response, header};
use serde::Serialize;

#[derive(Serialize)]
struct Sums<'a> {
    object: &'static str,
    from: Moment,
    to: Moment,
    by: &'static str,
    currency: &'a Name,
    data: &'a [UsageRow],
}

/// The answer to a URL's `query`: JSON, or comma-separated values where `format=csv` or the `accept` header says so.
/// `only` is the tenant that doesn't see others'.
///
/// # Errors
/// A parameter is wrong, or the ledger can't be read.
pub async fn usage(
    query: Option<&str>,
    headers: &HeaderMap,
    only: Option<&Name>,
    (accounts, config): (&Accounts, &Config),
    now: std::time::Duration,
) -> Result<Response<Body>, Error> {
    let accepted = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok());
    let mut csv = accepted.is_some_and(|accepted| accepted.trim_start().to_ascii_lowercase().starts_with("text/csv"));
    let format = |name: &str, value: &str| {
        csv |= value == "csv";
        name == "format" && (value == "csv" || value == "json")
    };
    let mut query = UsageQuery::read(query.unwrap_or_default(), now, format)?;
    match (only, &query.tenant) {
        (Some(only), Some(tenant)) if only != tenant => {
            let message = "A key sees its own tenant's usage. Leave 'tenant' out.";
            return Err(Error::Invalid { param: Some("tenant".to_owned()), message: message.to_owned() });
        }
        (Some(only), _) => query.tenant = Some(only.clone()),
        (None, _) => {}
    }
    let rows = accounts.usage(query.clone()).await.map_err(|error| {
        tracing::error!(%error, "usage can't be read");
        Error::Internal
    })?;
    if csv {
        return Ok(respond::csv(UsageRow::csv(query.by, &rows)));
    }
    let (from, to) = (Moment::from_unix(query.span.start), Moment::from_unix(query.span.end));
    let sums = Sums { object: "list", from, to, by: query.by.as_str(), currency: &config.billing.currency, data: &rows };
    Ok(respond::json(&sums))
}
