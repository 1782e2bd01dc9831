//! `[[models.NAME.rules]]`

use super::{Resolver, or_nearest};
use crate::config::problem::join;
use crate::config::raw::rule as raw;
use crate::config::raw::{Given, Named};
use crate::config::{Between, Endpoint, Experiment, Guardrails, Header, Mirror, Name, Rule, Share, Sticky, Variant, When};
use http::HeaderName;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use toml::Spanned;

/// What the rules of all models name.
#[derive(Default)]
pub(super) struct Rules {
    /// The configured tenants.
    pub(super) tenants: BTreeSet<Name>,
    /// The experiments so far.
    pub(super) experiments: BTreeSet<Name>,
}

/// Headers that are secrets: whoever may come in is told apart by tenant and key.
const SECRET: [&str; 4] = ["authorization", "x-api-key", "proxy-authorization", "cookie"];

impl Resolver<'_> {
    /// A model's rules. `given` are its variants with their places.
    pub(super) fn rules(
        &mut self,
        raw: Vec<Spanned<raw::Rule>>,
        path: &str,
        variants: &BTreeMap<Name, Variant>,
        given: &[Spanned<Name>],
        known: &mut Rules,
    ) -> Vec<Rule> {
        let path = join(path, "rules");
        let broken = self.broken.iter().any(|broken| broken.starts_with(&path));
        if let (true, Some(second)) = (raw.is_empty() && !broken, given.get(1)) {
            let message = "a second variant needs rules that choose between them, `[[models.NAME.rules]]` with `to = { … }`; or keep one";
            self.refuse(second.span(), &join(path.trim_end_matches(".rules"), "variants"), message);
        }
        let mut rules: Vec<Rule> = Vec::with_capacity(raw.len());
        let mut for_all: Option<Name> = None;
        let last = raw.last().map(Spanned::span);
        for (index, raw) in raw.into_iter().enumerate() {
            let (path, span) = (format!("{path}[{index}]"), raw.span());
            let rule = self.rule(raw, &path, variants, known);
            if rules.iter().any(|other| other.name == rule.name) {
                self.refuse(span.clone(), &join(&path, "name"), format!("a rule of this model has the name `{}` already", rule.name));
            }
            if let Some(earlier) = &for_all {
                self.refuse(span, &path, format!("no request comes here: rule `{earlier}` has no `when`, so it takes all of them"));
            } else if rule.when.is_any() {
                for_all = Some(rule.name.clone());
            }
            rules.push(rule);
        }
        if let (Some(last), None, false, true) = (last, &for_all, broken, given.len() > 1) {
            self.refuse(last, &path, "what no rule matches would have no variant: let the last rule have no `when`");
        }
        if !rules.is_empty() && !broken {
            let named =
                |name: &Name| rules.iter().any(|rule| rule.fallback.contains(name) || rule.to.iter().any(|share| share.variant == *name));
            for variant in given.iter().filter(|variant| given.len() > 1 && !named(variant.get_ref())) {
                let path = join(&join(path.trim_end_matches(".rules"), "variants"), variant.get_ref().as_str());
                self.refuse(variant.span(), &path, "no rule leads to this variant; give it a weight, 0 keeps it for later");
            }
        }
        rules
    }

    fn rule(&mut self, raw: Spanned<raw::Rule>, path: &str, variants: &BTreeMap<Name, Variant>, known: &mut Rules) -> Rule {
        let span = raw.span();
        let raw = raw.into_inner();
        if let Some(name) = &raw.name {
            self.name(name, &join(path, "name"));
        }
        let name = self.required(raw.name, &span, path, "name").unwrap_or_else(|| path.into());
        let when = self.when(raw.when, &join(path, "when"), known);
        let to = self.shares(raw.to, &span, path, variants);
        let sticky = raw.sticky.map(|sticky| {
            let span = sticky.span();
            let raw::StickyTo(sticky) = sticky.into_inner();
            if let Sticky::Header(name) = &sticky {
                self.header(name, span, &join(path, "sticky"));
            }
            sticky
        });
        let shadow = self.shadow(raw.shadow, raw.experiment.is_some(), path, variants);
        let experiment = self.experiment((raw.experiment, raw.control, raw.guardrails), &to, path, known);
        let experiment = experiment.map(|experiment| Experiment { shadow, ..experiment });
        let mut fallback: Vec<Name> = Vec::new();
        for (index, variant) in raw.fallback.into_iter().enumerate() {
            let path = format!("{path}.fallback[{index}]");
            self.variant(&variant, &path, variants);
            if fallback.contains(variant.get_ref()) {
                self.refuse(variant.span(), &path, format!("`{}` is in this list already", variant.get_ref()));
            }
            fallback.push(variant.into_inner());
        }
        Rule { name, when, to, sticky, experiment, fallback: fallback.into() }
    }

    fn experiment(
        &mut self,
        (name, control, guardrails): (Given<Name>, Given<Name>, Given<raw::Guardrails>),
        to: &[Share],
        path: &str,
        known: &mut Rules,
    ) -> Option<Experiment> {
        let Some(name) = name else {
            let control = control.map(|control| (control.span(), "control"));
            let orphans = control.into_iter().chain(guardrails.map(|guardrails| (guardrails.span(), "guardrails")));
            for (span, key) in orphans {
                self.refuse(span, &join(path, key), "this belongs to an experiment; give it a name, `experiment = \"…\"`");
            }
            return None;
        };
        let key = join(path, "experiment");
        self.name(&name, &key);
        if !known.experiments.insert(name.get_ref().clone()) {
            self.refuse(name.span(), &key, format!("`{}` is the experiment of another rule already", name.get_ref()));
        }
        if let Some(control) = &control {
            let weight = to.iter().find(|share| share.variant == *control.get_ref()).map_or(0.0, |share| share.weight);
            if weight <= 0.0 {
                let message = format!("`{}` has no weight in `to`, so there is nothing to compare with", control.get_ref());
                self.refuse(control.span(), &join(path, "control"), message);
            }
        }
        // The first of the heaviest.
        let heaviest = to.iter().rev().max_by(|one, other| one.weight.total_cmp(&other.weight)).map(|share| share.variant.clone());
        let control = control.map(Spanned::into_inner).or(heaviest).unwrap_or_else(|| name.get_ref().clone());
        let guardrails = guardrails.map(Spanned::into_inner).unwrap_or_default();
        let mut bound = |given: Given<f64>, key: &str| {
            let given = given?;
            if !(given.get_ref().is_finite() && *given.get_ref() >= 1.0) {
                let path = join(&join(path, "guardrails"), key);
                self.refuse(given.span(), &path, "this is a number from 1 on: how many times the control's it may be");
            }
            Some(given.into_inner())
        };
        let guardrails =
            Guardrails { error_rate: bound(guardrails.error_rate, "error_rate"), ttft_p95: bound(guardrails.ttft_p95, "ttft_p95") };
        Some(Experiment { name: name.into_inner(), control, guardrails, shadow: Vec::new() })
    }

    fn shares(
        &mut self,
        raw: Given<BTreeMap<Spanned<Name>, Spanned<f64>>>,
        rule: &Range<usize>,
        path: &str,
        variants: &BTreeMap<Name, Variant>,
    ) -> Vec<Share> {
        let span = raw.as_ref().map(Spanned::span);
        let weights = self.required(raw, rule, path, "to").unwrap_or_default();
        let path = join(path, "to");
        let mut shares = Vec::with_capacity(weights.len());
        for (variant, weight) in weights {
            let path = join(&path, variant.get_ref().as_str());
            self.variant(&variant, &path, variants);
            if !(weight.get_ref().is_finite() && *weight.get_ref() >= 0.0) {
                self.refuse(weight.span(), &path, "a weight is a number from 0 on");
            }
            shares.push(Share { variant: variant.into_inner(), weight: weight.into_inner() });
        }
        let broken = self.broken.iter().any(|broken| broken.starts_with(&path));
        if let (Some(span), true, false) = (span, shares.iter().all(|share| share.weight == 0.0), broken) {
            self.refuse(span, &path, "a variant needs a weight above 0, or its requests have nowhere to go");
        }
        shares
    }

    fn shadow(
        &mut self,
        raw: Given<BTreeMap<Spanned<Name>, Spanned<f64>>>,
        measured: bool,
        path: &str,
        variants: &BTreeMap<Name, Variant>,
    ) -> Vec<Mirror> {
        let Some(raw) = raw else { return Vec::new() };
        let (span, path) = (raw.span(), join(path, "shadow"));
        if !measured {
            self.refuse(span.clone(), &path, "this is only measured, by an experiment; give it a name, `experiment = \"…\"`");
        }
        let mut mirrors = Vec::new();
        for (variant, fraction) in raw.into_inner() {
            let path = join(&path, variant.get_ref().as_str());
            self.variant(&variant, &path, variants);
            if !(0.0..=1.0).contains(fraction.get_ref()) {
                self.refuse(fraction.span(), &path, "what part of the requests is copied lies between 0 and 1");
            }
            mirrors.push(Mirror { variant: variant.into_inner(), fraction: fraction.into_inner() });
        }
        if mirrors.iter().map(|mirror| mirror.fraction).sum::<f64>() > 1.0 {
            self.refuse(span, &path, "a request is copied once at most, so all parts together are 1 at most");
        }
        mirrors
    }

    fn variant(&mut self, name: &Spanned<Name>, path: &str, variants: &BTreeMap<Name, Variant>) {
        let defined = path.split_once(".rules[").map_or("", |(model, _)| model);
        let broken = self.broken.contains(&join(&join(defined, "variants"), name.get_ref().as_str()));
        if !variants.contains_key(name.get_ref()) && !broken {
            self.refuse(name.span(), path, or_nearest("variant", name.get_ref(), variants.keys()));
        }
    }

    fn when(&mut self, raw: Given<raw::When>, path: &str, known: &Rules) -> When {
        let raw = raw.map(Spanned::into_inner).unwrap_or_default();
        let tenant = self.any(raw.tenant, &join(path, "tenant"), |this, name, span, path| {
            if !known.tenants.contains(name) {
                this.refuse(span, path, or_nearest("tenant", name, &known.tenants));
            }
        });
        let endpoint = self.any(raw.endpoint, &join(path, "endpoint"), |this, endpoint, span, path| {
            if *endpoint == Endpoint::Models {
                this.refuse(span, path, "a list of models comes from no variant; rules are for `chat` and `completions`");
            }
        });
        When {
            tenant,
            key: self.any(raw.key, &join(path, "key"), |_, _, _, _| ()),
            prompt_tokens: self.between(raw.prompt_tokens, &join(path, "prompt_tokens")),
            endpoint,
            header: self.headers(raw.header, &join(path, "header")),
            class: raw.class.map(Spanned::into_inner),
        }
    }

    /// A list of which any will do, each item checked.
    fn any<T>(&mut self, raw: Given<raw::Any<T>>, path: &str, check: impl Fn(&mut Self, &T, Range<usize>, &str)) -> Option<Vec<T>> {
        let raw = raw?;
        let span = raw.span();
        let raw::Any(items) = raw.into_inner();
        if items.is_empty() {
            self.refuse(span.clone(), path, "an empty list matches nothing; leave the key out to match everything");
        }
        for item in &items {
            check(self, item, span.clone(), path);
        }
        Some(items)
    }

    fn between(&mut self, raw: Given<raw::Between>, path: &str) -> Between {
        let Some(raw) = raw else { return Between::default() };
        let span = raw.span();
        let raw::Between { above, below } = raw.into_inner();
        let message = match (above, below) {
            (None, None) => Some("this matches everything: give `above`, `below` or both".to_owned()),
            (_, Some(0)) => Some("no prompt has fewer than 0 tokens".to_owned()),
            (Some(above), Some(below)) if below <= above.saturating_add(1) => Some(format!("no number is above {above} and below {below}")),
            _ => None,
        };
        if let Some(message) = message {
            self.refuse(span, path, message);
        }
        Between { above, below }
    }

    fn headers(&mut self, raw: Named<Given<raw::Any<String>>>, path: &str) -> Vec<Header> {
        let mut headers = Vec::new();
        for (name, values) in raw {
            let path = join(path, name.get_ref().as_str());
            let lower = Name::from(name.get_ref().as_str().to_ascii_lowercase());
            self.header(&lower, name.span(), &path);
            let values = self.any(values, &path, |_, _, _, _| ()).unwrap_or_default();
            headers.push(Header { name: lower, values });
        }
        headers
    }

    fn header(&mut self, name: &Name, span: Range<usize>, path: &str) {
        if HeaderName::try_from(name.as_str()).is_err() {
            self.refuse(span, path, format!("`{name}` can't be the name of a header"));
        } else if SECRET.contains(&name.as_str()) {
            self.refuse(span, path, format!("`{name}` holds a secret; `tenant` and `key` tell who asks"));
        }
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

    use crate::config::{Config, ConfigError, Sticky};
    use std::path::Path;

    /// Two variants, on the lines 1 to 3, and the rules that follow them.
    fn parse(rules: &str) -> Result<Config, ConfigError> {
        let text = format!(
            "shards.a = {{ weights = \"file:a.gguf\", kv_cache = {{ memory = \"1MiB\" }} }}\n\
             models.m.variants = {{ x = {{ backends = [\"a\"] }}, y = {{ backends = [\"a\"], system = \"Be brief.\" }} }}\n\
             tenants.acme = {{}}\n{rules}"
        );
        Config::parse(&text, Path::new("r.toml"))
    }

    fn problems(rules: &str) -> Vec<String> {
        let Err(ConfigError::Invalid { problems }) = parse(rules) else { panic!("this should be refused:\n{rules}") };
        problems.iter().map(|problem| problem.to_string().strip_prefix("r.toml:").unwrap().to_owned()).collect()
    }

    fn rule(rest: &str) -> String {
        format!("[[models.m.rules]]\nname = \"all\"\n{rest}\n")
    }

    #[test]
    fn a_rule_is_read_with_all_that_it_can_say() {
        let first = "[[models.m.rules]]\nname = \"some\"\nto = { y = 1 }\n\
             when = { tenant = \"acme\", key = [\"ci\", \"cd\"], prompt_tokens = { above = 9 }, endpoint = \"chat\", header = { X-Beta = \"on\" }, class = \"batch\" }\n";
        let second = rule(
            "to = { x = 90, y = 2.5 }\nsticky = \"header:X-Session-Id\"\nexperiment = \"e\"\nguardrails = { ttft_p95 = 1.2 }\nfallback = [\"x\"]",
        );
        let config = parse(&format!("{first}{second}")).unwrap();
        let rules = &config.models["m"].rules;
        let when = &rules[0].when;
        assert_eq!((when.tenant.as_ref().unwrap().len(), when.key.as_ref().unwrap().len()), (1, 2));
        assert_eq!((when.prompt_tokens.above, when.prompt_tokens.below), (Some(9), None));
        assert_eq!((when.header[0].name.as_str(), when.header[0].values.as_slice()), ("x-beta", &["on".to_owned()][..]));
        assert!(rules[1].when.is_any());
        assert_eq!(rules[1].sticky, Some(Sticky::Header("x-session-id".into())));
        let experiment = rules[1].experiment.as_ref().unwrap();
        assert_eq!((experiment.control.as_str(), experiment.guardrails.ttft_p95), ("x", Some(1.2)), "the heaviest is the control");
        let weights: Vec<_> = rules[1].to.iter().map(|share| (share.variant.as_str(), share.weight)).collect();
        assert_eq!(weights, [("x", 90.0), ("y", 2.5)]);
        assert_eq!(rules.iter().flat_map(|rule| rule.headers()).map(|name| name.as_str()).collect::<Vec<_>>(), ["x-beta", "x-session-id"]);
        assert_eq!(config.models["m"].variants["y"].system.as_deref(), Some("Be brief."));
        let shown = serde_json::to_string(rules).unwrap();
        assert!(shown.contains(r#""sticky":"header:x-session-id""#), "{shown}");
    }

    #[test]
    fn several_variants_need_rules_that_leave_no_request_without_one() {
        assert!(problems("")[0].starts_with("2:49: models.m.variants: a second variant needs rules"), "{:?}", problems(""));
        let some = rule("to = { x = 1, y = 1 }\nwhen = { class = \"batch\" }");
        assert!(problems(&some)[0].starts_with("4:1: models.m.rules: what no rule matches would have no variant"), "{:?}", problems(&some));
        let unreachable = rule("to = { x = 1 }") + "[[models.m.rules]]\nname = \"late\"\nto = { y = 1 }\n";
        assert!(problems(&unreachable)[0].starts_with("7:1: models.m.rules[1]: no request comes here"), "{:?}", problems(&unreachable));
        let unused = problems(&rule("to = { x = 1 }"));
        assert!(unused[0].starts_with("2:49: models.m.variants.y: no rule leads to this variant"), "{unused:?}");
        assert!(parse(&rule("to = { x = 1, y = 0 }")).is_ok(), "a weight of 0 keeps it for later");
    }

    #[test]
    fn what_a_rule_can_not_mean_is_refused_where_it_stands() {
        for (rest, expected) in [
            ("to = { x = 0, y = 0 }", "6:6: models.m.rules[0].to: a variant needs a weight above 0"),
            ("to = {}\nfallback = [\"x\", \"y\"]", "6:6: models.m.rules[0].to: a variant needs a weight above 0"),
            ("to = { x = 1, y = -1 }", "6:19: models.m.rules[0].to.y: a weight is a number from 0 on"),
            ("to = { x = 1, y = nan }", "6:19: models.m.rules[0].to.y: a weight is a number from 0 on"),
            ("to = { x = 1, y = 1, zz = 1 }", "6:22: models.m.rules[0].to.zz: there is no variant `zz`"),
            ("to = { x = 1, y = 1 }\nfallback = [\"z\"]", "7:13: models.m.rules[0].fallback[0]: there is no variant `z`"),
            ("to = { x = 1, y = 1 }\nfallback = [\"x\", \"x\"]", "7:18: models.m.rules[0].fallback[1]: `x` is in this list already"),
            ("to = { x = 1, y = 1 }\nsticky = \"usr\"", "7:10: models.m.rules[0].sticky: \"usr\": requests stick to \"key\""),
            ("to = { x = 1, y = 1 }\nsticky = \"header:a b\"", "7:10: models.m.rules[0].sticky: `a b` can't be the name of a header"),
            ("to = { x = 1, y = 1 }\nsticky = \"header:Authorization\"", "7:10: models.m.rules[0].sticky: `authorization` holds a secret"),
            (
                "to = { x = 1, y = 1 }\nwhen.tenant = \"acmee\"",
                "7:15: models.m.rules[0].when.tenant: there is no tenant `acmee`; did you mean `acme`?",
            ),
            ("to = { x = 1, y = 1 }\nwhen.tenant = []", "7:15: models.m.rules[0].when.tenant: an empty list matches nothing"),
            (
                "to = { x = 1, y = 1 }\nwhen.endpoint = \"models\"",
                "7:17: models.m.rules[0].when.endpoint: a list of models comes from no variant",
            ),
            (
                "to = { x = 1, y = 1 }\nwhen.endpoint = \"chats\"",
                "7:17: models.m.rules[0].when.endpoint: unknown value `chats`; did you mean `chat`?",
            ),
            (
                "to = { x = 1, y = 1 }\nwhen.prompt_tokens = { above = 5, below = 6 }",
                "7:22: models.m.rules[0].when.prompt_tokens: no number is above 5 and below 6",
            ),
            ("to = { x = 1, y = 1 }\nwhen.prompt_tokens = {}", "7:22: models.m.rules[0].when.prompt_tokens: this matches everything"),
            ("to = { x = 1, y = 1 }\nwhen.header.cookie = \"a\"", "7:13: models.m.rules[0].when.header.cookie: `cookie` holds a secret"),
            ("to = { x = 1, y = 1 }\nwhen.models = \"a\"", "7:6: models.m.rules[0].when.models: unknown key `models`"),
            ("to = { x = 1, y = 1 }\ncontrol = \"x\"", "7:11: models.m.rules[0].control: this belongs to an experiment"),
            ("to = { x = 1, y = 1 }\nguardrails = {}", "7:14: models.m.rules[0].guardrails: this belongs to an experiment"),
            ("to = { x = 1, y = 0 }\nexperiment = \"e\"\ncontrol = \"y\"", "8:11: models.m.rules[0].control: `y` has no weight in `to`"),
            (
                "to = { x = 1, y = 1 }\nexperiment = \"e\"\nguardrails.error_rate = 0.01",
                "8:25: models.m.rules[0].guardrails.error_rate: this is a number from 1 on",
            ),
            ("to = { x = 1, y = 1 }\nshadow = { y = 0.1 }", "7:10: models.m.rules[0].shadow: this is only measured, by an experiment"),
            (
                "to = { x = 1, y = 1 }\nexperiment = \"e\"\nshadow.y = 1.5",
                "8:12: models.m.rules[0].shadow.y: what part of the requests is copied lies between 0 and 1",
            ),
            (
                "to = { x = 1 }\nexperiment = \"e\"\nshadow = { x = 0.5, y = 0.6 }",
                "8:10: models.m.rules[0].shadow: a request is copied once at most",
            ),
            ("fallback = [\"x\", \"y\"]", "4:1: models.m.rules[0].to: this key is missing"),
        ] {
            let found = problems(&rule(rest));
            assert!(found.iter().any(|problem| problem.starts_with(expected)), "{rest}: {found:?}");
        }
    }

    #[test]
    fn names_of_rules_are_unique_in_a_model_and_those_of_experiments_everywhere() {
        let one = "[[models.m.rules]]\nname = \"all\"\nwhen.class = \"batch\"\nexperiment = \"e\"\nto = { y = 1 }\n";
        let found = problems(&(one.to_owned() + &rule("to = { x = 1 }\nexperiment = \"e\"")));
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found.iter().any(|problem| problem.contains("has the name `all` already")), "{found:?}");
        assert!(found.iter().any(|problem| problem.contains("`e` is the experiment of another rule already")), "{found:?}");
    }
}
