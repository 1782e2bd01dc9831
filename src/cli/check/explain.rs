//! `roundhouse check --explain`: where a request would go and why, by the very functions that serve requests.

use crate::config::{Class, Config, Endpoint, Experiment, Guardrails, Model, Name, Rule, Tenant, When};
use crate::route::rules::{self, Request, Unmet};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// A request as it is asked about.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Question {
    model: String,
    tenant: Option<Name>,
    key: Option<Name>,
    prompt_tokens: u32,
    endpoint: Option<Endpoint>,
    class: Option<Class>,
    user: Option<String>,
    headers: BTreeMap<String, String>,
}

/// Where it would go.
#[derive(Debug, Serialize)]
pub(super) struct Explained {
    model: Name,
    /// The rules in their order up to the one that matches.
    rules: Vec<Considered>,
    /// The rule that decides; none where a model has one variant and no rule matches.
    rule: Option<Name>,
    experiment: Option<Name>,
    /// Whose requests all go the same way, `key`; `request` where each is drawn for itself.
    sticky: &'static str,
    /// The variants that it may go to; one where that is certain.
    variants: Vec<Destination>,
    fallback: Vec<Destination>,
}

/// A rule, and why it doesn't match.
#[derive(Debug, Serialize)]
struct Considered {
    rule: Name,
    matches: bool,
    /// The condition that isn't met, and what is there instead.
    because: Option<String>,
}

/// A variant and who serves it.
#[derive(Debug, Serialize)]
struct Destination {
    variant: Name,
    /// What part of such requests.
    share: f64,
    backends: Vec<Name>,
}

/// Why nothing can be explained.
#[derive(Debug, thiserror::Error)]
pub(in crate::cli) enum ExplainError {
    /// It isn't JSON, or has what no request has.
    #[error("{0}; write an object such as {{\"model\": \"NAME\", \"tenant\": \"NAME\", \"prompt_tokens\": 100}}")]
    Json(#[from] serde_json::Error),
    /// There is no such model.
    #[error("`model`: there is no model `{0}`")]
    NoModel(String),
    /// There is no such tenant.
    #[error("`tenant`: there is no tenant `{0}`")]
    NoTenant(Name),
    /// It would be told that there is no such model.
    #[error("`tenant`: `{tenant}` may not use the model `{model}`")]
    NotAllowed {
        /// The tenant.
        tenant: Name,
        /// The model.
        model: Name,
    },
    /// Where no variant answers.
    #[error("`endpoint`: no variant answers `{0}`; write `chat` or `completions`")]
    Endpoint(Endpoint),
}

/// Explains the request that `text` describes in JSON.
pub(super) fn explain(config: &Config, text: &str) -> Result<Explained, ExplainError> {
    let question: Question = serde_json::from_str(text)?;
    let model = config.model(&question.model).ok_or_else(|| ExplainError::NoModel(question.model.clone()))?;
    let find = |name: &Name| config.tenants.get(name).ok_or_else(|| ExplainError::NoTenant(name.clone()));
    let tenant = question.tenant.as_ref().map(find).transpose()?;
    if let Some(tenant) = tenant.filter(|tenant| tenant.models.as_ref().is_some_and(|models| !models.contains(&model.name))) {
        return Err(ExplainError::NotAllowed { tenant: tenant.name.clone(), model: model.name.clone() });
    }
    if let Some(endpoint) = question.endpoint.filter(|endpoint| *endpoint == Endpoint::Models) {
        return Err(ExplainError::Endpoint(endpoint));
    }
    let headers: Vec<_> = question.headers.iter().map(|(name, value)| (Name::from(name.to_ascii_lowercase()), value.clone())).collect();
    let request = Request {
        tenant: question.tenant.as_ref().map_or("", Name::as_str),
        key: question.key.as_ref().map_or("", Name::as_str),
        endpoint: question.endpoint.unwrap_or(Endpoint::Chat),
        class: question.class.or(tenant.map(|tenant: &std::sync::Arc<Tenant>| tenant.class)).unwrap_or_default(),
        prompt_tokens: question.prompt_tokens,
        user: question.user.as_deref(),
        headers: &headers,
    };
    Ok(of(model, &request))
}

fn of(model: &Model, request: &Request<'_>) -> Explained {
    let found = rules::find(model, request);
    let mut considered = Vec::new();
    for rule in &model.rules {
        let unmet = rules::unmet(&rule.when, request);
        let matches = unmet.is_none();
        considered.push(Considered { rule: rule.name.clone(), matches, because: unmet.map(|unmet| because(unmet, &rule.when, request)) });
        if matches {
            break;
        }
    }
    let destination = |variant: &Name, share: f64| {
        let backends = model.variants.get(variant).map(|variant| variant.backends.to_vec()).unwrap_or_default();
        Destination { variant: variant.clone(), share, backends }
    };
    let (sticky, variants) = match found {
        None => ("request", model.variants.keys().take(1).map(|only| destination(only, 1.0)).collect()),
        Some(rule) => {
            let subject = rules::subject(rule, request);
            let all: f64 = rule.to.iter().map(|share| share.weight).sum();
            let open = rule.to.iter().filter(|share| share.weight > 0.0);
            let drawn = || open.map(|share| destination(&share.variant, share.weight / all)).collect();
            let picked = rules::pick(model, rule, &subject, |_, weight| weight).filter(|_| subject.kind != "request");
            (subject.kind, picked.map_or_else(drawn, |picked| vec![destination(picked, 1.0)]))
        }
    };
    Explained {
        model: model.name.clone(),
        rules: considered,
        rule: found.map(|rule| rule.name.clone()),
        experiment: found.and_then(|rule| rule.experiment.as_ref()).map(|experiment| experiment.name.clone()),
        sticky,
        variants,
        fallback: found.into_iter().flat_map(|rule| rule.fallback.iter()).map(|variant| destination(variant, 1.0)).collect(),
    }
}

/// `prompt_tokens is 12 and has to be above 1500`
fn because(unmet: Unmet<'_>, when: &When, request: &Request<'_>) -> String {
    let shown = |name: &str| if name.is_empty() { "not given".to_owned() } else { name.to_owned() };
    let any = |names: &Option<Vec<Name>>| super::list(names.as_deref().unwrap_or_default());
    let (is, wanted) = match unmet {
        Unmet::Tenant => (shown(request.tenant), any(&when.tenant)),
        Unmet::Key => (shown(request.key), any(&when.key)),
        Unmet::PromptTokens => {
            let above = when.prompt_tokens.above.map(|above| format!("above {above}"));
            let below = when.prompt_tokens.below.map(|below| format!("below {below}"));
            (request.prompt_tokens.to_string(), above.into_iter().chain(below).collect::<Vec<_>>().join(" and "))
        }
        Unmet::Endpoint => (request.endpoint.to_string(), super::list(when.endpoint.as_deref().unwrap_or_default())),
        Unmet::Class => (request.class.to_string(), when.class.unwrap_or_default().to_string()),
        Unmet::Header(name) => {
            let value = request.headers.iter().find(|(header, _)| header == name);
            let wanted = when.header.iter().find(|header| header.name == *name);
            (shown(value.map_or("", |(_, value)| value)), wanted.map_or(String::new(), |header| super::list(&header.values)))
        }
    };
    format!("{unmet} is {is} and has to be {wanted}")
}

/// What a rule does, in a line.
pub(super) fn leads_to(rule: &Rule) -> String {
    let to: Vec<_> = rule.to.iter().map(|share| format!("{} = {}", share.variant, share.weight)).collect();
    let mut text = format!("{}to {}", if rule.when.is_any() { "" } else { "some " }, to.join(", "));
    let sticky = rule.sticky.as_ref().map(|sticky| format!(", sticky by {sticky}"));
    let guarded = |experiment: &Experiment| {
        let Guardrails { error_rate, ttft_p95 } = experiment.guardrails;
        let bound = |name, most: Option<f64>| most.map(|most| format!(", {name} at most {most} times the control's"));
        [bound("error rate", error_rate), bound("p95 of TTFT", ttft_p95)].into_iter().flatten().collect::<String>()
    };
    let experiment =
        |experiment: &Experiment| format!(", experiment {} against {}{}", experiment.name, experiment.control, guarded(experiment));
    let experiment = rule.experiment.as_ref().map(experiment);
    text.extend(sticky.into_iter().chain(experiment));
    if !rule.fallback.is_empty() {
        let fallback: Vec<_> = rule.fallback.iter().map(Name::as_str).collect();
        text.push_str(&format!(", fallback {}", fallback.join(", ")));
    }
    text
}

// === impl Explained ===

impl fmt::Display for Explained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "model    {}", self.model)?;
        for Considered { rule, matches, because } in &self.rules {
            let because = because.as_ref().map_or(String::new(), |because| format!(", its {because}"));
            writeln!(f, "rule     {rule}: {}{because}", if *matches { "matches" } else { "doesn't match" })?;
        }
        let why = match (self.variants.len(), self.sticky) {
            (1, "request") => String::new(),
            (1, sticky) => format!(", by its {sticky}"),
            _ => ", drawn for each request".to_owned(),
        };
        let experiment = self.experiment.as_ref().map_or(String::new(), |experiment| format!(", experiment {experiment}"));
        for to in &self.variants {
            let share = if self.variants.len() > 1 { format!(" {:.1} %", to.share * 100.0) } else { String::new() };
            writeln!(f, "variant  {}{share}{why}{experiment}", to.variant)?;
            writeln!(f, "backends {}", super::list(&to.backends))?;
        }
        for to in &self.fallback {
            writeln!(f, "fallback {} on {}", to.variant, super::list(&to.backends))?;
        }
        Ok(())
    }
}
