//! How an experiment stands, as operators read it.

use super::arm::{Arm, Estimate, Figure};
use super::histogram::Histogram;
use super::shadow::{Copies, Scores};
use super::{Guardrail, State};
use crate::config::{Mirror, Money, Name};
use serde::Serialize;
use std::collections::BTreeMap;

/// One experiment.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Its name.
    pub name: Name,
    /// Its model.
    pub model: Name,
    /// The rule whose requests it counts.
    pub rule: Name,
    /// Whose requests all go the same way, `key`; `request` where each is drawn for itself.
    pub sticky: String,
    /// Since when it counts, in seconds of Unix time.
    pub since: u64,
    /// The variant that the others are compared with.
    pub control: Name,
    /// What its variants did.
    pub variants: BTreeMap<Name, VariantReport>,
    /// What variants did with copies of requests.
    pub shadow: BTreeMap<Name, ShadowReport>,
}

/// Copies of requests that went to one variant; nobody got its answers or paid for them.
#[derive(Clone, Debug, Serialize)]
pub struct ShadowReport {
    /// What part of the requests is copied.
    pub fraction: f64,
    /// Copies that ended.
    pub n: u64,
    /// Those that failed.
    pub errors: u64,
    /// Those that weren't made: too many at once, no room at the variant, or it can't do what is asked.
    pub skipped: u64,
    /// From the copy's beginning to its first token, in seconds.
    pub ttft: Percentiles,
    /// For each token after it.
    pub tpot: Percentiles,
    /// To the end of a whole answer.
    pub latency: Percentiles,
    /// All together.
    pub tokens: Tokens,
    /// How likely it found the answers that were given; where engines of this process are both.
    pub scored: Option<ScoreReport>,
}

/// Answers scored by another variant than the one that gave them.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct ScoreReport {
    /// How many.
    pub answers: u64,
    /// Of all their tokens.
    pub tokens: u64,
    /// The mean natural logarithm of a token's probability at the variant that scores.
    pub logprob: f64,
    /// At the one that answered.
    pub primary_logprob: f64,
    /// The difference of both, an answer's mean at a time.
    pub difference: Option<Difference>,
    /// The share of tokens where both have the same likeliest one.
    pub top1_agreement: Option<f64>,
    /// The mean of KL(answered ‖ scores) in nats, from the 20 likeliest tokens of each; a lower bound.
    pub kl: Option<f64>,
}

/// One variant of an experiment.
#[derive(Clone, Debug, Serialize)]
pub struct VariantReport {
    /// Its weight; 0 while it is out.
    pub weight: f64,
    /// Why it is out.
    pub out: Option<TripReport>,
    /// Requests that it answered, that failed with it or whose clients left.
    pub n: u64,
    /// Those that failed.
    pub errors: u64,
    /// Their share.
    pub error_rate: Option<f64>,
    /// Those whose clients left.
    pub left: u64,
    /// Requests that it should have answered and another one did; they are in no other figure.
    pub fallback: u64,
    /// From the request's head to the first token, in seconds.
    pub ttft: Percentiles,
    /// For each token after it.
    pub tpot: Percentiles,
    /// To the end of a whole answer.
    pub latency: Percentiles,
    /// All together.
    pub tokens: Tokens,
    /// What it kept its devices busy for, in milliseconds.
    pub device_ms: f64,
    /// By the model's prices.
    pub cost: Money,
    /// How much more than the control's its means are, where enough is known.
    pub difference: BTreeMap<&'static str, Option<Difference>>,
    /// How the tests of its guardrails stand.
    pub guardrails: Vec<GuardReport>,
}

/// Percentiles in seconds, right to 2.5 %.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Percentiles {
    /// Half of the requests aren't above.
    pub p50: Option<f64>,
    /// 95 of 100.
    pub p95: Option<f64>,
    /// 99 of 100.
    pub p99: Option<f64>,
}

/// Tokens by kind.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Tokens {
    /// Of prompts.
    pub prompt: u64,
    /// Those of them that came from the prefix cache.
    pub cached: u64,
    /// Generated.
    pub completion: u64,
}

/// A difference of two means.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Difference {
    /// The variant's less the control's.
    pub mean: f64,
    /// With 95 % confidence it is at least this.
    pub low: f64,
    /// And at most this.
    pub high: f64,
}

/// How a test stands.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct GuardReport {
    /// What is tested.
    pub guardrail: Guardrail,
    /// How much a bet of 1 against the variant has become.
    pub evidence: f64,
    /// From when on it is out.
    pub needed: f64,
    /// First bad events of units of the variant.
    pub events: u64,
    /// Those of the control.
    pub control_events: u64,
}

/// Why a variant is out.
#[derive(Clone, Debug, Serialize)]
pub struct TripReport {
    /// By which guardrail.
    pub guardrail: Guardrail,
    /// Since when, in seconds of Unix time.
    pub since: u64,
    /// What it did.
    pub why: String,
}

const FIGURES: [(&str, Figure); 6] = [
    ("error_rate", Figure::ErrorRate),
    ("ttft", Figure::Ttft),
    ("tpot", Figure::Tpot),
    ("latency", Figure::Latency),
    ("completion_tokens", Figure::OutputTokens),
    ("cost", Figure::Cost),
];

pub(super) fn report(name: &Name, state: &State) -> Report {
    let variants = state.arms.iter().map(|(name, arm)| (name.clone(), variant(name, arm, state))).collect();
    Report {
        name: name.clone(),
        model: state.model.clone(),
        rule: state.rule.name.clone(),
        sticky: state.rule.sticky.as_ref().map_or("request".to_owned(), ToString::to_string),
        since: state.since.as_secs(),
        control: state.settings.control.clone(),
        variants,
        shadow: state.settings.shadow.iter().filter_map(|mirror| shadow(mirror, state)).collect(),
    }
}

fn shadow(mirror: &Mirror, state: &State) -> Option<(Name, ShadowReport)> {
    let Copies { arm, skipped, scores } = state.shadows.get(&mirror.variant)?;
    let report = ShadowReport {
        fraction: mirror.fraction,
        n: arm.requests,
        errors: arm.errors,
        skipped: *skipped,
        ttft: percentiles(&arm.ttft),
        tpot: percentiles(&arm.tpot),
        latency: percentiles(&arm.latency),
        tokens: Tokens { prompt: arm.usage.prompt, cached: arm.usage.cached, completion: arm.usage.completion },
        scored: scored(scores),
    };
    Some((mirror.variant.clone(), report))
}

fn scored(scores: &Scores) -> Option<ScoreReport> {
    let sums = scores.sums;
    let (answers, tokens, compared) = (scores.answers as f64, sums.tokens as f64, sums.compared as f64);
    let (sum, squares) = scores.likelier;
    let mean = sum / answers;
    let variance = (squares - sum * mean).max(0.0) / (answers - 1.0) / answers;
    // One answer tells nothing of how much answers differ.
    let estimate = (scores.answers > 1).then_some(Estimate { mean, variance, freedom: answers - 1.0 });
    (sums.tokens > 0).then(|| ScoreReport {
        answers: scores.answers,
        tokens: sums.tokens,
        logprob: sums.logprob / tokens,
        primary_logprob: sums.own_logprob / tokens,
        difference: difference(estimate, Some(Estimate { mean: 0.0, variance: 0.0, freedom: f64::INFINITY })),
        top1_agreement: (sums.compared > 0).then(|| sums.agreed as f64 / compared),
        kl: (sums.compared > 0).then(|| sums.divergence / compared),
    })
}

fn variant(name: &Name, arm: &Arm, state: &State) -> VariantReport {
    let out = state.trips.iter().find(|trip| trip.variant == *name).map(|trip| TripReport {
        guardrail: trip.guardrail,
        since: trip.at.as_secs(),
        why: trip.why.clone(),
    });
    let weight = state.rule.to.iter().find(|share| share.variant == *name).map_or(0.0, |share| share.weight);
    let control = state.arms.get(&state.settings.control).filter(|_| *name != state.settings.control);
    let compare = |control: &Arm| FIGURES.map(|(key, figure)| (key, difference(arm.estimate(figure), control.estimate(figure))));
    let sums = arm.usage;
    VariantReport {
        weight: if out.is_some() { 0.0 } else { weight },
        out,
        n: arm.requests,
        errors: arm.errors,
        error_rate: (arm.requests > 0).then(|| arm.errors as f64 / arm.requests as f64),
        left: arm.left,
        fallback: arm.elsewhere,
        ttft: percentiles(&arm.ttft),
        tpot: percentiles(&arm.tpot),
        latency: percentiles(&arm.latency),
        tokens: Tokens { prompt: sums.prompt, cached: sums.cached, completion: sums.completion },
        device_ms: sums.device.as_secs_f64() * 1e3,
        cost: Money::from_nanos(sums.cost),
        difference: control.into_iter().flat_map(compare).collect(),
        guardrails: guardrails(name, state),
    }
}

fn percentiles(histogram: &Histogram) -> Percentiles {
    Percentiles { p50: histogram.quantile(0.5), p95: histogram.quantile(0.95), p99: histogram.quantile(0.99) }
}

fn difference(own: Option<Estimate>, control: Option<Estimate>) -> Option<Difference> {
    let (mean, low, high) = own?.minus(&control?);
    Some(Difference { mean, low, high })
}

fn guardrails(variant: &Name, state: &State) -> Vec<GuardReport> {
    let guardrails = state.settings.guardrails;
    let kinds = [(Guardrail::ErrorRate, guardrails.error_rate), (Guardrail::TtftP95, guardrails.ttft_p95)];
    let tested = kinds.into_iter().filter(|(_, tolerated)| tolerated.is_some() && *variant != state.settings.control);
    let of = |(guardrail, _)| {
        let guard = state.tests.guards.get(variant).map(|guards| &guards[guardrail as usize]);
        let (events, control_events) = guard.map_or((0, 0), |guard| guard.events);
        let evidence = guard.map_or(1.0, |guard| guard.evidence());
        GuardReport { guardrail, evidence, needed: state.needed(), events, control_events }
    };
    tested.map(of).collect()
}
