//! How a shard comes into the place of another, and how it leaves its own.

use super::handle::Shard;
use super::thread::{Command, Said, Submit};
use crate::config::Name;
use crate::engine::{DeviceError, Party, Salt, Sampling, SeqId, Submission};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc::unbounded_channel;

/// A thread that has nothing to do and is about to end does so within this.
const AT_ONCE: Duration = Duration::from_secs(60);

// === impl Shard ===

impl Shard {
    /// Runs one step, so that the first request doesn't pay for what is done at first use. Blocks, and not on a thread that
    /// runs futures.
    ///
    /// # Errors
    /// The device failed; the shard is lost.
    pub fn warm(&self) -> Result<(), DeviceError> {
        let place = self.door.readmit(&Name::from("warm"), 1).pop().ok_or_else(|| DeviceError("it has no place".to_owned()))?;
        let party = Party { tenant: Name::from("warm"), weight: std::num::NonZeroU32::MIN, class: crate::config::Class::Interactive };
        let (events, mut said) = unbounded_channel();
        let submission = Submission {
            seq: SeqId(u64::MAX), // no request gets there
            prompt: [0].into(),
            output: [].into(),
            max_tokens: 1,
            sampling: Sampling::greedy(),
            ignore_stop: false,
            score_prompt: false,
            salt: Salt([0; 16]),
            party,
            arrived: self.clock.now(),
        };
        let lost = || DeviceError("its first step failed".to_owned());
        self.mail(Submit { submission, uncached: 1, place, together: 1, events }).map_err(|_| lost())?;
        while let Some(said) = said.blocking_recv() {
            if matches!(said, Said::Ended { .. }) {
                return Ok(());
            }
        }
        Err(lost())
    }

    /// Takes no new calls from now on and finishes what it has, until [`resume`](Self::resume).
    pub fn drain(&self) {
        self.live.standing.drain(true);
    }

    /// Takes calls again.
    pub fn resume(&self) {
        self.live.standing.drain(false);
    }

    /// Whether it is drained and was not resumed.
    pub fn is_drained(&self) -> bool {
        self.live.standing.is_drained()
    }

    /// Another shard has this one's name from now on. What was routed here under an older configuration is still served;
    /// where `next` gives the very same answers, calls that have not begun go there.
    pub fn give_way(&self, next: &Arc<Shard>) {
        self.live.standing.replace();
        if self.digest == next.digest && self.text.digest() == next.text.digest() && self.successor.set(Arc::downgrade(next)).is_ok() {
            let _ = self.mailbox.send(Command::GiveBack); // a closed mailbox is a lost shard, where nothing waits
        }
    }

    /// Takes no new calls, finishes what it has and frees its memory: true once that is done, after `patience` at the
    /// latest. False if it wasn't: then it serves on.
    pub fn leave(&self, patience: Duration) -> bool {
        let standing = &self.live.standing;
        standing.leave();
        let _ = self.mailbox.send(Command::Wake); // a closed mailbox is one that has left
        let gone = standing.has_ended(patience) || !standing.stay();
        standing.go(gone);
        gone && standing.has_ended(AT_ONCE)
    }

    /// Nothing came into the place of one that has left.
    pub fn lose(&self) {
        self.live.standing.go(false);
        self.live.lose();
    }

    /// Whether its thread has ended and its memory is free, after `patience` at the latest.
    pub fn has_ended(&self, patience: Duration) -> bool {
        self.live.standing.has_ended(patience)
    }
}
