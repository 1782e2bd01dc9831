//! The handle through which everybody talks to a remote.

use super::answer::Answer;
use super::failure::{Ended, Failure, UpstreamError};
use super::remote::Remote;
use crate::backend::{Backend, Offer, State};
use crate::call::{Call, Error, Prompt, Reply};
use crate::clock::Clock;
use crate::config::{self, Retries};
use crate::metrics::Metrics;
use futures_util::future::BoxFuture;
use std::sync::Arc;

/// A remote server that answers calls.
pub struct Upstream {
    pub(super) remote: Arc<Remote>,
}

// === impl Upstream ===

impl Upstream {
    /// The remote of this configuration. Connections are made when they are needed.
    ///
    /// # Errors
    /// What is configured can't be used.
    pub(super) fn new(config: Arc<config::Upstream>, metrics: &Metrics, clock: Clock) -> Result<Self, UpstreamError> {
        let gauge = metrics.upstream_state(&config.name);
        Ok(Self { remote: Remote::new(config, gauge, clock)? })
    }

    /// How it is configured.
    pub fn config(&self) -> &Arc<config::Upstream> {
        &self.remote.config
    }

    /// Calls in flight.
    pub fn in_flight(&self) -> u32 {
        self.remote.in_flight()
    }
}

impl Backend for Upstream {
    fn state(&self) -> State {
        self.remote.state()
    }

    fn supports(&self, call: &Call) -> Result<(), Error> {
        // Remote text comes without the tokens behind it.
        let (sampling, ids) = (&call.sampling, call.asked.token_ids);
        for (wanted, param) in [(sampling.echo, "echo"), (sampling.logprobs.is_some(), "logprobs"), (ids, "return_token_ids")] {
            if wanted {
                let message =
                    format!("'{param}' isn't supported for this model: a remote server answers, and tells text only. Leave it out.");
                return Err(Error::Unsupported { param: param.to_owned(), message });
            }
        }
        if let Some(extra) = call.asked.extras.iter().find(|extra| !self.remote.config.takes(&extra.name, extra.known)) {
            return Err(extra.refusal.clone());
        }
        let Some(limit) = self.remote.config.context.map(|context| u64::from(context.get())) else { return Ok(()) };
        let max_tokens = u64::from(call.sampling.max_tokens);
        // An upper bound refuses nothing: the remote counts.
        let fits = |prompt: &Prompt| !prompt.exact || u64::from(prompt.tokens) + max_tokens <= limit;
        match call.prompts.iter().find(|prompt| !fits(prompt)) {
            None => Ok(()),
            Some(prompt) => Err(Error::ContextLength {
                param: if call.messages.is_empty() { "prompt" } else { "messages" },
                limit,
                prompt_tokens: prompt.tokens.into(),
                max_tokens: Some(max_tokens),
            }),
        }
    }

    fn offer(&self, _: &Call) -> Offer {
        let expected = self.remote.expected();
        let (in_flight, most) = (self.remote.in_flight(), self.remote.config.max_connections.get());
        // What it takes to begin is measured under the load it has, and what is in flight beside this call tells replicas
        // apart. How long its own queue is it doesn't tell.
        let queue_time = expected * in_flight / most;
        Offer { prefill_time: expected, queue_time, in_flight, ..Offer::default() }
    }

    fn retries(&self) -> Retries {
        self.remote.config.retries
    }

    fn call(&self, call: Call) -> BoxFuture<'static, Result<Reply, Error>> {
        let remote = self.remote.clone();
        Box::pin(async move {
            let place = remote.enter(&call)?;
            let (name, record) = (remote.config.name.clone(), call.record.clone());
            record.lock().backend = Some(name.clone());
            let patience = remote.config.timeouts.first_token;
            let begun = tokio::time::timeout(patience, Answer::begin(&remote, call)).await;
            match begun.unwrap_or_else(|_| Err(Failure::Silent(patience).into())) {
                Ok(mut answer) => {
                    place.began();
                    answer.hold(place);
                    Ok(Reply::new(answer))
                }
                Err(Ended::Failed(failure)) => {
                    place.failed();
                    Err(failure.error(&name, &record))
                }
                Err(Ended::Refused(error)) => {
                    place.worked();
                    Err(error)
                }
            }
        })
    }
}
