//! Who has had how much of the device: weighted fairness between tenants, and who gives way to whom.

use super::sequence::Sequence;
use crate::config::{Class, Name};
use std::cmp::Ordering;
use std::collections::HashMap;
use std::num::NonZeroU32;
use std::time::{Duration, Instant};

/// Whose a sequence is, and how urgent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Party {
    /// The tenant.
    pub tenant: Name,
    /// Its share of a busy device, relative to other tenants'.
    pub weight: NonZeroU32,
    /// Interactive goes before batch.
    pub class: Class,
}

/// What every tenant has had so far, as virtual time: attributed device time ÷ weight. The one with the least goes first.
///
/// ```text
/// unknown => alive      its first sequence comes: it begins where the least served of the others is,
///                       so nobody saves up turns while away, and nobody pays for having been alone
/// alive => idle         its last sequence is gone; forgotten once the others have caught up
/// ```
#[derive(Debug, Default)]
pub(super) struct Shares {
    tenants: HashMap<Name, Share>,
    /// The virtual time of the least served tenant that is alive; never goes back.
    floor: u128,
}

#[derive(Debug, Default)]
struct Share {
    served: u128,
    alive: usize,
}

/// A sequence's place by its party, as of the step that is being planned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rank {
    class: Class,
    served: u128,
}

/// What a tenant holds of the device: the larger of its shares of slots and of blocks (dominant resource fairness:
/// Ghodsi et al., NSDI 2011).
#[derive(Clone, Copy, Debug, Default)]
struct Held {
    slots: u64,
    blocks: u64,
}

/// Slots and blocks: what a device has, or what is looked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    pub(super) slots: usize,
    pub(super) blocks: usize,
}

/// Virtual time has this many fractional bits, so that a weight of millions loses nothing.
const FRACTION: u32 = 24;
/// A sequence of class batch that has waited this long counts as interactive.
const BATCH_AGE: Duration = Duration::from_secs(60);
/// A prompt that has waited this long isn't overtaken by shorter ones any more.
const PROMPT_AGE: Duration = Duration::from_secs(2);

// === impl Shares ===

impl Shares {
    /// A sequence of this party has come.
    pub(super) fn enter(&mut self, party: &Party) {
        let floor = self.floor;
        let share = self.tenants.entry(party.tenant.clone()).or_default();
        if share.alive == 0 {
            share.served = share.served.max(floor);
        }
        share.alive += 1;
    }

    /// A sequence of this party has ended.
    pub(super) fn leave(&mut self, party: &Party) {
        if let Some(share) = self.tenants.get_mut(&party.tenant) {
            share.alive = share.alive.saturating_sub(1);
        }
    }

    /// A sequence of this party has used the device.
    pub(super) fn charge(&mut self, party: &Party, time: Duration) {
        if let Some(share) = self.tenants.get_mut(&party.tenant) {
            share.served += (time.as_nanos() << FRACTION) / u128::from(party.weight.get());
        }
    }

    /// Before a step: notes who is served least, and forgets those who are away and owe nothing.
    pub(super) fn settle(&mut self) {
        let alive = self.tenants.values().filter(|share| share.alive > 0);
        self.floor = self.floor.max(alive.map(|share| share.served).min().unwrap_or_default());
        self.tenants.retain(|_, share| share.alive > 0 || share.served > self.floor);
    }

    /// Where a sequence stands now.
    pub(super) fn rank(&self, sequence: &Sequence, now: Instant) -> Rank {
        let aged = now.saturating_duration_since(sequence.arrived) >= BATCH_AGE;
        Rank {
            class: if aged { Class::Interactive } else { sequence.party.class },
            served: self.tenants.get(&sequence.party.tenant).map_or(0, |share| share.served),
        }
    }
}

// === Orders ===

/// Who keeps its place: the last in this order is preempted first.
pub(super) fn order(a: &Sequence, b: &Sequence) -> Ordering {
    (a.rank, a.arrived, a.id).cmp(&(b.rank, b.arrived, b.id))
}

/// Whose prompt is computed first: as [`order`], but the shortest first among those of one tenant.
pub(super) fn prompt_order(a: &Sequence, b: &Sequence) -> Ordering {
    (a.rank, a.uncached, a.arrived, a.id).cmp(&(b.rank, b.uncached, b.arrived, b.id))
}

/// Whether a waiting prompt is so old, or was begun before, that no shorter one may overtake it.
pub(super) fn is_overdue(sequence: &Sequence, now: Instant) -> bool {
    sequence.preemptions > 0 || now.saturating_duration_since(sequence.arrived) >= PROMPT_AGE
}

// === Who gives way ===

/// Which of `running` (in [`order`]) have to be preempted so that `candidate` finds `need`, by their places from the last
/// on; `None` if those that have to give way to it don't have as much.
///
/// A lower class gives way. Of the same class it's a tenant that was served at least as much and holds, by its weight, more of
/// the device than the candidate's tenant would with all `most_blocks` that the candidate may come to hold: so two can't
/// push each other out in turns.
pub(super) fn victims(candidate: &Sequence, most_blocks: usize, running: &[Sequence], need: Room, of: Room) -> Option<Vec<usize>> {
    let outranks = |victim: &Sequence| candidate.rank.class < victim.rank.class;
    let may_push = |victim: &Sequence| {
        candidate.party.tenant != victim.party.tenant
            && candidate.rank.class == victim.rank.class
            && candidate.rank.served <= victim.rank.served
    };
    if !running.iter().any(|victim| outranks(victim) || may_push(victim)) {
        return None; // most often: nothing to weigh, nothing allocated
    }
    let mut held: HashMap<&Name, Held> = HashMap::new();
    for sequence in running {
        let held = held.entry(&sequence.party.tenant).or_default();
        held.slots += 1;
        held.blocks += sequence.table.blocks().len() as u64;
    }
    let mut own = held.get(&candidate.party.tenant).copied().unwrap_or_default();
    own.slots += 1;
    own.blocks += most_blocks as u64;
    let own = own.dominant(of) * u128::from(u32::MAX) / u128::from(candidate.party.weight.get());
    let (mut slots, mut blocks, mut chosen) = (0, 0, Vec::new());
    // The protected only when nobody else is left: they hold all blocks they will ever need.
    for protected in [false, true] {
        for (place, victim) in running.iter().enumerate().rev().filter(|(_, victim)| victim.on_device && victim.is_protected() == protected)
        {
            if slots >= need.slots && blocks >= need.blocks {
                return Some(chosen);
            }
            let held = held.get_mut(&victim.party.tenant)?;
            let theirs = held.dominant(of) * u128::from(u32::MAX) / u128::from(victim.party.weight.get());
            if outranks(victim) || may_push(victim) && theirs > own {
                slots += 1;
                blocks += victim.table.blocks().len();
                held.slots -= 1;
                held.blocks -= victim.table.blocks().len() as u64;
                chosen.push(place);
            }
        }
    }
    (slots >= need.slots && blocks >= need.blocks).then_some(chosen)
}

// === impl Held ===

impl Held {
    /// The larger of both shares, in units of 1 / (slots × blocks) of the device.
    fn dominant(self, of: Room) -> u128 {
        u128::from(self.slots * of.blocks as u64).max(u128::from(self.blocks * of.slots as u64))
    }
}
