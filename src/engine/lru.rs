//! The list of cached blocks that nobody holds, oldest first: what is evicted when a block is needed.

use super::BlockId;

/// A doubly linked list through an array of links, one per block of the pool; every operation takes constant time.
pub(super) struct Lru {
    links: Vec<Link>,
    oldest: Option<BlockId>,
    newest: Option<BlockId>,
    len: u32,
}

#[derive(Clone, Copy, Default)]
struct Link {
    older: Option<BlockId>,
    newer: Option<BlockId>,
    listed: bool,
}

// === impl Lru ===

impl Lru {
    /// An empty list for blocks `0..blocks`.
    pub(super) fn new(blocks: u32) -> Self {
        Self { links: vec![Link::default(); blocks as usize], oldest: None, newest: None, len: 0 }
    }

    /// How many blocks are listed.
    pub(super) fn len(&self) -> u32 {
        self.len
    }

    /// Whether `block` is listed.
    pub(super) fn contains(&self, block: BlockId) -> bool {
        self.links[block.0 as usize].listed
    }

    /// Lists `block` as the newest; one that is listed already stays where it is.
    pub(super) fn push(&mut self, block: BlockId) {
        if self.contains(block) {
            return;
        }
        self.links[block.0 as usize] = Link { older: self.newest, newer: None, listed: true };
        match self.newest {
            Some(newest) => self.links[newest.0 as usize].newer = Some(block),
            None => self.oldest = Some(block),
        }
        self.newest = Some(block);
        self.len += 1;
    }

    /// Takes `block` off the list, if it is listed.
    pub(super) fn remove(&mut self, block: BlockId) {
        if !self.contains(block) {
            return;
        }
        let Link { older, newer, .. } = std::mem::take(&mut self.links[block.0 as usize]);
        match older {
            Some(older) => self.links[older.0 as usize].newer = newer,
            None => self.oldest = newer,
        }
        match newer {
            Some(newer) => self.links[newer.0 as usize].older = older,
            None => self.newest = older,
        }
        self.len -= 1;
    }

    /// Takes the oldest block off the list.
    pub(super) fn pop(&mut self) -> Option<BlockId> {
        let oldest = self.oldest?;
        self.remove(oldest);
        Some(oldest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_leave_oldest_first_wherever_others_were_taken_out() {
        let mut lru = Lru::new(6);
        for block in [3, 1, 5, 0, 1] {
            lru.push(BlockId(block));
        }
        lru.remove(BlockId(5));
        lru.remove(BlockId(3));
        lru.remove(BlockId(2));
        lru.push(BlockId(3));
        let order: Vec<_> = std::iter::from_fn(|| lru.pop()).collect();
        assert_eq!(order, [BlockId(1), BlockId(0), BlockId(3)]);
        assert_eq!(lru.len(), 0);
    }
}
