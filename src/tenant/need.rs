//! What a call could use at most, and what it used.

use super::subject::Asker;
use super::window::{Window, Worth};
use crate::call::Usage;
use crate::config::{Amount, Prices};

/// A call as limits and quotas see it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Need<'a> {
    pub(super) asker: Asker<'a>,
    /// Tokens of all prompts.
    pub(super) prompt: u64,
    /// Choices of all prompts.
    pub(super) choices: u64,
    /// Tokens asked for each choice.
    pub(super) max_tokens: u32,
}

/// Why a quota doesn't let a call pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Short {
    /// Not even one token a choice is left.
    Spent,
    /// Enough would be left if requests in flight gave back what they hold.
    Reserved,
}

/// An amount in its own unit.
pub(super) fn size(amount: Amount) -> u64 {
    match amount {
        Amount::Tokens(tokens) => tokens,
        Amount::Cost(cost) => cost.nanos(),
    }
}

// === impl Need ===

impl Need<'_> {
    /// What it uses with so many tokens for each choice and nothing of the prompt cached.
    pub(super) fn at_most(&self, max_tokens: u32) -> Worth {
        let output = self.choices * u64::from(max_tokens);
        let prices = self.prices();
        Worth { tokens: self.prompt + output, cost: prices.input.times(self.prompt).plus(prices.output.times(output)) }
    }

    /// What limits and quotas count of a usage.
    pub(super) fn counted(&self, usage: &Usage) -> Worth {
        let tokens = u64::from(usage.prompt_tokens) + u64::from(usage.completion_tokens);
        let cached = if self.asker.tenant.count_cached { 0 } else { u64::from(usage.cached_tokens) };
        Worth { tokens: tokens.saturating_sub(cached), cost: usage.cost(&self.prices()) }
    }

    /// How many tokens each choice may have, at most `max_tokens`, by a hard quota of this amount.
    pub(super) fn left(&self, amount: Amount, used: Worth, reserved: Worth, max_tokens: u32) -> Result<u32, Short> {
        let prices = self.prices();
        let (prompt, each) = match amount {
            Amount::Tokens(_) => (self.prompt, self.choices),
            Amount::Cost(_) => (prices.input.times(self.prompt).nanos(), prices.output.times(self.choices).nanos()),
        };
        let (used, reserved) = (used.of(amount), reserved.of(amount));
        let unsettled = size(amount).saturating_sub(used);
        if prompt.saturating_add(each) > unsettled {
            return Err(Short::Spent);
        }
        let left = unsettled.saturating_sub(reserved);
        if prompt.saturating_add(each.saturating_mul(max_tokens.into())) <= left {
            return Ok(max_tokens);
        }
        if reserved > 0 {
            return Err(Short::Reserved);
        }
        // Alone with the rest of the quota: it gets all of it. `each` isn't 0 here, else the above would have held.
        Ok(u32::try_from((left - prompt) / each.max(1)).unwrap_or(max_tokens))
    }

    /// The counters among these that count it.
    pub(super) fn windows<'w>(&self, windows: &'w mut [Window]) -> impl Iterator<Item = &'w mut Window> {
        let (key, model) = (Some(&self.asker.key.name), &self.asker.model.name);
        windows.iter_mut().filter(move |window| window.of.subject.counts(key, model))
    }

    fn prices(&self) -> Prices {
        self.asker.model.prices.unwrap_or_default()
    }
}
