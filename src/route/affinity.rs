//! The order in which replicas are tried: one that has the beginning of the prompt in its cache first, unless another would
//! be sooner all the same.
//!
//! A shard says exactly what it has cached, so its cost is its queue and then what isn't cached of the prompt. A remote doesn't
//! say, so prompts that begin alike go to the same remote by a consistent hash (rendezvous hashing: Thaler and Ravishankar,
//! 1998), as long as it isn't busier than the others (bounded loads: Mirrokni, Thorup and Zadimoghaddam, 2016).

use crate::backend::Offer;
use crate::call::Call;
use crate::config::Name;
use std::cmp::Reverse;
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

/// What a replica offers.
pub(super) struct Bid<T> {
    pub(super) name: Name,
    pub(super) offer: Offer,
    /// Whose it is.
    pub(super) of: T,
}

/// A remote takes no more calls than this times its fair share, while others have less.
const BOUND: f64 = 1.25;
/// How much of the beginning of a prompt tells remotes apart, in tokens. Longer than most prompts that a whole model's
/// users share, shorter than most conversations.
const BEGINNING: usize = 256;
/// How often prefill counts against waiting. Replaying a trace of conversations on two replicas at two thirds of what they
/// can do, 1 finds 89 % of the cached tokens that there are, 2 finds 93 % and 4 finds 96 %, with the shortest mean TTFT
/// (`benches/results`).
const COMPUTED: u32 = 4;
/// Costs that differ by less than a tenth are equal: they are moving averages of measurements.
const SAME: f64 = 1.1;

// === impl Bid ===

impl<T> Bid<T> {
    /// The time until the first token, with what has to be computed counted several times: everybody behind it waits as well.
    fn cost(&self) -> Duration {
        self.offer.queue_time + self.offer.prefill_time * COMPUTED
    }
}

/// Bids for a call, the best first. Of equal ones the least loaded, of equally loaded ones any.
pub(super) fn order<T>(call: &Call, bids: Vec<Bid<T>>) -> Vec<Bid<T>> {
    if bids.len() < 2 {
        return bids;
    }
    let (shards, remotes): (Vec<_>, Vec<_>) = bids.into_iter().partition(|bid| bid.offer.cached_tokens.is_some());
    let (mut shards, mut remotes) = (by_cost(shards), by_beginning(call, remotes));
    let is_sooner = |a: &[Bid<T>], b: &[Bid<T>]| a.first().map(Bid::cost) <= b.first().map(Bid::cost);
    if remotes.is_empty() || !shards.is_empty() && is_sooner(&shards, &remotes) {
        shards.append(&mut remotes);
        return shards;
    }
    remotes.append(&mut shards);
    remotes
}

/// The cheapest first, and before it those that cost about the same and have less to do.
fn by_cost<T>(mut bids: Vec<Bid<T>>) -> Vec<Bid<T>> {
    let same = bids.iter().map(Bid::cost).min().unwrap_or_default().mul_f64(SAME);
    bids.sort_by_cached_key(|bid| {
        let (cost, tie) = (bid.cost(), RandomState::new().hash_one(0));
        if cost <= same {
            return (Duration::ZERO, bid.offer.in_flight, Reverse(bid.offer.cached_tokens), tie);
        }
        (cost, bid.offer.in_flight, Reverse(bid.offer.cached_tokens), tie)
    });
    bids
}

/// Each in its place by the hash of the prompt's beginning and its name, those with less than their bounded share first.
fn by_beginning<T>(call: &Call, mut bids: Vec<Bid<T>>) -> Vec<Bid<T>> {
    if bids.len() < 2 {
        return bids; // nothing to tell apart: the prompt needn't be hashed
    }
    let beginning = beginning(call);
    let all: u64 = bids.iter().map(|bid| u64::from(bid.offer.in_flight)).sum();
    let most = ((all + 1) as f64 * BOUND / bids.len() as f64).ceil() as u64;
    bids.sort_by_cached_key(|bid| {
        let place = hash(|hasher| hasher.update(&beginning.to_le_bytes()).update(bid.name.as_str().as_bytes()));
        (u64::from(bid.offer.in_flight) >= most, Reverse(place))
    });
    bids
}

/// What the prompts of one conversation have in common: the key that its client gives them, or all up to the first thing
/// that its user said, or the first tokens.
fn beginning(call: &Call) -> u64 {
    hash(|hasher| {
        if let Some(key) = &call.asked.cache_key {
            return hasher.update(key.as_bytes());
        }
        if !call.messages.is_empty() {
            let first = call.messages.iter().position(|message| message.role == "user").unwrap_or(call.messages.len());
            for message in call.messages.iter().take(first + 1) {
                hasher.update(&(message.content.len() as u64).to_le_bytes()).update(message.content.as_bytes());
            }
            return hasher;
        }
        let Some(prompt) = call.prompts.first() else { return hasher };
        for token in prompt.ids.iter().take(BEGINNING) {
            hasher.update(&token.to_le_bytes());
        }
        let text = prompt.text.as_deref().unwrap_or_default().as_bytes();
        hasher.update(&text[..text.len().min(BEGINNING * 4)])
    })
}

/// Equal on every replica of the gateway and after every start, so that all of them send a prompt to the same remote.
fn hash(fill: impl FnOnce(&mut blake3::Hasher) -> &mut blake3::Hasher) -> u64 {
    let mut hasher = blake3::Hasher::new();
    fill(&mut hasher);
    let mut bytes = [0; 8];
    hasher.finalize_xof().fill(&mut bytes);
    u64::from_le_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::{Asked, Digest, Message, Prompt};
    use std::collections::BTreeMap;
    use std::sync::Arc;

    const MS: Duration = Duration::from_millis(1);

    fn shard(name: &str, cached: u32, prefill: u32, queue: u32, in_flight: u32) -> Bid<()> {
        let offer =
            Offer { cached_tokens: Some(cached), in_flight, prefill_time: MS * prefill, queue_time: MS * queue, ..Offer::default() };
        Bid { name: name.into(), offer, of: () }
    }

    fn remote(name: &str, in_flight: u32) -> Bid<()> {
        Bid { name: name.into(), offer: Offer { in_flight, prefill_time: MS * 50, ..Offer::default() }, of: () }
    }

    fn call() -> Call {
        crate::route::tests::call()
    }

    fn first(call: &Call, bids: Vec<Bid<()>>) -> String {
        order(call, bids).swap_remove(0).name.to_string()
    }

    #[test]
    fn a_prompt_goes_where_its_beginning_is_cached_unless_the_queue_there_takes_longer() {
        assert_eq!(first(&call(), vec![shard("a", 0, 100, 0, 0), shard("b", 900, 10, 0, 5)]), "b");
        assert_eq!(first(&call(), vec![shard("a", 0, 100, 0, 0), shard("b", 900, 10, 370, 5)]), "a", "costs within a tenth: the idle one");
        assert_eq!(first(&call(), vec![shard("a", 0, 100, 0, 9), shard("b", 900, 10, 500, 5)]), "a");
        // Nothing was ever measured.
        assert_eq!(first(&call(), vec![shard("a", 0, 0, 0, 1), shard("b", 900, 0, 0, 1)]), "b");
    }

    #[test]
    fn a_miss_goes_to_the_least_loaded_and_ties_are_broken_at_random() {
        assert_eq!(first(&call(), vec![shard("a", 0, 100, 0, 3), shard("b", 0, 105, 0, 2), shard("c", 0, 90, 120, 0)]), "b");
        let mut counts = BTreeMap::<_, u32>::new();
        for _ in 0..300 {
            *counts.entry(first(&call(), vec![shard("a", 0, 100, 0, 2), shard("b", 0, 100, 0, 2)])).or_default() += 1;
        }
        // Each expects 150; fewer than 100 has a chance below one in a hundred million.
        assert!(counts.len() == 2 && counts.values().all(|count| *count >= 100), "{counts:?}");
    }

    fn asks(first: &str, later: &str) -> Call {
        let message = |role: &str, content: &str| Message::new(role, content);
        let messages = [message("system", "Be brief."), message("user", first), message("assistant", "Yes."), message("user", later)];
        Call { messages: messages.into(), ..call() }
    }

    #[test]
    fn a_conversation_stays_with_its_remote_and_conversations_spread_evenly() {
        let place = |text: &str, later: &str| first(&asks(text, later), vec![remote("a", 0), remote("b", 0), remote("c", 0)]);
        let mut counts = BTreeMap::<_, u32>::new();
        for conversation in 0..600 {
            let text = format!("Question {conversation}");
            let at = place(&text, "And?");
            assert_eq!(place(&text, "And then?"), at);
            *counts.entry(at.clone()).or_default() += 1;
            // One that is gone moves nobody but its own.
            let left = first(&asks(&text, "And?"), vec![remote("a", 0), remote("c", 0)]);
            assert!(at == "b" || left == at);
        }
        assert!(counts.values().all(|count| (150..250).contains(count)), "{counts:?}");
    }

    #[test]
    fn a_remote_with_more_than_its_bounded_share_makes_way() {
        let call = asks("A popular question", "And?");
        let home = first(&call, vec![remote("a", 0), remote("b", 0)]);
        let loaded = |own: u32, other: u32| {
            let bids = ["a", "b"].map(|name| remote(name, if name == home { own } else { other }));
            first(&call, bids.into())
        };
        // (own + other + 1) × 1.25 / 2, rounded up, is what each may have in the end.
        assert_eq!((loaded(4, 3) == home, loaded(5, 3) == home, loaded(7, 3) == home), (true, true, false));
        assert_eq!((loaded(100, 100) == home, loaded(150, 100) == home), (true, true));
        assert!(loaded(160, 90) != home);
    }

    #[test]
    fn the_beginning_of_a_completion_is_its_first_tokens() {
        let with = |ids: Vec<u32>| Call { prompts: [Prompt::new(ids, Digest([0; 16]))].into(), ..call() };
        let long: Vec<u32> = (0..300).collect();
        let longer: Vec<u32> = (0..300).chain([7; 50]).collect();
        assert_eq!(beginning(&with(long.clone())), beginning(&with(longer)));
        assert_ne!(beginning(&with(long)), beginning(&with((1..300).collect())));
        let text = |text: &str| {
            let prompt = Prompt { text: Some(Arc::from(text)), ..Prompt::uncounted(10) };
            Call { prompts: [prompt].into(), ..call() }
        };
        assert_ne!(beginning(&text("a")), beginning(&text("b")));
        let keyed = |text: &str| Call { asked: Arc::new(Asked { cache_key: Some("k".to_owned()), ..Asked::default() }), ..asks(text, "") };
        assert_eq!(beginning(&keyed("a")), beginning(&keyed("b")));
    }
}
