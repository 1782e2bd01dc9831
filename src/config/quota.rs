//! Quotas: how much in a calendar window.

use super::{Money, Name};
use jiff::tz::TimeZone;
use serde::{Deserialize, Serialize, Serializer};
use std::fmt;

/// An amount per calendar window.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Quota {
    /// How much of what.
    #[serde(flatten)]
    pub amount: Amount,
    /// The window.
    pub per: Per,
    /// Whose midnight ends it.
    pub zone: Zone,
    /// Whether requests beyond it are refused; a soft one is only told of.
    pub hard: bool,
    /// The model it counts; `None` counts all.
    pub model: Option<Name>,
}

/// How much of what.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Amount {
    /// Prompt and generated tokens.
    Tokens(u64),
    /// Cost by the models' prices.
    Cost(Money),
}

/// A calendar window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Per {
    /// From full hour to full hour.
    Hour,
    /// From midnight to midnight.
    Day,
    /// From the first of a month to the first of the next.
    Month,
}

/// A named time zone.
#[derive(Clone, PartialEq, Eq)]
pub struct Zone(TimeZone);

// === impl Amount ===

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Amount::Tokens(tokens) => write!(f, "{tokens} tokens"),
            Amount::Cost(cost) => write!(f, "cost of {cost}"),
        }
    }
}

// === impl Per ===

impl Per {
    /// As the file says it.
    pub fn as_str(self) -> &'static str {
        match self {
            Per::Hour => "hour",
            Per::Day => "day",
            Per::Month => "month",
        }
    }
}

// === impl Zone ===

impl Zone {
    /// The zone of this IANA name, `Europe/Berlin`; `None` if there is none.
    pub fn named(name: &str) -> Option<Self> {
        TimeZone::get(name).ok().map(Self)
    }

    /// The zone itself.
    pub fn zone(&self) -> &TimeZone {
        &self.0
    }

    /// Its IANA name.
    pub fn name(&self) -> &str {
        self.0.iana_name().unwrap_or("UTC")
    }
}

impl Serialize for Zone {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl Default for Zone {
    fn default() -> Self {
        Self(TimeZone::UTC)
    }
}

impl fmt::Debug for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
