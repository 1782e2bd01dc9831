//! Money and prices: whole nano-units of the configured currency, never a float.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::fmt;
use std::ops::AddAssign;
use std::str::FromStr;

/// Nano-units in one unit.
const NANO: u64 = 1_000_000_000;
/// Redis compares in doubles, which are exact up to here: about nine million units.
const MOST: u64 = 1 << 53;

/// An amount of money in nano-units of the configured currency; at most 2^53 of them where it is configured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Money(u64);

/// What a million tokens cost; with at most three decimals that is a whole number of nano-units a token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Prices {
    /// A prompt token, in nano-units.
    pub input: Money,
    /// A prompt token that came from the prefix cache.
    pub cached_input: Money,
    /// A generated token.
    pub output: Money,
}

/// Why a text isn't an amount of money.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MoneyError {
    /// Not digits with at most one point between them.
    #[error("an amount is written in digits, as `12.50`")]
    Form,
    /// More decimals than count.
    #[error("at most {0} decimals count here")]
    Decimals(usize),
    /// Larger than sums stay exact for.
    #[error("at most {} are exact", Money(MOST))]
    Size,
}

/// An amount as the file writes it, kept as text.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Decimal(pub(super) String);

// === impl Money ===

impl Money {
    /// As many nano-units.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// In nano-units.
    pub const fn nanos(self) -> u64 {
        self.0
    }

    /// As many times as much; the most there is where it would overflow.
    pub const fn times(self, count: u64) -> Self {
        Self(self.0.saturating_mul(count))
    }

    /// The sum; the most there is where it would overflow.
    pub const fn plus(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// The price of one token from that of a million, written with at most three decimals.
    ///
    /// # Errors
    /// It isn't an amount of money, or has more decimals.
    pub fn per_million(text: &str) -> Result<Self, MoneyError> {
        decimal(text, 3).map(Self)
    }
}

impl FromStr for Money {
    type Err = MoneyError;

    fn from_str(text: &str) -> Result<Self, MoneyError> {
        decimal(text, 9).map(Self)
    }
}

impl AddAssign for Money {
    fn add_assign(&mut self, other: Self) {
        *self = self.plus(other);
    }
}

impl fmt::Display for Money {
    /// A decimal without trailing zeros: `12.5`, `0.00005`, `3`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fraction = format!("{:09}", self.0 % NANO);
        match fraction.trim_end_matches('0') {
            "" => write!(f, "{}", self.0 / NANO),
            fraction => write!(f, "{}.{fraction}", self.0 / NANO),
        }
    }
}

impl Serialize for Money {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A decimal as a whole number of its last allowed decimals.
fn decimal(text: &str, decimals: usize) -> Result<u64, MoneyError> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(whole) || !digits(fraction) {
        return Err(MoneyError::Form);
    }
    let fraction = fraction.trim_end_matches('0');
    if fraction.len() > decimals {
        return Err(MoneyError::Decimals(decimals));
    }
    let number: u64 = format!("{whole}{fraction:0<decimals$}").parse().map_err(|_| MoneyError::Size)?;
    if number > MOST { Err(MoneyError::Size) } else { Ok(number) }
}

// === impl Decimal ===

impl<'de> Deserialize<'de> for Decimal {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Written)
    }
}

struct Written;

impl de::Visitor<'_> for Written {
    type Value = Decimal;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an amount of money such as 12.50")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Decimal, E> {
        Ok(Decimal(text.to_owned()))
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<Decimal, E> {
        Ok(Decimal(number.to_string()))
    }

    fn visit_f64<E: de::Error>(self, number: f64) -> Result<Decimal, E> {
        // The shortest decimal that reads as this number: what the file says, if it has at most 15 digits.
        Ok(Decimal(number.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_amount_is_exactly_what_is_written() {
        for (text, nanos, shown) in
            [("100.0", 100 * NANO, "100"), ("0.000000001", 1, "0.000000001"), ("12.50", 12_500_000_000, "12.5"), ("7", 7 * NANO, "7")]
        {
            assert_eq!(text.parse(), Ok(Money(nanos)), "{text}");
            assert_eq!(Money(nanos).to_string(), shown);
        }
        assert_eq!(Money::per_million("0.05"), Ok(Money(50)));
        assert_eq!(Money::per_million("0.0005"), Err(MoneyError::Decimals(3)));
        for wrong in ["", ".", "1.", ".5", "-1", "1e3", "1.2.3", "∞"] {
            assert_eq!(wrong.parse::<Money>(), Err(MoneyError::Form), "{wrong}");
        }
        assert_eq!("9999999999".parse::<Money>(), Err(MoneyError::Size));
    }
}
