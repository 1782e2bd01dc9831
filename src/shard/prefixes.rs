//! Which prompt prefixes a shard has in its KV cache: published by its thread, asked by whoever looks for the best replica.

use crate::call::TokenId;
use crate::engine::{BlockChange, Chain, Key, Limits, Salt, Settings};
use dashmap::DashSet;

/// The keys of a shard's cached blocks, as of its last step. It has at most one for each block of the pool.
pub(super) struct Prefixes {
    chain: Chain,
    block_tokens: usize,
    cached: DashSet<Key>,
}

// === impl Prefixes ===

impl Prefixes {
    /// Those of an engine that has done nothing yet.
    pub(super) fn new(settings: &Settings, limits: Limits) -> Self {
        Self {
            chain: Chain::new(settings.hash_key, settings.model),
            block_tokens: limits.block_tokens.max(1) as usize,
            cached: DashSet::with_capacity(limits.blocks as usize),
        }
    }

    /// Takes over what a step changed, in its order.
    pub(super) fn change(&self, changes: &[BlockChange]) {
        for change in changes {
            match change {
                BlockChange::Cached(key) => drop(self.cached.insert(*key)),
                BlockChange::Evicted(key) => drop(self.cached.remove(key)),
            }
        }
    }

    /// Nothing is cached any more.
    pub(super) fn clear(&self) {
        self.cached.clear();
    }

    /// How many of a prompt's first tokens a sequence of this salt would find cached. The last token is none of them: its
    /// logits are needed. Hashes no further than the first block that isn't there.
    pub(super) fn cached_tokens(&self, salt: &Salt, prompt: &[TokenId]) -> usize {
        if self.cached.is_empty() {
            return 0;
        }
        let mut parent = self.chain.root(salt);
        let blocks = prompt[..prompt.len().saturating_sub(1)].chunks_exact(self.block_tokens);
        let hits = blocks.take_while(|tokens| {
            parent = self.chain.child(parent, tokens);
            self.cached.contains(&parent)
        });
        hits.count() * self.block_tokens
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SALT: Salt = Salt([1; 16]);

    fn prefixes() -> (Prefixes, Vec<Key>) {
        let settings = Settings { model: [2; 16], hash_key: [3; 32], stop_tokens: [].into() };
        let limits = Limits { blocks: 8, block_tokens: 2, max_batch_tokens: 64, max_sequences: 4, max_context: 128 };
        let chain = Chain::new(settings.hash_key, settings.model);
        let mut parent = chain.root(&SALT);
        let keys = [[1, 2], [3, 4], [5, 6]].map(|tokens| {
            parent = chain.child(parent, &tokens);
            parent
        });
        (Prefixes::new(&settings, limits), keys.into())
    }

    #[test]
    fn a_prompt_finds_its_first_blocks_up_to_the_first_that_is_missing_and_never_its_last_token() {
        let (prefixes, keys) = prefixes();
        let found = |prompt: &[TokenId]| prefixes.cached_tokens(&SALT, prompt);
        assert_eq!(found(&[1, 2, 3]), 0);
        prefixes.change(&[BlockChange::Cached(keys[0]), BlockChange::Cached(keys[1]), BlockChange::Cached(keys[2])]);
        assert_eq!(
            (found(&[1, 2, 3, 4, 5, 6, 7]), found(&[1, 2, 3, 4, 5, 6]), found(&[1, 2, 3, 9]), found(&[1]), found(&[])),
            (6, 4, 2, 0, 0)
        );
        assert_eq!(prefixes.cached_tokens(&Salt([9; 16]), &[1, 2, 3]), 0, "another salt finds nothing");
        prefixes.change(&[BlockChange::Evicted(keys[1])]);
        assert_eq!(found(&[1, 2, 3, 4, 5, 6, 7]), 2);
        prefixes.clear();
        assert_eq!(found(&[1, 2, 3, 4, 5, 6, 7]), 0);
    }
}
