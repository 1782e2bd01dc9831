//! Which rule matches, and which variant it gives. Pure: what serves requests and what explains the choice is this.

use crate::call::Call;
use crate::config::{Class, Endpoint, Experiment, Model, Name, Rule, Sticky, When};
use std::fmt;
use std::hash::{BuildHasher, RandomState};

/// What rules look at.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    /// Who asks.
    pub tenant: &'a str,
    /// By which key.
    pub key: &'a str,
    /// Where.
    pub endpoint: Endpoint,
    /// How urgent it is.
    pub class: Class,
    /// How many tokens its longest prompt has, or most likely has.
    pub prompt_tokens: u32,
    /// Its `user`.
    pub user: Option<&'a str>,
    /// Its headers, names in lower case.
    pub headers: &'a [(Name, String)],
}

/// The first condition of a rule that a request doesn't meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unmet<'a> {
    /// It is another tenant's.
    Tenant,
    /// It came by another key.
    Key,
    /// Its prompt has too few tokens, or too many.
    PromptTokens,
    /// It was sent elsewhere.
    Endpoint,
    /// This header isn't there or says something else.
    Header(&'a Name),
    /// It is of another class.
    Class,
}

/// Who keeps a variant: all requests with an equal subject have the same one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subject {
    /// What it is, `key`, as logs say it; nobody's but one request's for `request`.
    pub kind: &'static str,
    hash: [u8; 32],
}

/// The rule that decides, the first that matches; `None` where no rule is needed.
pub fn find<'m>(model: &'m Model, request: &Request<'_>) -> Option<&'m Rule> {
    model.rules.iter().find(|rule| unmet(&rule.when, request).is_none())
}

/// What keeps a rule from matching; `None`: it matches.
pub fn unmet<'w>(when: &'w When, request: &Request<'_>) -> Option<Unmet<'w>> {
    let among = |names: &Option<Vec<Name>>, name: &str| names.as_ref().is_none_or(|names| names.iter().any(|one| one.as_str() == name));
    let tokens = request.prompt_tokens;
    if !among(&when.tenant, request.tenant) {
        return Some(Unmet::Tenant);
    }
    if !among(&when.key, request.key) {
        return Some(Unmet::Key);
    }
    if when.prompt_tokens.above.is_some_and(|above| tokens <= above) || when.prompt_tokens.below.is_some_and(|below| tokens >= below) {
        return Some(Unmet::PromptTokens);
    }
    if when.endpoint.as_ref().is_some_and(|endpoints| !endpoints.contains(&request.endpoint)) {
        return Some(Unmet::Endpoint);
    }
    if when.class.is_some_and(|class| class != request.class) {
        return Some(Unmet::Class);
    }
    let says = |name: &Name, values: &[String]| request.headers.iter().any(|(header, value)| header == name && values.contains(value));
    when.header.iter().find(|header| !says(&header.name, &header.values)).map(|header| Unmet::Header(&header.name))
}

/// Who a rule's variant sticks to.
pub fn subject(rule: &Rule, request: &Request<'_>) -> Subject {
    let by_key = || Subject::of("key", &[request.tenant, request.key]);
    match &rule.sticky {
        None => Subject::of("request", &[&RandomState::new().hash_one(0).to_string()]),
        Some(Sticky::Key) => by_key(),
        Some(Sticky::Tenant) => Subject::of("tenant", &[request.tenant]),
        Some(Sticky::User) => request.user.map_or_else(by_key, |user| Subject::of("user", &[request.tenant, user])),
        Some(Sticky::Header(name)) => {
            let value = request.headers.iter().find(|(header, _)| header == name);
            value.map_or_else(by_key, |(_, value)| Subject::of("header", &[request.tenant, value]))
        }
    }
}

/// The variant of a subject: every variant draws a time for it, the sooner the greater its weight, and the first one has it
/// (weighted rendezvous hashing). The draw depends on nothing but names, so it is the same on every replica and after a
/// restart; and a weight that grows only takes subjects, one that shrinks only gives them, so that 90/10 → 80/20 moves a
/// tenth of them and a variant that leaves moves none among the others.
///
/// `weight` may change a variant's configured weight; `None` where it leaves none above 0.
pub fn pick<'r>(model: &Model, rule: &'r Rule, subject: &Subject, weight: impl Fn(&Name, f64) -> f64) -> Option<&'r Name> {
    let salt = rule.experiment.as_ref();
    let drawn = rule.to.iter().filter_map(|share| {
        let weight = weight(&share.variant, share.weight);
        (weight > 0.0).then(|| {
            let mut hash = blake3::Hasher::new();
            // An experiment has its own salt, so that who is in one says nothing about another.
            match salt {
                Some(experiment) => part(&mut hash, experiment.name.as_str()),
                None => {
                    part(&mut hash, model.name.as_str());
                    part(&mut hash, rule.name.as_str());
                }
            }
            part(&mut hash, share.variant.as_str());
            hash.update(&subject.hash);
            (-unit(hash.finalize().as_bytes()).ln() / weight, &share.variant)
        })
    });
    drawn.min_by(|(one, _), (other, _)| one.total_cmp(other)).map(|(_, variant)| variant)
}

/// The variant that gets a copy of a request; drawn for each.
pub fn mirror(experiment: &Experiment) -> Option<&Name> {
    let mirrors = experiment.shadow.as_slice();
    if mirrors.is_empty() {
        return None;
    }
    let mut drawn = (RandomState::new().hash_one(0) >> 12) as f64 / (1_u64 << 52) as f64;
    let mut within = |fraction: f64| {
        drawn -= fraction;
        drawn < 0.0
    };
    mirrors.iter().find(|mirror| within(mirror.fraction)).map(|mirror| &mirror.variant)
}

/// Length first: no two lists of parts are the same bytes.
fn part(hash: &mut blake3::Hasher, part: &str) {
    hash.update(&(part.len() as u64).to_le_bytes());
    hash.update(part.as_bytes());
}

/// Evenly between 0 and 1, neither of them.
fn unit(hash: &[u8; 32]) -> f64 {
    let [a, b, c, d, e, f, g, h, ..] = *hash;
    let bits = u64::from_le_bytes([a, b, c, d, e, f, g, h]) >> 12;
    (bits as f64 + 0.5) / (1_u64 << 52) as f64
}

// === impl Request ===

impl<'a> Request<'a> {
    /// What rules see of a call.
    pub fn of(call: &'a Call) -> Self {
        Self {
            tenant: call.tenant.name.as_str(),
            key: call.key.name.as_str(),
            endpoint: call.asked.endpoint,
            class: call.class,
            prompt_tokens: call.asked.prompts.iter().map(|prompt| prompt.likely_tokens()).max().unwrap_or_default(),
            user: call.asked.user.as_deref(),
            headers: &call.asked.headers,
        }
    }
}

// === impl Subject ===

impl Subject {
    fn of(kind: &'static str, parts: &[&str]) -> Self {
        let mut hash = blake3::Hasher::new();
        part(&mut hash, kind);
        for one in parts {
            part(&mut hash, one);
        }
        Self { kind, hash: hash.finalize().into() }
    }

    /// A number of its own, to tell it from others where little memory is to be had. It has nothing to do with its variant.
    pub fn number(&self) -> u64 {
        let [a, b, c, d, e, f, g, h, ..] = self.hash;
        u64::from_le_bytes([a, b, c, d, e, f, g, h])
    }
}

// === impl Unmet ===

impl fmt::Display for Unmet<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unmet::Tenant => f.write_str("tenant"),
            Unmet::Key => f.write_str("key"),
            Unmet::PromptTokens => f.write_str("prompt_tokens"),
            Unmet::Endpoint => f.write_str("endpoint"),
            Unmet::Header(name) => write!(f, "header.{name}"),
            Unmet::Class => f.write_str("class"),
        }
    }
}
