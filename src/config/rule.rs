//! Rules that choose among a model's variants.

use super::{Class, Endpoint, Name};
use serde::{Serialize, Serializer};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// Where some of a model's requests go; the first rule that matches decides.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Rule {
    /// Its name, for logs and bills.
    pub name: Name,
    /// Which requests it is for.
    pub when: When,
    /// The variants they go to, each with its share, by name; zero is none, and not all are zero.
    pub to: Vec<Share>,
    /// Who keeps a variant once it is chosen; `None` draws anew for each request.
    pub sticky: Option<Sticky>,
    /// The experiment that its requests belong to.
    pub experiment: Option<Experiment>,
    /// The variants to try, in this order, where the chosen one can't answer.
    pub fallback: Arc<[Name]>,
}

/// What part of a rule's requests a variant gets.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Share {
    /// The variant.
    pub variant: Name,
    /// Its weight beside the others'.
    pub weight: f64,
}

/// What a rule's requests are counted as.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Experiment {
    /// Its name.
    pub name: Name,
    /// The variant that the others are compared with; it has a weight above 0.
    pub control: Name,
    /// What takes a variant out.
    pub guardrails: Guardrails,
    /// Variants that get copies of requests besides, only to be measured: what part of them each, 1 at most all together.
    pub shadow: Vec<Mirror>,
}

/// A variant and what part of requests is copied to it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Mirror {
    /// The variant.
    pub variant: Name,
    /// From 0 to 1.
    pub fraction: f64,
}

/// How many times the control's a variant's figures may be, at least 1; one that is worse for sure gets no more requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Guardrails {
    /// The share of requests that fail, or go to a fallback.
    pub error_rate: Option<f64>,
    /// The 95th percentile of the time to the first token.
    pub ttft_p95: Option<f64>,
}

/// What a request has to be; `None`, and no header, is anything.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct When {
    /// Of one of these tenants.
    pub tenant: Option<Vec<Name>>,
    /// By a key of one of these names.
    pub key: Option<Vec<Name>>,
    /// How many tokens its longest prompt has.
    pub prompt_tokens: Between,
    /// Sent to one of these endpoints.
    pub endpoint: Option<Vec<Endpoint>>,
    /// With all of these headers.
    pub header: Vec<Header>,
    /// Of this class.
    pub class: Option<Class>,
}

/// An open interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Between {
    /// More than this.
    pub above: Option<u32>,
    /// Fewer than this.
    pub below: Option<u32>,
}

/// A header and what it may say.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Header {
    /// Its name, in lower case.
    pub name: Name,
    /// Its values; one of them, exactly.
    pub values: Vec<String>,
}

/// Whose requests go to the same variant, as long as weights don't move them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sticky {
    /// Those of one key.
    Key,
    /// Those of one tenant.
    Tenant,
    /// Those of one tenant with the same `user`; of the same key where they have none.
    User,
    /// Those of one tenant with the same value of this header; of the same key where they have none.
    Header(Name),
}

/// A text that names nobody to stick to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("requests stick to \"key\", \"tenant\", \"user\" or \"header:NAME\"")]
pub struct StickyError;

// === impl Rule ===

impl Rule {
    /// The headers that it looks at.
    pub fn headers(&self) -> impl Iterator<Item = &Name> {
        let sticky = match &self.sticky {
            Some(Sticky::Header(name)) => Some(name),
            _ => None,
        };
        self.when.header.iter().map(|header| &header.name).chain(sticky)
    }
}

// === impl When ===

impl When {
    /// Whether it is for every request.
    pub fn is_any(&self) -> bool {
        *self == Self::default()
    }
}

// === impl Sticky ===

impl FromStr for Sticky {
    type Err = StickyError;

    fn from_str(text: &str) -> Result<Self, StickyError> {
        match text {
            "key" => Ok(Sticky::Key),
            "tenant" => Ok(Sticky::Tenant),
            "user" => Ok(Sticky::User),
            _ => match text.strip_prefix("header:") {
                Some(name) => Ok(Sticky::Header(name.to_ascii_lowercase().into())),
                None => Err(StickyError),
            },
        }
    }
}

impl fmt::Display for Sticky {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Sticky::Key => f.write_str("key"),
            Sticky::Tenant => f.write_str("tenant"),
            Sticky::User => f.write_str("user"),
            Sticky::Header(name) => write!(f, "header:{name}"),
        }
    }
}

impl Serialize for Sticky {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}
