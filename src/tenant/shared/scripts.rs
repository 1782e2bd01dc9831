//! The operations on Redis, a Lua script each: Redis runs one after the other, so each is atomic.

use redis::aio::MultiplexedConnection;
use redis::{FromRedisValue, RedisResult, Script};
use serde::Serialize;

/// All scripts.
pub(super) struct Scripts {
    pub(super) join: Script,
    pub(super) reserve: Script,
    pub(super) settle: Script,
    pub(super) beat: Script,
    pub(super) seed: Script,
    pub(super) bury: Script,
}

/// Who runs a script.
#[derive(Clone)]
pub(super) struct Identity {
    /// Tells this process from others and from its own earlier lives.
    pub(super) replica: std::sync::Arc<str>,
    /// Counts how often it joined: what was sent before it joined again has no effect after.
    pub(super) generation: u64,
    /// Seconds without a sign of life after which Redis forgets what it holds.
    pub(super) lease: u64,
}

// === impl Scripts ===

impl Scripts {
    pub(super) fn new() -> Self {
        let script = |body: &str| Script::new(&[include_str!("begin.lua"), body].concat());
        Self {
            join: script(include_str!("join.lua")),
            reserve: script(include_str!("reserve.lua")),
            settle: script(include_str!("settle.lua")),
            beat: script(include_str!("beat.lua")),
            seed: script(include_str!("seed.lua")),
            bury: script(include_str!("bury.lua")),
        }
    }
}

/// Runs a script with what is asked.
pub(super) async fn run<T: FromRedisValue>(
    script: &Script,
    connection: &mut MultiplexedConnection,
    identity: &Identity,
    ask: &impl Serialize,
) -> RedisResult<T> {
    let ask = serde_json::to_string(ask).expect("invariant: numbers and texts serialize");
    script.arg(ask).arg(&*identity.replica).arg(identity.generation).arg(identity.lease).invoke_async(connection).await
}
