//! Where a call goes: [`Choose`] picks the variant by [`rules`] and makes the call one for it, [`Router`] picks the replica.

mod affinity;
mod choose;
pub mod experiment;
pub mod render;
mod router;
pub mod rules;
mod shadow;

pub use choose::Choose;
pub use experiment::{Experiment, Experiments};
pub use render::{Rendering, Renderings};
pub use router::Router;

#[cfg(test)]
mod tests;
