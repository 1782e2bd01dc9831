//! How fast a shard is: learned by its thread from the steps it made, read by whoever needs to know how long something
//! would take.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// What steps took by their size, and how long answers were. Only the shard's thread writes.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// Nanoseconds of a step of 2^i to 2^(i+1) − 1 tokens, a moving average; 0 where there was none yet.
    steps: [AtomicU64; SIZES],
    /// Tokens that a sequence drew until its end, a moving average, in 1/256.
    drawn: AtomicU64,
}

/// What a shard has to do before a newcomer's turn, and what it has for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Ahead {
    /// Tokens known and not computed.
    pub(super) tokens: u64,
    /// Sequences that wait.
    pub(super) waiting: u32,
    /// Sequences that run.
    pub(super) running: u32,
    /// Sequences that can run at once.
    pub(super) slots: u32,
    /// Tokens there is no KV block for, the newcomer's among them.
    pub(super) homeless: u64,
    /// Tokens that those who run have blocks for.
    pub(super) housed: u64,
    /// Most tokens of a step.
    pub(super) budget: u32,
}

/// Steps of up to 2^20 tokens.
const SIZES: usize = 20;
/// A new sample's weight in a moving average is 1/8.
const SMOOTHING: u64 = 8;
/// Fractional parts of `drawn`.
const FRACTION: u64 = 256;

// === impl Pace ===

impl Pace {
    /// A step of `tokens` tokens, at least 1, kept the device busy for so long.
    pub(super) fn stepped(&self, tokens: u32, device_time: Duration) {
        let nanos = u64::try_from(device_time.as_nanos()).unwrap_or(u64::MAX).max(1);
        smooth(&self.steps[size(tokens.into())], nanos);
    }

    /// A sequence has ended, or was cancelled, after so many tokens. One that never drew any held nobody up.
    pub(super) fn ended(&self, drawn: u32) {
        if drawn > 0 {
            smooth(&self.drawn, u64::from(drawn) * FRACTION);
        }
    }

    /// Time to compute `tokens` tokens in steps of up to `budget`; zero until there was a step.
    pub(super) fn prefill(&self, tokens: u64, budget: u32) -> Duration {
        let budget = u64::from(budget.max(1));
        let full = u32::try_from(tokens / budget).unwrap_or(u32::MAX);
        self.step(budget).saturating_mul(full).saturating_add(self.step(tokens % budget))
    }

    /// Time until a newcomer's turn: the prompts ahead have to be computed, and where there is no slot or no block for all
    /// of them, as many sequences have to end first.
    pub(super) fn queue(&self, ahead: &Ahead) -> Duration {
        let computing = self.prefill(ahead.tokens, ahead.budget);
        let (running, waiting) = (u64::from(ahead.running), u64::from(ahead.waiting));
        let for_slots = (running + waiting + 1).saturating_sub(ahead.slots.max(1).into());
        let for_blocks = if ahead.housed == 0 { 0 } else { (ahead.homeless * running).div_ceil(ahead.housed) };
        let must_end = for_slots.max(for_blocks);
        if must_end == 0 {
            return computing;
        }
        // Each step brings every running sequence one token nearer to its end.
        let batch = running.max(1);
        let steps = (must_end * self.drawn.load(Relaxed)).div_ceil(FRACTION * batch);
        computing.max(self.step(batch).saturating_mul(u32::try_from(steps).unwrap_or(u32::MAX)))
    }

    /// Time of a step of `tokens`: as one of about that size took, else what the nearest sizes that there were allow for.
    fn step(&self, tokens: u64) -> Duration {
        if tokens == 0 {
            return Duration::ZERO;
        }
        let at = size(tokens);
        let known = |index: &usize| self.steps[*index].load(Relaxed) > 0;
        let nanos = |index: usize| self.steps[index].load(Relaxed);
        // A larger step takes at most as much longer as it is larger; a smaller one takes no longer.
        let below = (0..=at).rev().find(known).map(|index| nanos(index).saturating_mul(1 << (at - index)));
        let above = (at + 1..SIZES).find(known).map(nanos);
        Duration::from_nanos(below.into_iter().chain(above).min().unwrap_or_default())
    }
}

fn size(tokens: u64) -> usize {
    (tokens.max(1).ilog2() as usize).min(SIZES - 1)
}

fn smooth(average: &AtomicU64, sample: u64) {
    let old = average.load(Relaxed);
    average.store(if old == 0 { sample } else { old - old / SMOOTHING + sample / SMOOTHING }, Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// 3 ms for up to 15 tokens, 100 ms for 256 and more; sequences of 40 tokens.
    fn pace() -> Pace {
        let pace = Pace::default();
        for _ in 0..10 {
            for tokens in [1, 2, 4, 8] {
                pace.stepped(tokens, 3 * MS);
            }
            pace.stepped(256, 100 * MS);
            pace.ended(40);
        }
        pace
    }

    const IDLE: Ahead = Ahead { tokens: 0, waiting: 0, running: 0, slots: 4, homeless: 0, housed: 0, budget: 256 };

    #[test]
    fn nothing_is_said_to_take_long_before_anything_was_seen() {
        let full = Ahead { tokens: 1000, waiting: 100, running: 4, ..IDLE };
        assert_eq!((Pace::default().prefill(1000, 256), Pace::default().queue(&full)), (Duration::ZERO, Duration::ZERO));
    }

    #[test]
    fn a_prompt_takes_its_steps_whatever_decode_steps_take() {
        let pace = pace();
        assert_eq!(pace.prefill(8, 256), 3 * MS);
        assert_eq!(pace.prefill(512, 256), 200 * MS);
        assert_eq!(pace.prefill(513, 256), 203 * MS);
        assert_eq!(pace.prefill(32, 256), 12 * MS, "at most four times that of 8");
        assert_eq!(pace.prefill(255, 256), 48 * MS, "at most sixteen times that of 8");
    }

    #[test]
    fn an_idle_shard_takes_a_newcomer_at_once_and_a_busy_one_after_the_prompts_ahead() {
        let pace = pace();
        assert_eq!(pace.queue(&IDLE), Duration::ZERO);
        assert_eq!(pace.queue(&Ahead { tokens: 512, waiting: 2, ..IDLE }), 200 * MS);
    }

    #[test]
    fn where_all_slots_are_taken_as_many_have_to_end_as_wait_and_one_more() {
        let full = Ahead { running: 4, tokens: 4, ..IDLE };
        // Four that run draw 40 tokens each in 40 steps of 3 ms: one ends every 10 steps.
        assert_eq!(pace().queue(&full), 30 * MS);
        assert_eq!(pace().queue(&Ahead { waiting: 9, ..full }), 300 * MS);
    }

    #[test]
    fn where_blocks_are_short_those_who_hold_them_have_to_end() {
        // Each of the two holds 50 tokens' blocks; 60 tokens more need both of them.
        let short = Ahead { running: 2, housed: 100, homeless: 60, ..IDLE };
        assert_eq!(pace().queue(&short), 2 * 20 * 3 * MS);
    }
}
