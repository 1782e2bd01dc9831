//! Memory that operations reuse from step to step.

use super::activation::{Block32, Block256};

/// Buffers of one executor, so that a step allocates nothing once they have grown.
#[derive(Default)]
pub struct Scratch {
    pub(super) blocks32: Vec<Block32>,
    pub(super) blocks256: Vec<Block256>,
    /// Per thread.
    pub(super) floats: Vec<Vec<f32>>,
    /// Per drawn token: candidates as (logit below the best in units of the temperature, id).
    pub(super) candidates: Vec<Vec<(f32, u32)>>,
}

// === impl Scratch ===

impl Scratch {
    /// Empty buffers.
    pub fn new() -> Self {
        Self::default()
    }
}
