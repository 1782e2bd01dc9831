//! The KV blocks of one shard: who holds them, and which of them hold a cached prefix.

use super::chain::{Chain, Key};
use super::lru::Lru;
use super::{BlockId, Salt, Settings};
use crate::call::TokenId;
use std::collections::HashMap;

/// Hands out KV blocks and finds cached prefixes.
///
/// ```text
/// a block:  free => held        taken for a sequence, its K/V not there yet
///           held => cached      full and computed: findable by its key, still held by its sequence
///           held => free        given back before it was full
///           cached, held by nobody => cached, held   a hit
///           cached, held by nobody => held           evicted, oldest first, when no block is free
/// ```
///
/// A cached block's K/V is never written again before it is evicted.
pub(super) struct BlockPool {
    block_tokens: usize,
    chain: Chain,
    blocks: Vec<Block>,
    /// What each cached block holds, `block_tokens` ids per block, to compare on a hit.
    tokens: Vec<TokenId>,
    /// Held by nobody and not cached.
    free: Vec<BlockId>,
    /// Held by nobody and cached.
    idle: Lru,
    /// Cached blocks by key; at most one entry per block, so it can't outgrow the pool.
    index: HashMap<Key, BlockId>,
    /// What changed in the index and was not told yet.
    changes: Vec<BlockChange>,
}

/// What became of a cached prefix; of several changes to one key the last counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockChange {
    /// A block is found by this key from now on.
    Cached(Key),
    /// It isn't any more.
    Evicted(Key),
}

#[derive(Clone, Copy, Default)]
struct Block {
    /// How many tables hold it.
    holders: u32,
    /// Its name in the index.
    key: Option<Key>,
}

/// The blocks that hold one sequence's K/V, in order. It ends in [`BlockPool::free`] and nowhere else.
#[derive(Debug, Default)]
pub(super) struct BlockTable {
    blocks: Vec<BlockId>,
}

/// A broken invariant of the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Violation {
    /// The count of holders isn't the number of tables that hold the block.
    #[error("{block:?} counts {counted} holders but is in {held} tables")]
    Holders { block: BlockId, counted: u32, held: u32 },
    /// The block isn't in exactly the one list its state asks for.
    #[error("{block:?} is in the wrong list")]
    Misplaced { block: BlockId },
    /// The block and the index disagree about its key.
    #[error("{block:?} and the index disagree")]
    Index { block: BlockId },
}

// === impl BlockPool ===

impl BlockPool {
    /// A pool of `blocks` free blocks of `block_tokens` tokens.
    pub(super) fn new(blocks: u32, block_tokens: u32, settings: &Settings) -> Self {
        Self {
            block_tokens: block_tokens as usize,
            chain: Chain::new(settings.hash_key, settings.model),
            blocks: vec![Block::default(); blocks as usize],
            tokens: vec![0; blocks as usize * block_tokens as usize],
            free: (0..blocks).rev().map(BlockId).collect(),
            idle: Lru::new(blocks),
            index: HashMap::with_capacity(blocks as usize),
            changes: Vec::new(),
        }
    }

    /// How many blocks `tokens` tokens need.
    pub(super) fn blocks_for(&self, tokens: usize) -> usize {
        tokens.div_ceil(self.block_tokens)
    }

    /// Tokens per block.
    pub(super) fn block_tokens(&self) -> usize {
        self.block_tokens
    }

    /// Blocks in total, held by sequences, cached and held by nobody, and unused.
    pub(super) fn counts(&self) -> [u32; 4] {
        let (total, cached, free) = (self.blocks.len() as u32, self.idle.len(), self.free.len() as u32);
        [total, total.saturating_sub(cached + free), cached, free]
    }

    /// The parent key of a first block under `salt`.
    pub(super) fn root(&self, salt: &Salt) -> Key {
        self.chain.root(salt)
    }

    /// The key of the block that holds `tokens` after `parent`.
    pub(super) fn child(&self, parent: Key, tokens: &[TokenId]) -> Key {
        self.chain.child(parent, tokens)
    }

    /// How many of the first blocks of `tokens` are cached, at most `keys` of them. They become the last ones to be evicted: a sequence that needs them is on its way. They
    /// aren't held, so that those who wait can't take all blocks from each other.
    pub(super) fn touch(&mut self, keys: &[Key], tokens: &[TokenId]) -> usize {
        let hits = self.find(keys, tokens);
        for &block in hits.iter().rev() {
            if self.idle.contains(block) {
                self.idle.remove(block);
                self.idle.push(block);
            }
        }
        hits.len()
    }

    /// Moves what changed in the index since the last call to `into`.
    pub(super) fn changes(&mut self, into: &mut Vec<BlockChange>) {
        into.append(&mut self.changes);
    }

    /// A table of `need` blocks whose first ones hold the longest cached prefix of `tokens` (at most `keys` blocks of it), and
    /// how many blocks that prefix has. `None`, with nothing taken, if fewer than `spare` blocks would be left.
    pub(super) fn open(&mut self, keys: &[Key], tokens: &[TokenId], need: usize, spare: usize) -> Option<(BlockTable, usize)> {
        let hits = self.find(keys, tokens);
        // Idle hits are no longer there to be evicted.
        let idle_hits = hits.iter().filter(|block| self.idle.contains(**block)).count();
        if need - hits.len() + idle_hits + spare > self.available() {
            return None;
        }
        for &block in &hits {
            self.idle.remove(block);
            self.blocks[block.0 as usize].holders += 1;
        }
        let cached = hits.len();
        let mut table = BlockTable { blocks: hits };
        while table.blocks.len() < need {
            let Some(block) = self.take() else {
                self.free(table);
                return None;
            };
            table.blocks.push(block);
        }
        Some((table, cached))
    }

    /// Adds a block to `table`; false if there is none.
    pub(super) fn grow(&mut self, table: &mut BlockTable) -> bool {
        let block = self.take();
        table.blocks.extend(block);
        block.is_some()
    }

    /// Makes a full and computed block of a table findable. If another block is known by this key, that one stays.
    pub(super) fn insert(&mut self, block: BlockId, key: Key, tokens: &[TokenId]) {
        if self.blocks[block.0 as usize].key.is_none() && !self.index.contains_key(&key) {
            self.blocks[block.0 as usize].key = Some(key);
            self.index.insert(key, block);
            self.changes.push(BlockChange::Cached(key));
            self.stored_mut(block).copy_from_slice(tokens);
        }
    }

    /// Ends a table. Its tail becomes the older, so that heads, which more prompts share, stay cached longest.
    pub(super) fn free(&mut self, table: BlockTable) {
        for block in table.blocks.into_iter().rev() {
            let entry = &mut self.blocks[block.0 as usize];
            entry.holders = entry.holders.saturating_sub(1);
            match (entry.holders, entry.key) {
                (0, Some(_)) => self.idle.push(block),
                (0, None) => self.free.push(block),
                _ => {}
            }
        }
    }

    /// Checks every invariant, given all tables there are.
    pub(super) fn check<'a>(&self, tables: impl Iterator<Item = &'a BlockTable>) -> Result<(), Violation> {
        let mut held = vec![0; self.blocks.len()];
        for block in tables.flat_map(|table| &table.blocks) {
            held[block.0 as usize] += 1;
        }
        let mut free = vec![0; self.blocks.len()];
        for block in &self.free {
            free[block.0 as usize] += 1;
        }
        for (number, entry) in self.blocks.iter().enumerate() {
            let block = BlockId(number as u32);
            if entry.holders != held[number] {
                return Err(Violation::Holders { block, counted: entry.holders, held: held[number] });
            }
            let lists = (free[number], self.idle.contains(block));
            if lists != (u32::from(entry.holders == 0 && entry.key.is_none()), entry.holders == 0 && entry.key.is_some()) {
                return Err(Violation::Misplaced { block });
            }
            if entry.key.is_some_and(|key| self.index.get(&key) != Some(&block)) {
                return Err(Violation::Index { block });
            }
        }
        match self.index.iter().find(|(key, block)| self.blocks[block.0 as usize].key != Some(**key)) {
            Some((_, block)) => Err(Violation::Index { block: *block }),
            None => Ok(()),
        }
    }

    /// The cached blocks of the longest prefix, the ids compared so that not even a hash collision gives wrong K/V.
    fn find(&self, keys: &[Key], tokens: &[TokenId]) -> Vec<BlockId> {
        let hit = |(key, tokens)| self.index.get(key).copied().filter(|block| self.stored(*block) == tokens);
        keys.iter().zip(tokens.chunks_exact(self.block_tokens)).map_while(hit).collect()
    }

    /// Blocks that can be taken: unused ones and those to be evicted.
    fn available(&self) -> usize {
        self.free.len() + self.idle.len() as usize
    }

    /// An unused block, or the oldest cached one that nobody holds.
    fn take(&mut self) -> Option<BlockId> {
        let block = self.free.pop().or_else(|| self.idle.pop())?;
        let entry = &mut self.blocks[block.0 as usize];
        entry.holders = 1;
        if let Some(key) = entry.key.take() {
            self.index.remove(&key);
            self.changes.push(BlockChange::Evicted(key));
        }
        Some(block)
    }

    fn stored(&self, block: BlockId) -> &[TokenId] {
        &self.tokens[block.0 as usize * self.block_tokens..][..self.block_tokens]
    }

    fn stored_mut(&mut self, block: BlockId) -> &mut [TokenId] {
        &mut self.tokens[block.0 as usize * self.block_tokens..][..self.block_tokens]
    }
}

// === impl BlockTable ===

impl BlockTable {
    /// Its blocks, in the order of positions.
    pub(super) fn blocks(&self) -> &[BlockId] {
        &self.blocks
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
mod tests {
    use super::*;

    const SALT: Salt = Salt([0; 16]);

    fn pool(blocks: u32) -> BlockPool {
        BlockPool::new(blocks, 2, &Settings { model: [0; 16], hash_key: [0; 32], stop_tokens: [].into() })
    }

    fn keys(pool: &BlockPool, tokens: &[TokenId]) -> Vec<Key> {
        let mut parent = pool.root(&SALT);
        tokens
            .chunks_exact(2)
            .map(|tokens| {
                parent = pool.child(parent, tokens);
                parent
            })
            .collect()
    }

    /// Computes `tokens` and gives the blocks back; returns how many blocks were cached before.
    fn visit(pool: &mut BlockPool, tokens: &[TokenId]) -> usize {
        let keys = keys(pool, tokens);
        let (table, cached) = pool.open(&keys, tokens, keys.len(), 0).unwrap();
        for (index, key) in keys.iter().enumerate() {
            pool.insert(table.blocks()[index], *key, &tokens[2 * index..][..2]);
        }
        assert_eq!(pool.check([&table].into_iter()), Ok(()));
        pool.free(table);
        assert_eq!(pool.check([].into_iter()), Ok(()));
        cached
    }

    #[test]
    fn heads_stay_cached_longer_than_tails() {
        let mut pool = pool(4);
        let tokens = [1, 2, 3, 4, 5, 6, 7, 8];
        assert_eq!(visit(&mut pool, &tokens), 0);
        for (other, left) in [(90, 3), (91, 3), (92, 3)] {
            assert_eq!(visit(&mut pool, &[other, other]), 0);
            assert_eq!(visit(&mut pool, &tokens[..6]), left, "the tail was evicted, the head not");
        }
        assert_eq!(pool.counts(), [4, 0, 4, 0]);
    }

    #[test]
    fn the_index_never_outgrows_the_pool() {
        let mut pool = pool(8);
        for round in 0..1000 {
            visit(&mut pool, &[round, 1, 2, 3, 4, 5]);
            assert!(pool.index.len() <= 8);
        }
    }

    #[test]
    fn what_is_told_of_the_index_is_what_is_in_it() {
        let mut pool = pool(8);
        let (mut told, mut changes) = (HashMap::new(), Vec::new());
        for round in 0..200 {
            visit(&mut pool, &[round % 3, 1, round % 7, 3, round % 2, 5]);
            pool.changes(&mut changes);
            for change in changes.drain(..) {
                match change {
                    BlockChange::Cached(key) => assert!(told.insert(key, ()).is_none()),
                    BlockChange::Evicted(key) => assert!(told.remove(&key).is_some()),
                }
            }
            assert!(told.len() == pool.index.len() && told.keys().all(|key| pool.index.contains_key(key)));
        }
    }

    #[test]
    fn blocks_that_somebody_waits_for_are_evicted_last() {
        let mut pool = pool(4);
        let (first, second) = ([1, 2, 3, 4], [5, 6, 7, 8]);
        visit(&mut pool, &first);
        visit(&mut pool, &second);
        let keys = keys(&pool, &first);
        assert_eq!(pool.touch(&keys, &first), 2);
        visit(&mut pool, &[90, 90, 91, 91]);
        assert_eq!((pool.touch(&keys, &first), visit(&mut pool, &second)), (2, 0));
    }

    #[test]
    fn a_key_that_collides_is_no_hit_and_changes_nothing() {
        let mut pool = pool(4);
        visit(&mut pool, &[1, 2]);
        let keys = keys(&pool, &[1, 2]);
        let (table, cached) = pool.open(&keys, &[3, 4], 1, 0).unwrap();
        assert_eq!(cached, 0);
        pool.insert(table.blocks()[0], keys[0], &[3, 4]);
        assert_eq!(pool.check([&table].into_iter()), Ok(()));
        pool.free(table);
        assert_eq!(visit(&mut pool, &[1, 2]), 1);
    }

    #[test]
    fn what_does_not_fit_takes_nothing() {
        let mut pool = pool(4);
        visit(&mut pool, &[1, 2, 3, 4]);
        let tokens = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10];
        let keys = keys(&pool, &tokens);
        assert!(pool.open(&keys, &tokens, 5, 0).is_none(), "cached blocks aren't counted twice");
        assert!(pool.open(&keys, &tokens, 4, 1).is_none());
        assert_eq!(pool.counts(), [4, 0, 2, 2]);
        let (mut table, cached) = pool.open(&keys, &tokens, 3, 1).unwrap();
        assert_eq!(cached, 2);
        assert!(pool.grow(&mut table) && !pool.grow(&mut table));
        pool.free(table);
        assert_eq!(pool.check([].into_iter()), Ok(()));
    }

    #[test]
    fn a_broken_invariant_is_named() {
        let mut broken = pool(2);
        let (table, _) = broken.open(&[], &[], 1, 0).unwrap();
        let block = table.blocks()[0];
        assert_eq!(broken.check([].into_iter()), Err(Violation::Holders { block, counted: 1, held: 0 }));
        broken.free.push(block);
        assert_eq!(broken.check([&table].into_iter()), Err(Violation::Misplaced { block }));
        broken.free.pop();
        broken.blocks[block.0 as usize].key = Some(broken.root(&SALT));
        assert_eq!(broken.check([&table].into_iter()), Err(Violation::Index { block }));
    }
}
