//! What was used, summed up over the ledger's rows.

use crate::call::Error;
use crate::config::{Moment, Money, Name};
use jiff::ToSpan;
use jiff::civil::Date;
use serde::ser::{Serialize, SerializeMap, Serializer};
use std::ops::Range;
use std::time::Duration;

/// What is to be summed up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsageQuery {
    /// Whose; all tenants' where it is none.
    pub tenant: Option<Name>,
    /// Admitted when, in Unix time.
    pub span: Range<Duration>,
    /// A row for each of what.
    pub by: By,
}

/// What usage is told apart by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// The model.
    Model,
    /// The key.
    Key,
    /// The day, in UTC.
    Day,
    /// The variant.
    Variant,
}

/// What one tenant used of one model, key, day or variant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsageRow {
    pub(super) tenant: String,
    pub(super) by: By,
    pub(super) of: String,
    pub(super) requests: u64,
    pub(super) prompt_tokens: u64,
    pub(super) cached_tokens: u64,
    pub(super) completion_tokens: u64,
    pub(super) device_time: Duration,
    pub(super) cost: Money,
}

// === impl UsageQuery ===

impl UsageQuery {
    /// Reads a URL's query: `tenant`, `from`, `to` (a date, or a moment with its offset), `by` (`model`, `key`, `day`,
    /// `variant`). Without `from` it begins with the month, without `to` it ends `now`, in Unix time. Whatever else there is
    /// goes to `other`.
    ///
    /// # Errors
    /// `Invalid` and `Unsupported` name the parameter.
    pub fn read(query: &str, now: Duration, mut other: impl FnMut(&str, &str) -> bool) -> Result<Self, Error> {
        let (mut tenant, mut from, mut to, mut by) = (None, None, None, By::Model);
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            match name.as_ref() {
                "tenant" => tenant = Some(Name::from(value.into_owned())),
                "from" => from = Some(moment("from", &value)?),
                "to" => to = Some(moment("to", &value)?),
                "by" => by = By::read(&value)?,
                name if other(name, &value) => {}
                name => {
                    let message = format!("Unknown parameter: '{name}'. Known are tenant, from, to, by and format.");
                    return Err(Error::Unsupported { param: name.to_owned(), message });
                }
            }
        }
        let span = from.unwrap_or_else(|| month(now))..to.unwrap_or(now);
        if span.end < span.start {
            return Err(invalid("to", "'to' is before 'from'.".to_owned()));
        }
        Ok(Self { tenant, span, by })
    }
}

fn invalid(param: &str, message: String) -> Error {
    Error::Invalid { param: Some(param.to_owned()), message }
}

fn moment(param: &str, text: &str) -> Result<Duration, Error> {
    let moment = text.parse::<Moment>().or_else(|_| format!("{text}T00:00:00Z").parse());
    moment.map(Moment::unix).map_err(|_| {
        invalid(param, format!("Invalid value for '{param}': write a date such as 2027-01-31 or a moment such as 2027-01-31T12:00:00Z."))
    })
}

/// The beginning of the month that `now` is in.
fn month(now: Duration) -> Duration {
    let today = date((now.as_secs() / 86_400) as i64);
    let into =
        Duration::from_secs((today.day() as u64 - 1) * 86_400 + now.as_secs() % 86_400) + Duration::from_nanos(now.subsec_nanos().into());
    now.saturating_sub(into)
}

/// The date so many days after the Unix epoch.
fn date(days: i64) -> Date {
    Date::constant(1970, 1, 1).saturating_add(days.days())
}

// === impl By ===

impl By {
    fn read(text: &str) -> Result<Self, Error> {
        let found = [By::Model, By::Key, By::Day, By::Variant].into_iter().find(|by| by.as_str() == text);
        found.ok_or_else(|| invalid("by", "Invalid value for 'by'. Supported values are: 'model', 'key', 'day', 'variant'.".to_owned()))
    }

    /// As clients write it.
    pub fn as_str(self) -> &'static str {
        match self {
            By::Model => "model",
            By::Key => "key",
            By::Day => "day",
            By::Variant => "variant",
        }
    }

    /// What the ledger has, as clients read it.
    pub(super) fn shown(self, of: String) -> String {
        match (self, of.parse()) {
            (By::Day, Ok(days)) => date(days).to_string(),
            _ => of,
        }
    }
}

// === impl UsageRow ===

impl UsageRow {
    /// The rows as a table of comma-separated values with a head, as RFC 4180 says.
    pub fn csv(by: By, rows: &[UsageRow]) -> String {
        let mut table = format!("tenant,{},requests,prompt_tokens,cached_tokens,completion_tokens,device_ms,cost\r\n", by.as_str());
        let quoted = |text: &str| {
            if text.contains([',', '"', '\r', '\n']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text.to_owned() }
        };
        for row in rows {
            let counts = [row.requests, row.prompt_tokens, row.cached_tokens, row.completion_tokens].map(|count| count.to_string());
            table += &[quoted(&row.tenant), quoted(&row.of), counts.join(","), row.device_ms().to_string(), row.cost.to_string()].join(",");
            table += "\r\n";
        }
        table
    }

    fn device_ms(&self) -> f64 {
        self.device_time.as_nanos() as f64 / 1e6
    }
}

impl Serialize for UsageRow {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut row = serializer.serialize_map(Some(8))?;
        row.serialize_entry("tenant", &self.tenant)?;
        row.serialize_entry(self.by.as_str(), &self.of)?;
        row.serialize_entry("requests", &self.requests)?;
        row.serialize_entry("prompt_tokens", &self.prompt_tokens)?;
        row.serialize_entry("cached_tokens", &self.cached_tokens)?;
        row.serialize_entry("completion_tokens", &self.completion_tokens)?;
        row.serialize_entry("device_ms", &self.device_ms())?;
        row.serialize_entry("cost", &self.cost)?;
        row.end()
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    const NOW: Duration = Duration::from_secs(1_796_127_661); // 2026-12-01T12:21:01Z

    fn read(query: &str) -> Result<UsageQuery, Error> {
        UsageQuery::read(query, NOW, |name, _| name == "format")
    }

    #[test]
    fn a_query_names_tenant_time_and_what_to_tell_apart() {
        let whole = read("tenant=ac%20me&from=2026-11-30&to=2026-12-01T00:00:00%2B01:00&by=day&format=csv").unwrap();
        assert_eq!((whole.tenant, whole.by), (Some("ac me".into()), By::Day));
        assert_eq!(whole.span, Duration::from_secs(1_795_996_800)..Duration::from_secs(1_796_079_600));
        let month = read("").unwrap().span;
        assert_eq!((month.start, month.end), (Duration::from_secs(1_796_083_200), NOW), "the month so far");
        for (query, param) in [("from=yesterday", "from"), ("by=hour", "by"), ("to=2026-11-01", "to"), ("form=csv", "form")] {
            let error = read(query).unwrap_err();
            assert!(
                matches!(&error, Error::Invalid { param: Some(named), .. } | Error::Unsupported { param: named, .. } if named == param),
                "{error:?}"
            );
        }
    }

    #[test]
    fn a_table_quotes_what_would_break_it() {
        let row = UsageRow {
            tenant: "a,\"b".into(),
            by: By::Day,
            of: By::Day.shown("20788".into()),
            requests: 2,
            prompt_tokens: 3,
            cached_tokens: 1,
            completion_tokens: 4,
            device_time: Duration::from_micros(1500),
            cost: Money::from_nanos(50),
        };
        let table = UsageRow::csv(By::Day, std::slice::from_ref(&row));
        let head = "tenant,day,requests,prompt_tokens,cached_tokens,completion_tokens,device_ms,cost\r\n";
        assert_eq!(table, format!("{head}\"a,\"\"b\",2026-12-01,2,3,1,4,1.5,0.00000005\r\n"));
        assert_eq!(serde_json::to_value(&row).unwrap()["day"], "2026-12-01");
    }
}
