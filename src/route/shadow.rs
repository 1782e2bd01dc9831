//! Copies of calls that go to another variant only to be measured. They begin beside the call and never hold it up, bill it
//! or fail it: they run as batch, in no tenant's name, few at once, and what goes wrong with them is counted and forgotten.
//!
//! Where both variants are engines of this process, the other one also scores the answer that was given: one prefill of prompt
//! and answer tells how likely each of its tokens was there.

use super::experiment::{End, Ended, Experiment, Scored, Slot};
use super::router::Router;
use crate::call::{Asked, Call, Error, Event, Outcome, Prompt, Record, Reply, Sampling, Shadow, TokenId, TokenLogprob, Usage};
use crate::clock::Clock;
use crate::config::{Class, Name, Tenant};
use futures_util::StreamExt;
use std::sync::Arc;
use std::task::{Poll, ready};
use std::time::{Duration, Instant};

/// A copy of one call.
#[derive(Clone)]
pub(super) struct Mirror {
    router: Router,
    experiment: Arc<Experiment>,
    variant: Name,
    unit: u64,
    /// The call as the variant gets it.
    call: Call,
    /// Given back when the copy and its scoring have ended.
    slot: Arc<Slot>,
}

/// Keeps the answer that is given, to have it scored.
pub(super) struct Recorder {
    mirror: Mirror,
    /// Whether the client doesn't want the log-probabilities that are kept.
    hide: bool,
    ids: Vec<TokenId>,
    logprobs: Vec<TokenLogprob>,
}

/// Whose share of a busy shard copies use. No tenant can be configured by this name.
const NOBODY: &str = "~shadow";
/// The likeliest tokens that are kept of each one, as many as clients can ask for.
const TOP: u32 = 20;
/// Where a call has no deadline.
const LONGEST: Duration = Duration::from_secs(600);

// === impl Mirror ===

impl Mirror {
    /// Begins a copy of `call`, unless there are too many already.
    pub(super) fn begin(router: &Router, shadow: Shadow, call: &Call) -> Option<Mirror> {
        let Shadow { variant, experiment, unit } = shadow;
        let experiment = router.experiments.find(experiment.as_str())?;
        let Some(slot) = experiment.slot() else {
            experiment.skipped(&variant);
            return None;
        };
        let (id, version) = {
            let notes = call.record.lock();
            (notes.id.clone(), notes.config_version)
        };
        let copy = Call {
            record: Record::new(id, router.clock.now(), version),
            tenant: Arc::new(Tenant::new(NOBODY.into())),
            class: Class::Batch,
            route: None,
            ..call.clone()
        };
        copy.record.lock().model = Some(copy.model.name.clone());
        let mirror = Mirror { router: router.clone(), experiment, variant, unit, call: copy, slot: Arc::new(slot) };
        tokio::spawn(mirror.clone().run());
        Some(mirror)
    }

    /// The call with what has to be kept of it, where the copy's variant can score its answer.
    pub(super) fn recorder(self, mut call: Call) -> (Call, Option<Recorder>) {
        let renderings = &self.router.renderings;
        let own = call.route.as_ref().is_some_and(|route| renderings.is_local(&call, &route.variant));
        if !own || !renderings.is_local(&call, &self.variant) {
            return (call, None);
        }
        let hide = call.sampling.logprobs.is_none();
        if hide {
            Arc::make_mut(&mut call.sampling).logprobs = Some(TOP);
        }
        (call, Some(Recorder { mirror: self, hide, ids: Vec::new(), logprobs: Vec::new() }))
    }

    async fn run(mut self) {
        let most = self.call.sampling.max_tokens;
        let mut call = self.call.clone();
        if self.router.renderings.render(&mut call, &self.variant).await.is_err() {
            return self.experiment.skipped(&self.variant);
        }
        let sampling = Arc::make_mut(&mut call.sampling);
        sampling.max_tokens = sampling.max_tokens.min(most); // a quota may have left less
        self.call = call;
        let begun = self.router.clock.now();
        let left = self.call.deadline.map_or(LONGEST, |by| by.saturating_duration_since(begun));
        let mut seen = Pace::default();
        let answered = tokio::time::timeout(left, seen.read(self.router.once(self.call.clone()), &self.router.clock)).await;
        let end = match answered {
            Ok(Ok(())) => End::Answered,
            // No room for it, or it can't: that says nothing of the variant's answers.
            Ok(Err(Error::Overloaded { .. } | Error::Unsupported { .. } | Error::ContextLength { .. })) => {
                return self.experiment.skipped(&self.variant);
            }
            Ok(Err(_)) | Err(_) => End::Failed,
        };
        let since = |at: Instant| at - begun;
        let ended = Ended {
            unit: self.unit,
            end,
            ttft: seen.first.map(since),
            tpot: seen.first.zip(seen.last).filter(|_| seen.later > 0).map(|(first, last)| (last - first) / seen.later),
            latency: since(self.router.clock.now()),
            usage: seen.usage,
            cost: 0,
        };
        self.experiment.mirrored(&self.variant, &ended);
        drop(self.slot);
    }

    /// Has an answer scored by the variant, in one prefill.
    async fn score(self, ids: Vec<TokenId>, logprobs: Vec<TokenLogprob>) {
        let mut call = self.call.clone();
        if self.router.renderings.render(&mut call, &self.variant).await.is_err() {
            return;
        }
        let own = self.call.prompts.first().and_then(|prompt| prompt.tokenizer);
        let Some(prompt) = call.prompts.first().filter(|prompt| prompt.tokenizer == own) else { return };
        let all: Vec<TokenId> = prompt.ids.iter().chain(&ids).copied().collect();
        let Some(tokenizer) = prompt.tokenizer else { return };
        let sampling = Sampling { max_tokens: 0, echo: true, logprobs: Some(TOP), ..Sampling::default() };
        let asked = Asked { prompts: [Prompt::new(all, tokenizer)].into(), ..Asked::default() };
        (call.prompts, call.sampling, call.asked) = (asked.prompts.clone(), Arc::new(sampling), Arc::new(asked));
        let scoring = async {
            let mut reply = self.router.once(call).await?;
            while let Some(event) = reply.next().await {
                if let Event::Echo { logprobs, .. } = event? {
                    return Ok::<_, Error>(logprobs);
                }
            }
            Ok(Vec::new())
        };
        if let Ok(Ok(found)) = tokio::time::timeout(LONGEST, scoring).await
            && let Some(of_answer) = found.len().checked_sub(logprobs.len()).map(|prompt| &found[prompt..])
            && !of_answer.is_empty()
        {
            self.experiment.scored(&self.variant, &Scored::of(&logprobs, of_answer));
        }
        drop(self.slot);
    }
}

// === impl Recorder ===

impl Recorder {
    /// Passes a reply through and keeps the first choice of it; at its end the answer goes to be scored.
    pub(super) fn over(self, reply: Reply) -> Reply {
        let mut recorder = Some(self);
        reply.map(move |mut events| {
            futures_util::stream::poll_fn(move |cx| {
                let mut event = ready!(events.poll_next_unpin(cx));
                if let (Some(Ok(event)), Some(keeping)) = (&mut event, &mut recorder)
                    && keeping.see(event)
                    && let Some(complete) = recorder.take()
                {
                    complete.score();
                }
                Poll::Ready(event)
            })
        })
    }

    /// Whether the first choice is complete.
    fn see(&mut self, event: &mut Event) -> bool {
        match event {
            Event::Text { choice, ids, logprobs, .. } => {
                let kept = if self.hide { std::mem::take(logprobs) } else { logprobs.clone() };
                if *choice == 0 {
                    self.ids.extend_from_slice(ids);
                    self.logprobs.extend(kept);
                }
                false
            }
            Event::Finish { choice, .. } => *choice == 0,
            _ => false,
        }
    }

    fn score(self) {
        let Recorder { mirror, ids, logprobs, .. } = self;
        if !ids.is_empty() && ids.len() == logprobs.len() {
            tokio::spawn(mirror.score(ids, logprobs));
        }
    }
}

/// How the first choice of a copy's answer comes.
#[derive(Default)]
struct Pace {
    first: Option<Instant>,
    last: Option<Instant>,
    /// Tokens after the first piece.
    later: u32,
    usage: Usage,
}

// === impl Pace ===

impl Pace {
    async fn read(&mut self, reply: impl Future<Output = Result<Reply, Error>>, clock: &Clock) -> Result<(), Error> {
        let mut reply = reply.await?;
        while let Some(event) = reply.next().await {
            match event? {
                Event::Text { choice: 0, ids, .. } => {
                    let now = clock.now();
                    match self.last.replace(now) {
                        None => self.first = Some(now),
                        Some(_) => self.later += ids.len().max(1) as u32,
                    }
                }
                Event::Usage(usage) => self.usage = usage,
                _ => {}
            }
        }
        reply.close(Outcome::Done).await;
        Ok(())
    }
}
