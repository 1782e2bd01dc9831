//! One choice in progress, on the async side: its text from its tokens.

use crate::call::{Event, Prompt, Sampling, TokenId, TokenLogprob};
use crate::engine::Logprob;
use crate::text::{Detokenizer, StopStrings, Text};
use std::sync::Arc;

/// One choice in progress.
pub(super) struct Sequence {
    pub(super) choice: u32,
    /// Which of the call's prompts it continues.
    pub(super) prompt: usize,
    pub(super) prompt_tokens: u32,
    text: Arc<Text>,
    detokenizer: Detokenizer,
    stops: StopStrings,
    /// Tokens before stop strings are looked for.
    unstoppable: u32,
    /// The tokens it was given so far.
    pub(super) drawn: Vec<TokenId>,
    /// Text decoded from a token, before stop strings are looked for.
    decoded: String,
    /// The prompt, until it has been sent back.
    echo: Option<Echo>,
    prompt_only: bool,
}

/// A prompt that is wanted back.
struct Echo {
    prompt: Prompt,
    /// Where wanted: those of its tokens that are known.
    logprobs: Option<Vec<TokenLogprob>>,
}

// === impl Sequence ===

impl Sequence {
    pub(super) fn new(choice: u32, prompt: usize, of: &Prompt, text: &Arc<Text>, sampling: &Sampling) -> Self {
        let first = || TokenLogprob { bytes: text.bytes(of.ids[0]).into(), logprob: None, top: Box::new([]) };
        let echo = || Echo { prompt: of.clone(), logprobs: sampling.logprobs.map(|_| vec![first()]) };
        Self {
            choice,
            prompt,
            prompt_tokens: of.ids.len() as u32,
            text: text.clone(),
            detokenizer: text.detokenizer(),
            stops: StopStrings::new(&sampling.stop),
            unstoppable: sampling.min_tokens,
            drawn: Vec::new(),
            decoded: String::new(),
            echo: sampling.echo.then(echo),
            prompt_only: sampling.max_tokens == 0,
        }
    }

    /// Whether the prompt has still to be sent back.
    pub(super) fn wants_echo(&self) -> bool {
        self.echo.is_some()
    }

    /// Another shard computes it from the beginning: its prompt's log-probabilities come again.
    pub(super) fn restart(&mut self) {
        if let Some(known) = self.echo.as_mut().and_then(|echo| echo.logprobs.as_mut()) {
            known.truncate(1);
        }
    }

    /// Whether nothing is to be generated.
    pub(super) fn is_prompt_only(&self) -> bool {
        self.prompt_only
    }

    /// Its first step is planned; its prompt, if that is wanted back and nothing more of it.
    pub(super) fn started(&mut self) -> Option<Event> {
        self.echoed()
    }

    /// The next token of the prompt was this likely; the prompt, if that was the last one.
    pub(super) fn scored(&mut self, logprob: &Logprob) -> Option<Event> {
        let logprob = self.logprob(logprob);
        self.echo.as_mut()?.logprobs.as_mut()?.push(logprob);
        self.echoed()
    }

    /// The prompt, once all that is wanted of it is known.
    fn echoed(&mut self) -> Option<Event> {
        let complete = |echo: &mut Echo| echo.logprobs.as_ref().is_none_or(|known| known.len() == echo.prompt.ids.len());
        let Echo { prompt, logprobs } = self.echo.take_if(complete)?;
        let text = match &prompt.text {
            Some(text) => text.to_string(),
            None => {
                let (mut detokenizer, mut text) = (self.text.detokenizer(), String::new());
                prompt.ids.iter().for_each(|id| detokenizer.push(*id, &mut text));
                detokenizer.finish(&mut text);
                text
            }
        };
        Some(Event::Echo { choice: self.choice, text, ids: prompt.ids, logprobs: logprobs.unwrap_or_default() })
    }

    /// Ids as clients read them.
    pub(super) fn logprob(&self, logprob: &Logprob) -> TokenLogprob {
        let bytes = |id: TokenId| self.text.bytes(id).into();
        let top = logprob.top.iter().map(|(id, logprob)| (bytes(*id), *logprob)).collect();
        TokenLogprob { bytes: bytes(logprob.id), logprob: Some(logprob.logprob), top }
    }

    /// The text that `id` lets out, and whether a stop string is complete.
    pub(super) fn push(&mut self, id: TokenId) -> (String, bool) {
        let mut text = String::new();
        self.drawn.push(id);
        if self.unstoppable > 0 {
            self.unstoppable -= 1;
            self.detokenizer.push(id, &mut text);
            return (text, false);
        }
        self.decoded.clear();
        self.detokenizer.push(id, &mut self.decoded);
        let stopped = self.stops.push(&self.decoded, &mut text);
        (text, stopped)
    }

    /// The text held back so far, at the sequence's end, and whether it completes a stop string after all.
    pub(super) fn finish(&mut self) -> (String, bool) {
        let mut text = String::new();
        self.decoded.clear();
        self.detokenizer.finish(&mut self.decoded);
        let stopped = self.stops.push(&self.decoded, &mut text);
        if !stopped {
            self.stops.finish(&mut text);
        }
        (text, stopped)
    }
}
