//! The engine inside another program: a shard without a gateway.
//!
//! `cargo run --release --example embed -- "Once upon a time"`

use roundhouse::config::{Config, Environment};
use roundhouse::model::source::Progress;
use roundhouse::roundhouse::{Generate, GenerateError, Models, generate};

/// Downloads are worth a word on stderr.
struct Words;

impl Progress for Words {
    fn start(&self, _total: Option<u64>, what: &str) {
        eprintln!("fetching {what}");
    }

    fn advance(&self, _bytes: u64) {}

    fn done(&self) {
        eprintln!("done");
    }
}

fn main() -> Result<(), GenerateError> {
    let prompt = std::env::args().nth(1).unwrap_or_else(|| "Once upon a time".to_owned());
    // The built-in configuration: SmolLM2-135M-Instruct on the CPU.
    let config = Config::default();
    let mut models = Models::new(&config, &Environment::from_process(), &Words)?;
    let request = Generate {
        model: "default".to_owned(),
        prompt,
        raw: true,
        max_tokens: Some(40),
        temperature: Some(0.7),
        top_p: None,
        seed: Some(1),
    };
    let mut text = String::new();
    let usage = generate(&config, &mut models, &request, |piece| text.push_str(piece))?;
    eprintln!("{} prompt tokens, {} generated, {:?} of the device's time", usage.prompt_tokens, usage.completion_tokens, usage.device_time);
    #[expect(clippy::print_stdout, reason = "a program's output")]
    {
        println!("{text}");
    }
    Ok(())
}
