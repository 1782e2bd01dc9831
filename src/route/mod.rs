//! Where a call goes: [`Choose`] picks the variant, [`Router`] the replica.

mod choose;
mod router;

pub use choose::Choose;
pub use router::Router;

#[cfg(test)]
mod tests;
