//! What a key may be used for, and from where.

use super::Name;
use ipnet::{IpNet, Ipv4Net};
use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// What a key may be used for; `None` is everything.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scope {
    /// The models it may ask for, among those of its tenant.
    pub models: Option<Vec<Name>>,
    /// The endpoints it may use.
    pub endpoints: Option<Vec<Endpoint>>,
    /// The networks it may come from.
    pub networks: Option<Vec<Network>>,
}

/// A group of paths that a key may be confined to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Endpoint {
    /// `/v1/chat/completions`
    Chat,
    /// `/v1/completions`
    Completions,
    /// `/v1/models`
    Models,
}

/// Addresses with the same beginning, `10.0.0.0/8`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Network(IpNet);

/// A text that names no network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a network is an address with the length of its prefix, such as \"10.0.0.0/8\", or a single address")]
pub struct NetworkError;

// === impl Scope ===

impl Scope {
    /// Whether it holds this model.
    pub fn has_model(&self, model: &Name) -> bool {
        self.models.as_ref().is_none_or(|models| models.contains(model))
    }

    /// Whether it holds this endpoint.
    pub fn has_endpoint(&self, endpoint: Endpoint) -> bool {
        self.endpoints.as_ref().is_none_or(|endpoints| endpoints.contains(&endpoint))
    }

    /// Whether a peer at this address may use it.
    pub fn has_address(&self, address: IpAddr) -> bool {
        contain(&self.networks, address)
    }
}

/// Whether one of these networks has this address; all addresses are allowed where none is named.
pub(super) fn contain(networks: &Option<Vec<Network>>, address: IpAddr) -> bool {
    networks.as_ref().is_none_or(|networks| networks.iter().any(|network| network.contains(address)))
}

// === impl Endpoint ===

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

impl FromStr for Endpoint {
    type Err = serde::de::value::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::deserialize(serde::de::value::StrDeserializer::new(text))
    }
}

// === impl Network ===

impl Network {
    /// Whether `address` is one of it. An IPv4 address is the same one when it comes mapped into IPv6, as it does on a
    /// socket that listens for both.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.0.contains(&address.to_canonical())
    }
}

impl FromStr for Network {
    type Err = NetworkError;

    fn from_str(text: &str) -> Result<Self, NetworkError> {
        let net = text.parse::<IpNet>().ok().or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from)).ok_or(NetworkError)?;
        let mapped = match net {
            IpNet::V6(net) if net.prefix_len() >= 96 => net.network().to_ipv4_mapped().map(|network| (network, net.prefix_len() - 96)),
            _ => None,
        };
        Ok(Self(match mapped {
            Some((network, prefix)) => IpNet::V4(Ipv4Net::new(network, prefix).map_err(|_| NetworkError)?),
            None => net.trunc(),
        }))
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Serialize for Network {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Network {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(NetworkVisitor)
    }
}

/// Fails where the text is, so that the file's error has its place.
struct NetworkVisitor;

impl Visitor<'_> for NetworkVisitor {
    type Value = Network;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a network such as \"10.0.0.0/8\"")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Network, E> {
        text.parse().map_err(|error| E::custom(format!("{text:?}: {error}")))
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn a_network_has_the_addresses_with_its_prefix_however_they_are_written() {
        for (network, inside, outside) in [
            ("10.0.0.0/8", &["10.255.0.1", "::ffff:10.1.2.3"][..], &["11.0.0.1", "::ffff:11.0.0.1", "::1", "::10.0.0.1"][..]),
            ("10.1.2.3", &["10.1.2.3"], &["10.1.2.4"]),
            ("10.1.2.3/8", &["10.9.9.9"], &["9.1.2.3"]),
            ("0.0.0.0/0", &["1.2.3.4", "::ffff:1.2.3.4"], &["::1"]),
            ("::ffff:192.168.0.0/112", &["192.168.7.7", "::ffff:192.168.7.7"], &["192.169.0.0"]),
            ("2001:db8::/32", &["2001:db8:1::1"], &["2001:db9::1", "10.0.0.1"]),
        ] {
            let network: Network = network.parse().unwrap();
            for address in inside {
                assert!(network.contains(address.parse().unwrap()), "{network} {address}");
            }
            for address in outside {
                assert!(!network.contains(address.parse().unwrap()), "{network} {address}");
            }
        }
        for text in ["", "10.0.0.0/33", "10.0.0/8", "host", "10.0.0.0/8 "] {
            assert_eq!(text.parse::<Network>(), Err(NetworkError), "{text}");
        }
    }

    #[test]
    fn a_scope_that_says_nothing_holds_everything_and_one_that_names_nothing_holds_nothing() {
        let all = Scope::default();
        assert!(all.has_model(&"m".into()) && all.has_endpoint(Endpoint::Models) && all.has_address([9, 9, 9, 9].into()));
        let none = Scope { models: Some(Vec::new()), endpoints: Some(Vec::new()), networks: Some(Vec::new()) };
        assert!(!none.has_model(&"m".into()) && !none.has_endpoint(Endpoint::Models) && !none.has_address([9, 9, 9, 9].into()));
        let text = serde_json::to_string(&Scope { networks: Some(vec!["10.0.0.0/8".parse().unwrap()]), ..none }).unwrap();
        assert_eq!(text, r#"{"models":[],"endpoints":[],"networks":["10.0.0.0/8"]}"#);
        assert!(serde_json::from_str::<Scope>(&text).unwrap().has_address([10, 1, 1, 1].into()));
    }
}
