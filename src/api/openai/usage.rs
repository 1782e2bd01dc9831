//! What a request used, as clients read it.

use crate::call::Usage;
use crate::config::{Money, Prices};
use serde::Serialize;

/// `usage` on the wire.
#[derive(Serialize)]
pub(super) struct UsageBody {
    prompt_tokens: u32,
    completion_tokens: u32,
    total_tokens: u64,
    prompt_tokens_details: PromptTokensDetails,
    #[serde(flatten)]
    bill: Option<Bill>,
}

#[derive(Serialize)]
struct PromptTokensDetails {
    cached_tokens: u32,
}

/// Where the model has prices.
#[derive(Serialize)]
struct Bill {
    /// In the configured currency; a decimal as text, since a float wouldn't be exact.
    cost: Money,
    /// The request's share of its device's busy time, in milliseconds.
    device_ms: f64,
}

// === impl UsageBody ===

impl UsageBody {
    pub(super) fn new(usage: &Usage, prices: Option<&Prices>) -> Self {
        let bill = prices.map(|prices| Bill { cost: usage.cost(prices), device_ms: usage.device_time.as_nanos() as f64 / 1e6 });
        Self {
            prompt_tokens: usage.prompt_tokens,
            completion_tokens: usage.completion_tokens,
            total_tokens: u64::from(usage.prompt_tokens) + u64::from(usage.completion_tokens),
            prompt_tokens_details: PromptTokensDetails { cached_tokens: usage.cached_tokens },
            bill,
        }
    }
}
