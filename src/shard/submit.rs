//! From a call to sequences in the mailbox, at the beginning and where a lost shard left off.

use super::answer::Answer;
use super::door::Place;
use super::handle::Shard;
use super::sequence::Sequence;
use super::thread::{Command, Submit};
use crate::call::{Call, Error, Prompt, Sampling, TokenId};
use crate::engine::{self, Party, SeqId, Shaping, Submission};
use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

// === impl Shard ===

impl Shard {
    /// Begins a call: a sequence for each of its choices.
    pub(super) fn submit(&self, call: &Call, places: Vec<Place>) -> Result<Answer, Error> {
        let sampling = &call.sampling;
        let (together, mut places) = (places.len(), places.into_iter());
        let (events, inbox) = unbounded_channel();
        let mut answer = Answer::new(self, inbox, call.clone());
        for (index, prompt) in call.prompts.iter().enumerate() {
            for (i, place) in (0..sampling.n).zip(places.by_ref()) {
                let choice = index as u32 * sampling.n + i;
                let sequence = Sequence::new(choice, index, prompt, &self.text, sampling);
                let submit = self.sequence(call, &sequence, (place, together), &events);
                answer.expect(submit.submission.seq, sequence);
                self.mail(submit)?;
            }
        }
        Ok(answer)
    }

    /// Goes on with the choices that had not ended when the shard of an answer was lost. Where this one is lost as well, the
    /// answer hears nothing and looks for the next.
    pub(super) fn take_over(&self, answer: &mut Answer) {
        let running = std::mem::take(&mut answer.running);
        let places = self.door.readmit(&answer.call.tenant.name, running.len() as u32); // they were let in once
        let (together, (events, inbox)) = (running.len(), unbounded_channel());
        let mut taken = HashMap::with_capacity(together);
        for ((_, mut sequence), place) in running.into_iter().zip(places) {
            sequence.restart();
            let submit = self.sequence(&answer.call, &sequence, (place, together), &events);
            taken.insert(submit.submission.seq, sequence);
            if self.mail(submit).is_err() {
                tracing::debug!(shard = %self.name, "lost before it could go on with an answer");
            }
        }
        answer.move_to(self, inbox, taken);
    }

    /// Sends one sequence to the thread.
    pub(super) fn mail(&self, submit: Submit) -> Result<(), Error> {
        self.live.mailed(submit.uncached, submit.submission.arrived);
        self.mailbox.send(Command::Submit(submit)).map_err(|_| self.lost())
    }

    /// The command for one choice, from wherever it is.
    fn sequence(
        &self,
        call: &Call,
        of: &Sequence,
        (place, together): (Place, usize),
        events: &UnboundedSender<super::thread::Said>,
    ) -> Submit {
        let (sampling, prompt, salt) = (&call.sampling, &call.prompts[of.prompt], self.salt(call));
        let submission = Submission {
            seq: SeqId(self.next_seq.fetch_add(1, Relaxed)),
            prompt: prompt.ids.as_ref().into(),
            output: of.drawn.as_slice().into(),
            max_tokens: sampling.max_tokens.max(1), // a prompt alone is computed as well
            sampling: self.sampling(sampling, prompt, of.choice),
            ignore_stop: sampling.ignore_eos,
            score_prompt: sampling.logprobs.is_some() && of.wants_echo(),
            salt,
            party: Party { tenant: call.tenant.name.clone(), weight: call.tenant.weight, class: call.class },
            arrived: self.clock.now(),
        };
        // Log-probabilities of a prompt need all of it computed.
        let cached = if submission.score_prompt { 0 } else { self.prefixes.cached_tokens(&salt, &prompt.ids) };
        let uncached = prompt.ids.len() + of.drawn.len() - cached;
        Submit { submission, uncached, place, together, events: events.clone() }
    }

    /// How the engine draws a choice.
    fn sampling(&self, sampling: &Sampling, prompt: &Prompt, choice: u32) -> engine::Sampling {
        let withheld: &[TokenId] = if sampling.min_tokens > 0 && !sampling.ignore_eos { self.text.stop_tokens() } else { &[] };
        let shaping = Shaping {
            bias: sampling.logit_bias.as_slice().into(),
            repetition: sampling.repetition_penalty,
            frequency: sampling.frequency_penalty,
            presence: sampling.presence_penalty,
            withheld: withheld.into(),
            withheld_until: prompt.ids.len() as u32 + sampling.min_tokens,
        };
        engine::Sampling {
            temperature: sampling.temperature,
            top_k: sampling.top_k,
            top_p: sampling.top_p,
            min_p: sampling.min_p,
            seed: sampling.seed,
            choice,
            shaping: (!shaping.is_neutral()).then(|| Box::new(shaping)),
            logprobs: sampling.logprobs,
        }
    }
}
