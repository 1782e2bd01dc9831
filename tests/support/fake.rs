//! A server whose engine has no model: the fake executor behind the tiny model's tokenizer.

use super::server::{self, Server};
use super::tiny_model::{self, TinyModel};
use roundhouse::config::{Config, Name, Shard, Weights};
use roundhouse::engine::fake::Fake;
use roundhouse::engine::{Limits, Plan};
use roundhouse::model::gguf::{Gguf, chat_template, vocabulary};
use roundhouse::model::source::Progress;
use roundhouse::roundhouse::{Engine, LoadEngine, StartError};
use roundhouse::text::Text;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

/// Loads fake executors; `make` gets the limits of each.
pub(crate) struct Fakes<F>(pub(crate) F);

impl<F: Fn(Limits) -> Fake + Clone + Send + 'static> LoadEngine for Fakes<F> {
    fn load(&mut self, shard: &Shard, _: &dyn Progress) -> Result<Engine, StartError> {
        let limits = Limits {
            blocks: 64,
            block_tokens: 16,
            max_batch_tokens: shard.max_batch_tokens,
            max_sequences: shard.max_sequences,
            max_context: 1024,
        };
        let make = self.0.clone();
        Ok(Engine { text: text(), limits, digest: digest(shard), build: Box::new(move || Ok(Box::new(make(limits)))) })
    }

    fn tokenizer(&mut self, _: &Name, _: &Weights) -> Result<Arc<Text>, StartError> {
        Ok(text())
    }
}

/// Of shards of the same weights the same one.
pub(crate) fn digest(shard: &Shard) -> [u8; 16] {
    let hash = blake3::hash(format!("{} {}", shard.weights, shard.quantize).as_bytes());
    hash.as_bytes()[..16].try_into().expect("a hash is longer than that")
}

/// The tiny model's tokenizer and ChatML template.
pub(crate) fn text() -> Arc<Text> {
    let file = tiny_model::file(TinyModel::default());
    let gguf = Gguf::open(&file).expect("the tiny model is sound");
    let template = chat_template(&gguf).expect("its template is text");
    Arc::new(Text::new(vocabulary(&gguf).expect("it has a tokenizer"), template).expect("its tokenizer works"))
}

/// A server on a fake device that runs a step only when [`Stepping::let_run`] allows it.
pub(crate) struct Stepping {
    pub(crate) server: Server,
    plans: Arc<Mutex<Vec<Plan>>>,
    pub(crate) gate: Sender<()>,
}

// === impl Stepping ===

impl Stepping {
    pub(crate) fn start() -> Self {
        Self::with(server::config())
    }

    pub(crate) fn with(config: Config) -> Self {
        let plans = Arc::new(Mutex::new(Vec::new()));
        let (gate, gated) = channel();
        let (seen, gated) = (plans.clone(), Arc::new(Mutex::new(gated)));
        let make = move |limits| {
            let (seen, gated) = (seen.clone(), gated.clone());
            Fake::new(limits).observed(move |plan| {
                seen.lock().expect("no test panics with it").push(plan.clone());
                wait(&gated.lock().expect("no test panics with it"));
            })
        };
        Self { server: server::with(config, Fakes(make)), plans, gate }
    }

    /// Lets this many more steps run.
    pub(crate) fn let_run(&self, steps: usize) {
        for _ in 0..steps {
            self.gate.send(()).expect("the device waits");
        }
    }

    /// Lets all further steps run; returns the plans made so far and those to come.
    pub(crate) fn open(self) -> (Server, Arc<Mutex<Vec<Plan>>>) {
        (self.server, self.plans)
    }

    /// Plans made so far, the one that waits included.
    pub(crate) fn planned(&self) -> usize {
        self.plans.lock().expect("no test panics with it").len()
    }
}

/// Waits for leave to run one step; a closed gate lets everything run.
fn wait(gate: &Receiver<()>) {
    let _ = gate.recv();
}
