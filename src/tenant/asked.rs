//! The parts of a call that limits and quotas look at.

use super::need::Need;
use super::subject::Asker;
use crate::call::Call;
use crate::config::{Key, Model, Tenant};
use std::sync::Arc;

/// The parts of a call that its reservation is made for; a reload in between doesn't change them.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    pub(super) tenant: Arc<Tenant>,
    pub(super) key: Arc<Key>,
    pub(super) model: Arc<Model>,
    prompt: u64,
    choices: u64,
    max_tokens: u32,
}

// === impl Asked ===

impl Asked {
    pub(super) fn new(call: &Call) -> Self {
        Self {
            tenant: call.tenant.clone(),
            key: call.key.clone(),
            model: call.model.clone(),
            prompt: call.prompts.iter().map(|prompt| u64::from(prompt.tokens)).sum(),
            choices: call.prompts.len() as u64 * u64::from(call.sampling.n),
            max_tokens: call.sampling.max_tokens,
        }
    }

    /// The same, limited otherwise.
    pub(super) fn of(&self, tenant: Tenant, key: Key) -> Self {
        Self { tenant: Arc::new(tenant), key: Arc::new(key), ..self.clone() }
    }

    /// A call of these parts.
    #[cfg(test)]
    pub(super) fn parts(tenant: Tenant, key: Key, model: Arc<Model>, prompt: u64, choices: u64, max_tokens: u32) -> Self {
        Self { tenant: Arc::new(tenant), key: Arc::new(key), model, prompt, choices, max_tokens }
    }

    pub(super) fn need(&self) -> Need<'_> {
        let asker = Asker { tenant: &self.tenant, key: &self.key, model: &self.model };
        Need { asker, prompt: self.prompt, choices: self.choices, max_tokens: self.max_tokens }
    }
}
