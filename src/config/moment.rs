//! A moment that people write with date and time.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// A moment since 1970, to the microsecond, as `2027-01-01T00:00:00Z`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(Duration);

/// A text that names no moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("write a date, a time and its offset from UTC, such as 2027-01-01T00:00:00Z")]
pub struct MomentError;

// === impl Moment ===

impl Moment {
    /// So long after the Unix epoch.
    pub fn from_unix(unix: Duration) -> Self {
        Self(Duration::from_micros(u64::try_from(unix.as_micros()).unwrap_or(u64::MAX)))
    }

    /// Its distance from the Unix epoch.
    pub fn unix(self) -> Duration {
        self.0
    }
}

impl FromStr for Moment {
    type Err = MomentError;

    fn from_str(text: &str) -> Result<Self, MomentError> {
        let timestamp: jiff::Timestamp = text.parse().map_err(|_| MomentError)?;
        u64::try_from(timestamp.as_microsecond()).map(|micros| Self(Duration::from_micros(micros))).map_err(|_| MomentError)
    }
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micros = i64::try_from(self.0.as_micros()).unwrap_or(i64::MAX);
        // A moment after the year 9999 has no usual form.
        jiff::Timestamp::from_microsecond(micros).unwrap_or(jiff::Timestamp::MAX).fmt(f)
    }
}

impl fmt::Debug for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Moment {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Moment {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn a_moment_is_read_as_it_is_written_and_needs_an_offset() {
        let moment: Moment = "2027-01-01T01:00:00+01:00".parse().unwrap();
        assert_eq!((moment.to_string().as_str(), moment.unix().as_secs()), ("2027-01-01T00:00:00Z", 1_798_761_600));
        for text in ["", "2027-01-01", "2027-01-01T00:00:00", "1969-01-01T00:00:00Z", "soon"] {
            assert_eq!(text.parse::<Moment>(), Err(MomentError), "{text}");
        }
    }
}
