//! Experiments: what their variants did, and whether one is so much worse than the control that it gets no more requests.
//! They outlive a reload, by name.

mod arm;
mod guard;
mod histogram;
mod report;
mod shadow;
mod trial;

use crate::clock::Clock;
use crate::config::{self, Config, Name, Rule};
use crate::metrics::Metrics;
use arc_swap::ArcSwap;
use arm::Arm;
use guard::{ALPHA, Guard, Seen};
use histogram::Histogram;
use shadow::Copies;
use std::collections::BTreeMap;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

pub(super) use arm::{End, Ended};
pub use report::{Difference, GuardReport, Percentiles, Report, ScoreReport, ShadowReport, Tokens, TripReport, VariantReport};
pub(super) use shadow::{Scored, Slot};
pub(super) use trial::Trial;

/// All experiments of the present configuration.
pub struct Experiments {
    named: ArcSwap<BTreeMap<Name, Arc<Experiment>>>,
    metrics: Metrics,
    clock: Clock,
}

/// One experiment.
pub struct Experiment {
    name: Name,
    metrics: Metrics,
    /// The variants that get no more requests; read by every request.
    out: ArcSwap<Vec<Name>>,
    /// Copies of requests that are at work.
    copies: Arc<AtomicUsize>,
    state: Mutex<State>,
}

/// What is known of it.
struct State {
    model: Name,
    rule: Rule,
    settings: config::Experiment,
    /// Unix time.
    since: Duration,
    arms: BTreeMap<Name, Arm>,
    shadows: BTreeMap<Name, Copies>,
    tests: Tests,
    trips: Vec<Trip>,
}

/// What is tested: begins anew when the rule changes, and when an operator says so.
#[derive(Default)]
struct Tests {
    /// For each variant but the control, by guardrail.
    guards: BTreeMap<Name, [Guard; 2]>,
    /// Units that had a bad event, by guardrail.
    seen: [Seen; 2],
    /// The time to the first token of all variants, less what is tolerated.
    ttft: Histogram,
    /// What of it is slow: its 95th percentile, read now and then.
    slow: Option<f64>,
}

/// What a guardrail is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Guardrail {
    /// The share of requests that fail or go to a fallback.
    ErrorRate,
    /// The 95th percentile of the time to the first token.
    TtftP95,
}

/// A variant was taken out.
#[derive(Clone, Debug)]
struct Trip {
    variant: Name,
    guardrail: Guardrail,
    /// Unix time.
    at: Duration,
    why: String,
}

/// Requests before there is a percentile to be slower than, and between two readings of it.
const WARM_UP: u64 = 50;
const READ_EVERY: u64 = 20;

// === impl Experiments ===

impl Experiments {
    /// None yet.
    pub fn new(metrics: Metrics, clock: Clock) -> Self {
        Self { named: ArcSwap::default(), metrics, clock }
    }

    /// Begins what is new in `config` and ends what is gone. Where a rule changed, what was counted stays, and every variant
    /// gets its chance again.
    pub fn configure(&self, config: &Config) {
        let before = self.named.load();
        let mut named = BTreeMap::new();
        for model in config.models.values() {
            for rule in &model.rules {
                let Some(settings) = &rule.experiment else { continue };
                let experiment = match before.get(&settings.name) {
                    Some(known) => {
                        known.change(&model.name, rule, settings);
                        known.clone()
                    }
                    None => Arc::new(Experiment::new(&model.name, rule, settings, self.metrics.clone(), self.clock.unix())),
                };
                named.insert(settings.name.clone(), experiment);
            }
        }
        for gone in before.values().filter(|experiment| !named.contains_key(&experiment.name)) {
            gone.lift(&mut gone.state());
        }
        self.named.store(Arc::new(named));
    }

    /// The experiment of this name.
    pub fn find(&self, name: &str) -> Option<Arc<Experiment>> {
        self.named.load().get(name).cloned()
    }

    /// Begins one again from nothing.
    pub fn reset(&self, experiment: &Experiment) {
        experiment.reset(self.clock.unix());
    }

    /// How all of them stand.
    pub fn reports(&self) -> Vec<Report> {
        self.named.load().values().map(|experiment| experiment.report()).collect()
    }
}

// === impl Experiment ===

impl Experiment {
    fn new(model: &Name, rule: &Rule, settings: &config::Experiment, metrics: Metrics, since: Duration) -> Self {
        let state = State {
            model: model.clone(),
            rule: rule.clone(),
            settings: settings.clone(),
            since,
            arms: rule.to.iter().map(|share| (share.variant.clone(), Arm::default())).collect(),
            shadows: settings.shadow.iter().map(|mirror| (mirror.variant.clone(), Copies::default())).collect(),
            tests: Tests::default(),
            trips: Vec::new(),
        };
        Self { name: settings.name.clone(), metrics, out: ArcSwap::default(), copies: Arc::default(), state: Mutex::new(state) }
    }

    /// A variant's weight: none while it is out.
    pub(super) fn weight(&self, variant: &Name, configured: f64) -> f64 {
        if self.out.load().contains(variant) { 0.0 } else { configured }
    }

    /// Gives the variants that are out their weights again, and tests them anew. What was counted stays.
    pub fn resume(&self) {
        tracing::info!(experiment = %self.name, "all variants get their weights again");
        self.lift(&mut self.state());
    }

    fn reset(&self, now: Duration) {
        tracing::info!(experiment = %self.name, "begins again");
        let mut state = self.state();
        self.lift(&mut state);
        state.arms.values_mut().for_each(|arm| *arm = Arm::default());
        state.shadows.values_mut().for_each(|copies| *copies = Copies::default());
        state.since = now;
    }

    /// How it stands.
    pub fn report(&self) -> Report {
        report::report(&self.name, &self.state())
    }

    fn change(&self, model: &Name, rule: &Rule, settings: &config::Experiment) {
        let mut state = self.state();
        if state.rule == *rule && state.model == *model {
            return;
        }
        self.lift(&mut state);
        (state.model, state.rule, state.settings) = (model.clone(), rule.clone(), settings.clone());
        let mut before = std::mem::take(&mut state.arms);
        let mut kept = |variant: &Name| (variant.clone(), before.remove(variant).unwrap_or_default());
        state.arms = rule.to.iter().map(|share| kept(&share.variant)).collect();
        let mut before = std::mem::take(&mut state.shadows);
        let mut kept = |variant: &Name| (variant.clone(), before.remove(variant).unwrap_or_default());
        state.shadows = settings.shadow.iter().map(|mirror| kept(&mirror.variant)).collect();
    }

    /// Leave for one more copy of a request.
    pub(super) fn slot(&self) -> Option<Slot> {
        Slot::take(&self.copies)
    }

    /// A copy wasn't made: there was no room for it, or the variant can't take it.
    pub(super) fn skipped(&self, variant: &Name) {
        if let Some(copies) = self.state().shadows.get_mut(variant) {
            copies.skipped += 1;
        }
    }

    /// A copy has ended.
    pub(super) fn mirrored(&self, variant: &Name, ended: &Ended) {
        if let Some(copies) = self.state().shadows.get_mut(variant) {
            copies.arm.count(ended);
        }
    }

    /// An answer was scored by the variant that got its copy.
    pub(super) fn scored(&self, variant: &Name, scored: &Scored) {
        if let Some(copies) = self.state().shadows.get_mut(variant) {
            copies.scores.add(scored);
        }
    }

    fn lift(&self, state: &mut State) {
        for trip in state.trips.drain(..) {
            self.metrics.experiment_out(&self.name, &trip.variant).set(0.0);
        }
        state.tests = Tests::default();
        self.out.store(Arc::default());
    }

    /// Counts a request that has ended, and takes its variant out where that was once too often.
    fn count(&self, variant: &Name, ended: &Ended, now: Duration) {
        let mut state = self.state();
        let Some(trip) = state.count(variant, ended, now) else { return };
        let Trip { variant, guardrail, why, .. } = &trip;
        tracing::warn!(target: "experiment", experiment = %self.name, %variant, ?guardrail, "the variant gets no more requests: {why}");
        self.metrics.experiment_out(&self.name, variant).set(1.0);
        let mut out = self.out.load().to_vec();
        out.push(variant.clone());
        state.trips.push(trip);
        self.out.store(Arc::new(out));
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A panic while something was counted leaves at worst one request half counted.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl State ===

impl State {
    fn count(&mut self, variant: &Name, ended: &Ended, now: Duration) -> Option<Trip> {
        self.arms.get_mut(variant)?.count(ended);
        let out = |name: &Name| self.trips.iter().any(|trip| trip.variant == *name);
        if out(variant) {
            return None; // what it had begun before
        }
        let guardrails = self.settings.guardrails;
        let failed = matches!(ended.end, End::Failed | End::Elsewhere);
        let slow = guardrails.ttft_p95.zip(ended.ttft.filter(|_| ended.end != End::Elsewhere));
        let slow = slow.is_some_and(|(tolerated, ttft)| {
            let own = if *variant == self.settings.control { 1.0 } else { tolerated };
            self.tests.is_slow(ttft.as_secs_f64() / own)
        });
        let events =
            [(Guardrail::ErrorRate, guardrails.error_rate.filter(|_| failed)), (Guardrail::TtftP95, guardrails.ttft_p95.filter(|_| slow))];
        for (guardrail, tolerated) in events {
            let Some(tolerated) = tolerated else { continue };
            if self.rule.sticky.is_some() && !self.tests.seen[guardrail as usize].is_first(ended.unit) {
                continue;
            }
            if let Some((variant, why)) = self.event(guardrail, variant, tolerated) {
                return Some(Trip { variant, guardrail, at: now, why });
            }
        }
        None
    }

    /// A unit's first bad event; who is out by it, and why.
    fn event(&mut self, guardrail: Guardrail, of: &Name, tolerated: f64) -> Option<(Name, String)> {
        let control = self.settings.control.clone();
        let weight = |name: &Name| self.rule.to.iter().find(|share| share.variant == *name).map_or(0.0, |share| share.weight);
        let needed = self.needed();
        let others = self.rule.to.iter().map(|share| &share.variant).filter(|name| **name != control);
        for variant in others.filter(|name| *of == control || of == *name) {
            let share = weight(variant) / (weight(variant) + weight(&control));
            if share <= 0.0 || share >= 1.0 || self.trips.iter().any(|trip| trip.variant == *variant) {
                continue;
            }
            let guard = &mut self.tests.guards.entry(variant.clone()).or_default()[guardrail as usize];
            guard.event(of == variant, share, tolerated);
            if guard.evidence() >= needed {
                let (own, controls) = guard.events;
                let unit = self.rule.sticky.as_ref().map_or("requests".to_owned(), |sticky| format!("units by {sticky}"));
                let what = match guardrail {
                    Guardrail::ErrorRate => "that failed",
                    Guardrail::TtftP95 => "that waited long for the first token",
                };
                let why = format!(
                    "of {} {unit} {what}, {own} were its own and {controls} of the control {control}, and it gets {:.0} % of both",
                    own + controls,
                    share * 100.0
                );
                return Some((variant.clone(), why));
            }
        }
        None
    }

    /// The evidence that takes a variant out: all tests together are wrong at most as often as one alone might be.
    fn needed(&self) -> f64 {
        let guardrails = self.settings.guardrails;
        let kinds = u32::from(guardrails.error_rate.is_some()) + u32::from(guardrails.ttft_p95.is_some());
        let variants = self.rule.to.iter().filter(|share| share.weight > 0.0 && share.variant != self.settings.control).count();
        f64::from(kinds.max(1)) * variants.max(1) as f64 / ALPHA
    }
}

// === impl Tests ===

impl Tests {
    /// Whether this time to the first token is longer than that of 95 % of the requests before it, of whichever variant.
    fn is_slow(&mut self, seconds: f64) -> bool {
        let count = self.ttft.count();
        if count >= WARM_UP && (self.slow.is_none() || count.is_multiple_of(READ_EVERY)) {
            self.slow = self.ttft.quantile(0.95);
        }
        self.ttft.add(seconds);
        self.slow.is_some_and(|slow| seconds > slow)
    }
}

#[cfg(test)]
mod tests;
