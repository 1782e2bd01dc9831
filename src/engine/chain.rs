//! Names of cached blocks: a chain of keyed hashes, so that a name stands for a block's tokens and for all before it.

use super::Salt;
use crate::call::TokenId;

/// Names the content of one full block together with everything before it, under one model and one salt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key([u8; 16]);

/// Makes [`Key`]s. Keyed anew per process, so nobody outside can prepare colliding prompts.
#[derive(Clone)]
pub struct Chain {
    hash_key: [u8; 32],
    model: [u8; 16],
}

/// What a field of a hash means. With the field's length before its bytes, two different lists of fields never read alike.
#[derive(Clone, Copy)]
enum Tag {
    Model = 1,
    Salt = 2,
    Parent = 3,
    Tokens = 4,
}

// === impl Chain ===

impl Chain {
    /// A chain for one model: the digest covers whatever changes K/V (weights, quantization, KV dtype).
    pub fn new(hash_key: [u8; 32], model: [u8; 16]) -> Self {
        Self { hash_key, model }
    }

    /// The parent of a first block.
    pub fn root(&self, salt: &Salt) -> Key {
        let mut hasher = blake3::Hasher::new_keyed(&self.hash_key);
        field(&mut hasher, Tag::Model, self.model.len()).update(&self.model);
        field(&mut hasher, Tag::Salt, salt.0.len()).update(&salt.0);
        finish(&hasher)
    }

    /// The key of the block that holds `tokens` and follows the block `parent`.
    pub fn child(&self, parent: Key, tokens: &[TokenId]) -> Key {
        let mut hasher = blake3::Hasher::new_keyed(&self.hash_key);
        field(&mut hasher, Tag::Parent, parent.0.len()).update(&parent.0);
        field(&mut hasher, Tag::Tokens, size_of_val(tokens));
        for token in tokens {
            hasher.update(&token.to_le_bytes());
        }
        finish(&hasher)
    }
}

fn field(hasher: &mut blake3::Hasher, tag: Tag, bytes: usize) -> &mut blake3::Hasher {
    hasher.update(&[tag as u8]).update(&(bytes as u64).to_le_bytes())
}

fn finish(hasher: &blake3::Hasher) -> Key {
    let mut key = [0; 16];
    hasher.finalize_xof().fill(&mut key);
    Key(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_of_the_hash_changes_the_key() {
        let chain = Chain::new([1; 32], [2; 16]);
        let root = chain.root(&Salt([3; 16]));
        let key = chain.child(root, &[1, 2, 3, 4]);
        assert_eq!(key, chain.child(root, &[1, 2, 3, 4]));
        let others = [
            chain.child(root, &[1, 2, 3, 5]),
            chain.child(root, &[1, 2, 3]),
            chain.child(key, &[1, 2, 3, 4]),
            chain.child(chain.root(&Salt([4; 16])), &[1, 2, 3, 4]),
            Chain::new([1; 32], [9; 16]).child(Chain::new([1; 32], [9; 16]).root(&Salt([3; 16])), &[1, 2, 3, 4]),
            Chain::new([9; 32], [2; 16]).child(root, &[1, 2, 3, 4]),
        ];
        for (index, other) in others.iter().enumerate() {
            assert_ne!(key, *other, "case {index}");
        }
        assert_ne!(Chain::new([1; 32], [5; 16]).root(&Salt([6; 16])), Chain::new([1; 32], [6; 16]).root(&Salt([5; 16])));
    }
}
