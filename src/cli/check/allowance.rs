//! What a tenant or a key may have, in words.

use crate::config::{Limit, Limits, Quota};

/// All limits and quotas, `600 requests/min, 32 at once, 1000000 tokens a day`; none where there are none.
pub(super) fn allowance(limits: &Limits, quotas: &[Quota]) -> Option<String> {
    let of_models = limits.models.iter().flat_map(|(model, limit)| each(limit).map(move |text| format!("{text} of {model}")));
    let parts: Vec<_> = each(&limits.all).chain(of_models).chain(quotas.iter().map(quota)).collect();
    (!parts.is_empty()).then(|| parts.join(", "))
}

fn each(limit: &Limit) -> impl Iterator<Item = String> + use<> {
    let Limit { requests_per_minute, tokens_per_minute, concurrent, tokens_per_request } = *limit;
    let parts = [
        requests_per_minute.map(|limit| format!("{limit} requests/min")),
        tokens_per_minute.map(|limit| format!("{limit} tokens/min")),
        concurrent.map(|limit| format!("{limit} at once")),
        tokens_per_request.map(|limit| format!("{limit} tokens a request")),
    ];
    parts.into_iter().flatten()
}

fn quota(quota: &Quota) -> String {
    let Quota { amount, per, zone, hard, model } = quota;
    let mut text = format!("{amount} a {}", per.as_str());
    if zone.name() != "UTC" {
        text.push_str(&format!(" in {}", zone.name()));
    }
    if let Some(model) = model {
        text.push_str(&format!(" of {model}"));
    }
    if !hard {
        text.push_str(" (soft)");
    }
    text
}
