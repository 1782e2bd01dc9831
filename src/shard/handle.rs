//! The handle through which everybody talks to a shard.

use super::answer::Answer;
use super::door::{Door, Place};
use super::live::Published;
use super::prefixes::Prefixes;
use super::siblings::Siblings;
use super::thread::{Command, Loop};
use crate::backend::{Backend, Offer, State};
use crate::call::{Call, Error, Prompt, Reply};
use crate::clock::Clock;
use crate::config::{Name, SharePrefixes};
use crate::engine::{self, DeviceError, Executor, Limits, Salt, Settings};
use crate::metrics::ShardMetrics;
use crate::text::Text;
use futures_util::future::BoxFuture;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

/// Builds an executor; called on the shard's thread, where the executor stays.
pub type BuildExecutor = Box<dyn FnOnce() -> Result<Box<dyn Executor>, DeviceError> + Send>;

/// What a shard is made of.
pub struct Parts {
    /// Its configured name.
    pub name: Name,
    /// The model's tokenizer, for detokenizing.
    pub text: Arc<Text>,
    /// What the executor will hold.
    pub limits: Limits,
    /// What the engine needs to know of the model.
    pub settings: Settings,
    /// Who may be served from whose cached prefixes.
    pub share_prefixes: SharePrefixes,
    /// Most sequences that wait for their first step.
    pub max_waiting: u32,
    /// How long it may have work and get nowhere before it counts as stuck.
    pub stuck_after: Duration,
    /// The shards of this process, which go on with each other's answers where one is lost.
    pub siblings: Siblings,
    /// Makes the executor.
    pub build: BuildExecutor,
    /// Where its live state goes.
    pub metrics: ShardMetrics,
    /// The clock that stamps arrivals and steps.
    pub clock: Clock,
}

/// One running engine. Dropping the last handle ends its thread once what runs has ended.
pub struct Shard {
    pub(super) name: Name,
    pub(super) text: Arc<Text>,
    limits: Limits,
    share_prefixes: SharePrefixes,
    pub(super) digest: [u8; 16],
    pub(super) mailbox: mpsc::Sender<Command>,
    pub(super) door: Arc<Door>,
    pub(super) live: Arc<Published>,
    pub(super) prefixes: Arc<Prefixes>,
    /// Where one is found that goes on with its answers.
    pub(super) siblings: Siblings,
    stuck_after: Duration,
    /// Whether it was stuck when somebody looked last.
    was_stuck: AtomicBool,
    pub(super) next_seq: AtomicU64,
    /// The equal one that has taken its place.
    pub(super) successor: Arc<OnceLock<Weak<Shard>>>,
    pub(super) clock: Clock,
}

/// A full queue isn't worth another try before that.
const SOONEST: Duration = Duration::from_millis(100);

// === impl Shard ===

impl Shard {
    /// Starts the shard's thread and waits until its executor is built.
    ///
    /// # Errors
    /// The thread can't be started or the executor can't be built.
    pub fn start(parts: Parts) -> Result<Arc<Self>, DeviceError> {
        let Parts { name, text, limits, settings, share_prefixes, max_waiting, stuck_after, siblings, build, metrics, clock } = parts;
        let (mailbox, inbox) = mpsc::channel();
        let digest = settings.model;
        let live = Arc::new(Published::new(limits, clock.now()));
        let prefixes = Arc::new(Prefixes::new(&settings, limits));
        let (built, outcome) = mpsc::channel();
        let (published, thread_clock, thread_name) = ((live.clone(), prefixes.clone()), clock.clone(), name.clone());
        let run = move || {
            let _end = Ending(published.0.clone()); // dropped last: nothing is left on the device then
            let engine = match build() {
                Ok(executor) => engine::Engine::new(executor, settings),
                Err(error) => return drop(built.send(Err(error))), // nobody waits any more: `start` has gone
            };
            if built.send(Ok(())).is_ok() {
                Loop::new(thread_name, engine, inbox, published, metrics, thread_clock).run();
            }
        };
        let thread = std::thread::Builder::new().name(format!("shard {name}"));
        thread.spawn(run).map_err(|error| DeviceError(format!("no thread for shard {name}: {error}")))?;
        outcome.recv().unwrap_or_else(|_| Err(DeviceError(format!("shard {name} panicked while it built its executor"))))?;
        let shard = Arc::new(Self {
            name,
            text,
            limits,
            share_prefixes,
            digest,
            mailbox,
            door: Arc::new(Door::new(max_waiting)),
            live,
            prefixes,
            siblings: siblings.clone(),
            stuck_after,
            was_stuck: AtomicBool::new(false),
            next_seq: AtomicU64::new(0),
            successor: Arc::default(),
            clock,
        });
        siblings.join(&shard);
        Ok(shard)
    }

    /// The model's tokenizer and template.
    pub fn text(&self) -> &Arc<Text> {
        &self.text
    }

    /// Identity of weights, quantization, KV type and kind of device: K/V of equal digests are interchangeable, and so are
    /// answers.
    pub fn digest(&self) -> [u8; 16] {
        self.digest
    }

    /// Tokens the KV pool holds.
    pub fn pool_tokens(&self) -> u32 {
        self.limits.blocks.saturating_mul(self.limits.block_tokens)
    }

    /// Tokens one sequence may have.
    pub fn context(&self) -> u32 {
        self.limits.max_context
    }

    /// KV blocks that no sequence refers to (cached ones count as free), and all blocks.
    pub fn blocks(&self) -> (u32, u32) {
        (self.live.unused_blocks(), self.live.all_blocks())
    }

    /// Sequences running and waiting, those among them that its thread hasn't heard of.
    pub fn sequences(&self) -> (u32, u32) {
        let (running, waiting) = self.live.sequences();
        (running, waiting.max(self.door.waiting()))
    }

    pub(super) fn lost(&self) -> Error {
        Error::ShardLost { backend: self.name.to_string() }
    }

    pub(super) fn salt(&self, call: &Call) -> Salt {
        let mut salt = [0; 16];
        if self.share_prefixes == SharePrefixes::Tenant {
            salt.copy_from_slice(&blake3::hash(call.tenant.name.as_str().as_bytes()).as_bytes()[..16]);
        }
        Salt(salt)
    }

    /// A place for each of a call's sequences.
    fn enter(&self, call: &Call) -> Result<Vec<Place>, Error> {
        let places = self.door.enter(&call.tenant.name, sequences(call));
        places.ok_or_else(|| Error::Overloaded { model: call.model.name.to_string(), retry_after: self.room_in() })
    }

    /// How many of a call's prompt tokens are in the cache. Log-probabilities of a prompt need all of it computed.
    fn cached_tokens(&self, call: &Call) -> usize {
        if call.sampling.echo && call.sampling.logprobs.is_some() {
            return 0;
        }
        let salt = self.salt(call);
        call.prompts.iter().map(|prompt| self.prefixes.cached_tokens(&salt, &prompt.ids)).sum()
    }

    /// Waits for the first content. Where the shard gives the call back, the one that has its place begins it anew.
    fn begin(&self, submitted: Result<Answer, Error>, call: Call) -> BoxFuture<'static, Result<Reply, Error>> {
        call.record.lock().backend = Some(self.name.clone());
        let successor = self.successor.clone();
        Box::pin(async move {
            let mut answer = submitted?;
            let Err(error) = answer.first_content().await else { return Ok(Reply::new(answer)) };
            drop(answer); // notes what it used
            let Some(next) = successor.get().and_then(Weak::upgrade) else { return Err(error) };
            let places = next.door.readmit(&call.tenant.name, sequences(&call)); // it was let in once
            next.begin(next.submit(&call, places), call).await
        })
    }

    /// Time until the queue, where it is full, has one place more: when the first of those that wait has had its turn.
    fn room_in(&self) -> Duration {
        let waiting = self.door.waiting();
        (self.live.pace.queue(&self.live.ahead(0, waiting)) / waiting.max(1)).max(SOONEST)
    }
}

/// Tells of a thread's end when it is dropped.
struct Ending(Arc<Published>);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.standing.end();
    }
}

fn sequences(call: &Call) -> u32 {
    (call.prompts.len() as u32).saturating_mul(call.sampling.n)
}

impl Backend for Shard {
    fn state(&self) -> State {
        let state = self.live.state(self.clock.now(), self.stuck_after);
        let stuck = state == State::Stuck;
        if self.was_stuck.load(Relaxed) != stuck && self.was_stuck.swap(stuck, Relaxed) != stuck {
            let ((running, waiting), shard) = (self.sequences(), &self.name);
            match stuck {
                true => tracing::error!(%shard, running, waiting, "the shard is stuck: it has work and gets nowhere"),
                false => tracing::info!(%shard, %state, "the shard isn't stuck any more"),
            }
        }
        state
    }

    fn supports(&self, call: &Call) -> Result<(), Error> {
        if let Some(extra) = call.asked.extras.first() {
            return Err(extra.refusal.clone());
        }
        let limit = u64::from(self.context().min(self.pool_tokens()));
        let max_tokens = u64::from(call.sampling.max_tokens.max(1));
        let fits = |prompt: &Prompt| prompt.ids.len() as u64 + max_tokens <= limit;
        match call.prompts.iter().find(|prompt| !fits(prompt)) {
            None => Ok(()),
            Some(prompt) => Err(Error::ContextLength {
                param: if call.messages.is_empty() { "prompt" } else { "messages" },
                limit,
                prompt_tokens: prompt.ids.len() as u64,
                max_tokens: Some(max_tokens),
            }),
        }
    }

    fn offer(&self, call: &Call) -> Offer {
        let prompt_tokens: usize = call.prompts.iter().map(|prompt| prompt.ids.len()).sum();
        let cached_tokens = self.cached_tokens(call);
        let uncached = (prompt_tokens - cached_tokens) as u64;
        let ahead = self.live.ahead(uncached, self.door.waiting());
        let is_open = self.door.is_open(&call.tenant.name, sequences(call));
        Offer {
            cached_tokens: Some(u32::try_from(cached_tokens).unwrap_or(u32::MAX)),
            prefill_time: self.live.pace.prefill(uncached, ahead.budget),
            queue_time: self.live.pace.queue(&ahead),
            room_in: if is_open { Duration::ZERO } else { self.room_in() },
            in_flight: ahead.running + ahead.waiting,
        }
    }

    fn call(&self, call: Call) -> BoxFuture<'static, Result<Reply, Error>> {
        match self.successor.get().and_then(Weak::upgrade) {
            Some(next) => next.call(call), // of a request that began before the swap
            None => self.begin(self.enter(&call).and_then(|places| self.submit(&call, places)), call),
        }
    }
}
