//! Calendar windows and how much of them is used.

use super::subject::Subject;
use crate::config::{Amount, Money, Per, Quota, Tenant, Zone};
use jiff::{Timestamp, ToSpan, Unit, ZonedDateTimeRound};
use std::ops::Range;
use std::time::Duration;

/// Tokens and what they cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Worth {
    pub(super) tokens: u64,
    pub(super) cost: Money,
}

/// What identifies a quota's counter, whatever its limit.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Counted {
    pub(super) subject: Subject,
    pub(super) per: Per,
    pub(super) zone: Zone,
    /// Whether prompt tokens from the prefix cache are among what it counts.
    pub(super) cached: bool,
}

/// One counter in its current window.
#[derive(Clone, Debug)]
pub(super) struct Window {
    pub(super) of: Counted,
    /// Unix time.
    pub(super) span: Range<Duration>,
    /// Settled.
    pub(super) used: Worth,
    /// Held by requests in flight.
    pub(super) reserved: Worth,
    /// Reservations below this number were made before the counter was; it holds nothing for them.
    pub(super) since: u64,
}

// === impl Worth ===

impl Worth {
    /// What a quota of `amount` counts of it.
    pub(super) fn of(self, amount: Amount) -> u64 {
        match amount {
            Amount::Tokens(_) => self.tokens,
            Amount::Cost(_) => self.cost.nanos(),
        }
    }

    pub(super) fn add(&mut self, other: Worth) {
        self.tokens += other.tokens;
        self.cost += other.cost;
    }

    pub(super) fn take(&mut self, other: Worth) {
        self.tokens = self.tokens.saturating_sub(other.tokens);
        self.cost = Money::from_nanos(self.cost.nanos().saturating_sub(other.cost.nanos()));
    }
}

// === impl Counted ===

impl Counted {
    /// What a tenant's quota counts.
    pub(super) fn by(tenant: &Tenant, subject: Subject, quota: &Quota) -> Self {
        Self { subject, per: quota.per, zone: quota.zone.clone(), cached: tenant.count_cached }
    }

    /// Whether it is the counter of this tenant's quota.
    pub(super) fn is_of(&self, tenant: &Tenant, subject: &Subject, quota: &Quota) -> bool {
        self.per == quota.per && self.subject == *subject && self.zone == quota.zone && self.cached == tenant.count_cached
    }
}

// === impl Window ===

impl Window {
    pub(super) fn new(of: Counted, at: Duration, since: u64) -> Self {
        let span = span(of.per, &of.zone, at);
        Self { of, span, used: Worth::default(), reserved: Worth::default(), since }
    }

    /// Begins the window that `at` is in, if this one has ended. What older requests still hold or will settle belongs to
    /// the window they were admitted in.
    pub(super) fn roll(&mut self, at: Duration) {
        if at >= self.span.end {
            *self = Self::new(self.of.clone(), at, self.since);
        }
    }

    /// Gives back what the reservation with this number, made at `at`, held, and counts what it used.
    pub(super) fn settle(&mut self, number: u64, at: Duration, reserved: Worth, used: Worth) {
        if !self.span.contains(&at) {
            return;
        }
        if number >= self.since {
            self.reserved.take(reserved);
        }
        self.used.add(used);
    }
}

/// The window around a moment, in Unix time.
pub(super) fn span(per: Per, zone: &Zone, at: Duration) -> Range<Duration> {
    let moment = i64::try_from(at.as_secs()).ok().and_then(|seconds| Timestamp::from_second(seconds).ok());
    let bounds = moment.and_then(|moment| {
        let zoned = moment.to_zoned_datetime(zone.zone().clone());
        let (start, end) = match per {
            Per::Hour => {
                let start = zoned.round(ZonedDateTimeRound::new().smallest(Unit::Hour).mode(jiff::RoundMode::Trunc)).ok()?;
                let end = start.checked_add(1.hour()).ok()?;
                (start, end)
            }
            Per::Day => (zoned.start_of_day().ok()?, zoned.tomorrow().ok()?.start_of_day().ok()?),
            Per::Month => {
                let first = zoned.first_of_month().ok()?;
                (first.start_of_day().ok()?, first.checked_add(1.month()).ok()?.start_of_day().ok()?)
            }
        };
        let unix = |zoned: &jiff::ZonedDateTime| Some(Duration::from_secs(u64::try_from(zoned.timestamp().as_second()).ok()?));
        Some(unix(&start)?..unix(&end)?)
    });
    // Before 1970 and after 9999 there is one window for ever: it refuses rather than forgets.
    bounds.unwrap_or(Duration::ZERO..Duration::MAX)
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    fn at(text: &str) -> Duration {
        Duration::from_secs(u64::try_from(text.parse::<Timestamp>().unwrap().as_second()).unwrap())
    }

    #[test]
    fn windows_end_at_the_zones_own_midnights_also_when_clocks_change() {
        let berlin = Zone::named("Europe/Berlin").unwrap();
        let utc = Zone::default();
        for (per, zone, moment, start, end) in [
            (Per::Hour, &utc, "2026-05-04T10:59:59Z", "2026-05-04T10:00:00Z", "2026-05-04T11:00:00Z"),
            (Per::Day, &utc, "2026-05-04T10:59:59Z", "2026-05-04T00:00:00Z", "2026-05-05T00:00:00Z"),
            (Per::Month, &utc, "2026-12-31T23:59:59Z", "2026-12-01T00:00:00Z", "2027-01-01T00:00:00Z"),
            (Per::Day, &berlin, "2026-03-29T12:00:00Z", "2026-03-28T23:00:00Z", "2026-03-29T22:00:00Z"),
            (Per::Day, &berlin, "2026-10-25T12:00:00Z", "2026-10-24T22:00:00Z", "2026-10-25T23:00:00Z"),
            (Per::Month, &berlin, "2026-03-29T12:00:00Z", "2026-02-28T23:00:00Z", "2026-03-31T22:00:00Z"),
            (Per::Hour, &Zone::named("Asia/Kolkata").unwrap(), "2026-05-04T10:45:00Z", "2026-05-04T10:30:00Z", "2026-05-04T11:30:00Z"),
        ] {
            assert_eq!(span(per, zone, at(moment)), at(start)..at(end), "{per:?} {zone:?} {moment}");
        }
        assert!(Zone::named("Mars/Olympus").is_none());
    }
}
