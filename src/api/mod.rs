//! Wire types: what clients send and read, and nothing of how it is served.

pub mod openai;
pub mod sse;
