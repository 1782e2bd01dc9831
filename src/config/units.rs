//! The values of a file that are more than a number or a string, each read in one place and with its unit.

use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// An amount of memory: bytes as an integer, or text such as `"512MiB"`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Bytes(pub(super) u64);

/// An amount of memory that may be a share of the machine's: `"70%"`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Memory {
    Bytes(u64),
    Percent(f64),
}

/// A length of time, `"500ms"`, `"30s"`, `"5m"`, `"1h"`, `"7d"`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Time(pub(super) Duration);

/// A number of threads, or `"auto"`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Threads {
    Auto,
    Exactly(usize),
}

/// 32 bytes as 64 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Hex32(pub(super) [u8; 32]);

/// An address to listen on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Address(pub(super) SocketAddr);

/// Where a secret is: `"${ENV}"` or `{ file = "…" }`, never the secret itself.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum SecretSource {
    Variable(String),
    File(PathBuf),
}

// === reading text ===

const BYTES: &str = "an amount of memory such as \"512MiB\" or a number of bytes";
const MEMORY: &str = "an amount of memory such as \"512MiB\", \"70%\" or a number of bytes";
const THREADS: &str = "\"auto\" or a number of threads, at least 1";
const TIME: &str = "a length of time such as \"500ms\", \"30s\", \"5m\", \"1h\" or \"7d\"";
const HEX: &str = "64 hexadecimal digits";
const ADDRESS: &str = "an address and a port such as \"127.0.0.1:8080\"";
const SECRET: &str = "\"${NAME}\" of an environment variable or { file = \"PATH\" }; a secret doesn't belong in this file";

fn bytes(text: &str) -> Option<u64> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (amount, unit) = text.split_at(digits);
    let unit: u64 = match unit.trim_start() {
        "B" | "" => 1,
        "kB" => 1_000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        "TB" => 1_000_000_000_000,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        "TiB" => 1 << 40,
        _ => return None,
    };
    match amount.parse::<u64>() {
        Ok(amount) => amount.checked_mul(unit),
        // A fraction such as 1.5GiB; exact up to 2^53 bytes, which is more than any machine has.
        Err(_) => amount.parse::<f64>().ok().map(|amount| (amount * unit as f64).round()).filter(|all| *all < 9e15).map(|all| all as u64),
    }
}

fn memory(text: &str) -> Option<Memory> {
    match text.strip_suffix('%') {
        Some(percent) => percent.trim().parse().ok().filter(|percent| *percent > 0.0 && *percent <= 100.0).map(Memory::Percent),
        None => bytes(text).map(Memory::Bytes),
    }
}

fn threads(text: &str) -> Option<Threads> {
    (text == "auto").then_some(Threads::Auto)
}

/// A length of time as people write it, `"500ms"`, `"30s"`, `"5m"`, `"1h"`, `"7d"`; `None` without a number or a unit.
pub fn duration(text: &str) -> Option<Duration> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (amount, unit) = text.split_at(digits);
    let milliseconds: u64 = match unit.trim_start() {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return None,
    };
    amount.parse::<u64>().ok()?.checked_mul(milliseconds).map(Duration::from_millis)
}

fn hex32(text: &str) -> Option<Hex32> {
    blake3::Hash::from_hex(text).ok().map(|hash| Hex32(hash.into()))
}

fn secret(text: &str) -> Option<SecretSource> {
    let name = text.strip_prefix("${")?.strip_suffix('}')?;
    let valid = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    valid.then(|| SecretSource::Variable(name.to_owned()))
}

// === serde ===

/// Reads a value that is text in the file, or an integer where it has a meaning of its own.
struct Scalar<T> {
    expected: &'static str,
    text: fn(&str) -> Option<T>,
    integer: Option<fn(u64) -> Option<T>>,
}

impl<T> Visitor<'_> for Scalar<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expected)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        (self.text)(text).ok_or_else(|| E::custom(format!("{text:?} isn't {}", self.expected)))
    }

    fn visit_i64<E: Error>(self, integer: i64) -> Result<T, E> {
        let value = self.integer.and_then(|read| read(u64::try_from(integer).ok()?));
        value.ok_or_else(|| E::custom(format!("{integer} isn't {}", self.expected)))
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = |text: &str| bytes(text).map(Bytes);
        deserializer.deserialize_any(Scalar { expected: BYTES, text, integer: Some(|bytes| Some(Bytes(bytes))) })
    }
}

impl<'de> Deserialize<'de> for Memory {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Scalar { expected: MEMORY, text: memory, integer: Some(|bytes| Some(Memory::Bytes(bytes))) })
    }
}

impl<'de> Deserialize<'de> for Threads {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let exactly = |threads| usize::try_from(threads).ok().filter(|threads| *threads > 0).map(Threads::Exactly);
        deserializer.deserialize_any(Scalar { expected: THREADS, text: threads, integer: Some(exactly) })
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Scalar { expected: TIME, text: |text| duration(text).map(Time), integer: None })
    }
}

impl<'de> Deserialize<'de> for Hex32 {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Scalar { expected: HEX, text: hex32, integer: None })
    }
}

impl<'de> Deserialize<'de> for Address {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = |text: &str| text.parse().ok().map(Address);
        deserializer.deserialize_any(Scalar { expected: ADDRESS, text, integer: None })
    }
}

impl<'de> Deserialize<'de> for SecretSource {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(SecretVisitor)
    }
}

/// Unlike [`Scalar`] it never repeats what it was given: that may be the secret itself.
struct SecretVisitor;

impl<'de> Visitor<'de> for SecretVisitor {
    type Value = SecretSource;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(SECRET)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<SecretSource, E> {
        secret(text).ok_or_else(|| E::custom(format!("write {SECRET}")))
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<SecretSource, E> {
        Err(E::custom(format!("write {SECRET}")))
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<SecretSource, E> {
        Err(E::custom(format!("write {SECRET}")))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<SecretSource, A::Error> {
        let mut file = None;
        while let Some(key) = map.next_key::<String>()? {
            if key != "file" {
                return Err(A::Error::unknown_field(&key, &["file"]));
            }
            file = Some(map.next_value()?);
        }
        file.map(SecretSource::File).ok_or_else(|| A::Error::custom(format!("write {SECRET}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_of_memory_have_binary_and_decimal_units() {
        for (text, expected) in
            [("512MiB", 512 << 20), ("16 MiB", 16 << 20), ("1.5GiB", 3 << 29), ("2GB", 2_000_000_000), ("7B", 7), ("7", 7), ("0", 0)]
        {
            assert_eq!(bytes(text), Some(expected), "{text}");
        }
        for text in ["", "MiB", "5M", "-1MiB", "1,5GiB", "999999999999TiB", "1e3MiB", "nanMiB"] {
            assert_eq!(bytes(text), None, "{text}");
        }
    }

    #[test]
    fn a_share_of_the_machine_is_above_zero_and_at_most_all_of_it() {
        assert_eq!(memory("70%"), Some(Memory::Percent(70.0)));
        assert_eq!(memory("1GiB"), Some(Memory::Bytes(1 << 30)));
        for text in ["0%", "101%", "-1%", "%", "nan%"] {
            assert_eq!(memory(text), None, "{text}");
        }
    }

    #[test]
    fn a_length_of_time_has_a_unit() {
        for (text, milliseconds) in [("500ms", 500), ("30s", 30_000), ("5 m", 300_000), ("1h", 3_600_000), ("7d", 604_800_000), ("0s", 0)] {
            assert_eq!(duration(text), Some(Duration::from_millis(milliseconds)), "{text}");
        }
        for text in ["", "5", "1.5s", "-1s", "s", "1y", "99999999999999999999s"] {
            assert_eq!(duration(text), None, "{text}");
        }
    }

    #[test]
    fn hexadecimal_digits_become_bytes_in_their_order() {
        let text = "00ff".repeat(16);
        assert_eq!(hex32(&text).map(|hex| (hex.0[0], hex.0[1], hex.0[31])), Some((0x00, 0xff, 0xff)));
        assert_eq!(hex32("00"), None);
        assert_eq!(hex32(&"zz".repeat(32)), None);
    }

    #[test]
    fn a_literal_secret_is_no_source_of_one() {
        assert_eq!(secret("${TOKEN}"), Some(SecretSource::Variable("TOKEN".to_owned())));
        for text in ["hunter2", "$TOKEN", "${}", "${A B}", "x${TOKEN}"] {
            assert_eq!(secret(text), None, "{text}");
        }
    }
}
