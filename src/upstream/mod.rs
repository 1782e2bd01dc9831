//! Remote servers that speak OpenAI's API (vLLM, TensorRT-LLM, SGLang, llama.cpp, another Roundhouse) as backends.
//!
//! ```text
//! Call ─ request.rs ─► JSON ─ pool.rs (this thread's connections; connect.rs makes them) ─► upstream
//! Events ◄─ answer.rs ◄─ said.rs ◄─ chunks ◄─ api::sse::Reader ◄──────────────────────────────┘
//! ```
//!
//! Answers are always asked for as streams, so that the first token's time is known and a hang-up ends the work. What is
//! known of a remote is in remote.rs: calls in flight, recent latency (recent.rs), breaker (breaker.rs) and what the health
//! checks (checks.rs) found.

mod answer;
mod breaker;
mod checks;
mod connect;
mod failure;
mod handle;
mod pool;
mod recent;
mod refusal;
mod remote;
mod request;
mod said;

pub use checks::Upstreams;
pub use failure::UpstreamError;
pub use handle::Upstream;
