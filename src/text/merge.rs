//! The loop that both algorithms share: join the best pair of neighbours until none is left.

use crate::call::TokenId;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// A stretch of text that is one token, or none yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Symbol {
    /// Where it begins, in bytes.
    pub(super) start: u32,
    /// Its length in bytes; 0 once it has joined its left neighbour.
    pub(super) len: u32,
    /// The token it is, if it is one.
    pub(super) id: Option<TokenId>,
    previous: u32,
    next: u32,
}

/// What a pair becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Joined {
    /// The lower, the earlier it is joined; among equals the leftmost pair is first.
    pub(super) rank: u32,
    /// The token both become.
    pub(super) id: TokenId,
}

/// The symbols of one text, reused from text to text for its allocations.
#[derive(Debug, Default)]
pub(super) struct Merger {
    symbols: Vec<Symbol>,
    queue: BinaryHeap<Reverse<Candidate>>,
}

/// A pair that could be joined; stale as soon as one of the two has grown or gone, which `len` shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    rank: u32,
    left: u32,
    right: u32,
    len: u32,
    id: TokenId,
}

/// No neighbour.
const END: u32 = u32::MAX;

// === impl Merger ===

impl Merger {
    /// Forgets the text before.
    pub(super) fn clear(&mut self) {
        self.symbols.clear();
    }

    /// Appends a stretch of `len` bytes. A text is below 4 GiB.
    pub(super) fn push(&mut self, len: u32, id: Option<TokenId>) {
        let at = self.symbols.len() as u32;
        let (start, previous) = match self.symbols.last_mut() {
            Some(last) => {
                last.next = at;
                (last.start + last.len, at - 1)
            }
            None => (0, END),
        };
        self.symbols.push(Symbol { start, len, id, previous, next: END });
    }

    /// Joins pairs, best first, until `join` knows none among the neighbours.
    pub(super) fn merge(&mut self, join: impl Fn(&Symbol, &Symbol) -> Option<Joined>) {
        self.queue.clear();
        for right in 1..self.symbols.len() as u32 {
            self.offer(right - 1, right, &join);
        }
        while let Some(Reverse(best)) = self.queue.pop() {
            let (left, right) = (self.symbols[best.left as usize], self.symbols[best.right as usize]);
            if left.len == 0 || right.len == 0 || left.len + right.len != best.len {
                continue;
            }
            self.symbols[best.right as usize].len = 0;
            self.symbols[best.left as usize] = Symbol { len: best.len, id: Some(best.id), next: right.next, ..left };
            if right.next != END {
                self.symbols[right.next as usize].previous = best.left;
                self.offer(best.left, right.next, &join);
            }
            if left.previous != END {
                self.offer(left.previous, best.left, &join);
            }
        }
    }

    fn offer(&mut self, left: u32, right: u32, join: &impl Fn(&Symbol, &Symbol) -> Option<Joined>) {
        let (a, b) = (&self.symbols[left as usize], &self.symbols[right as usize]);
        if let Some(Joined { rank, id }) = join(a, b) {
            self.queue.push(Reverse(Candidate { rank, left, right, len: a.len + b.len, id }));
        }
    }

    /// What is left, in order.
    pub(super) fn symbols(&self) -> impl Iterator<Item = &Symbol> {
        self.symbols.iter().filter(|symbol| symbol.len > 0)
    }
}
