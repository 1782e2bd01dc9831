//! `[[models.NAME.rules]]` as written.

use super::{Given, Named};
use crate::config::{Class, Endpoint, Name, Sticky};
use serde::de::value::{SeqAccessDeserializer, StrDeserializer};
use serde::de::{Deserialize, Deserializer, Error, SeqAccess, Visitor};
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use toml::Spanned;

#[derive(Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(in crate::config) struct Rule {
    pub(in crate::config) name: Given<Name>,
    pub(in crate::config) when: Given<When>,
    pub(in crate::config) to: Given<BTreeMap<Spanned<Name>, Spanned<f64>>>,
    pub(in crate::config) sticky: Given<StickyTo>,
    pub(in crate::config) experiment: Given<Name>,
    pub(in crate::config) control: Given<Name>,
    pub(in crate::config) guardrails: Given<Guardrails>,
    pub(in crate::config) shadow: Given<BTreeMap<Spanned<Name>, Spanned<f64>>>,
    pub(in crate::config) fallback: Vec<Spanned<Name>>,
}

#[derive(Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(in crate::config) struct Guardrails {
    pub(in crate::config) error_rate: Given<f64>,
    pub(in crate::config) ttft_p95: Given<f64>,
}

#[derive(Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(in crate::config) struct When {
    pub(in crate::config) tenant: Given<Any<Name>>,
    pub(in crate::config) key: Given<Any<Name>>,
    pub(in crate::config) prompt_tokens: Given<Between>,
    pub(in crate::config) endpoint: Given<Any<Endpoint>>,
    pub(in crate::config) header: Named<Given<Any<String>>>,
    pub(in crate::config) class: Given<Class>,
}

#[derive(Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(in crate::config) struct Between {
    pub(in crate::config) above: Option<u32>,
    pub(in crate::config) below: Option<u32>,
}

/// One value, or a list of which any will do.
#[derive(Debug)]
pub(in crate::config) struct Any<T>(pub(in crate::config) Vec<T>);

/// To whom requests stick.
#[derive(Debug)]
pub(in crate::config) struct StickyTo(pub(in crate::config) Sticky);

struct AnyVisitor<T>(PhantomData<T>);

// === serde ===

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Any<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AnyVisitor(PhantomData))
    }
}

impl<'de, T: Deserialize<'de>> Visitor<'de> for AnyVisitor<T> {
    type Value = Any<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text or a list of texts")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Any<T>, E> {
        T::deserialize(StrDeserializer::new(text)).map(|one| Any(vec![one]))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Any<T>, A::Error> {
        Vec::deserialize(SeqAccessDeserializer::new(list)).map(Any)
    }
}

impl<'de> Deserialize<'de> for StickyTo {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map(StickyTo).map_err(|error| D::Error::custom(format!("{text:?}: {error}")))
    }
}
