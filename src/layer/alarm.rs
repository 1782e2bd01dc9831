//! One coarse tick for all requests of a thread, in the place of a long timer each.
//!
//! A request sets its alarm on the serving thread that it stays on; the thread's ticker rings what is due.

use futures_util::task::AtomicWaker;
use std::cell::RefCell;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::Instant;

/// Rings once, at the first tick of this thread that is due. Dropping it silences it.
pub(super) struct Alarm(Arc<Bell>);

struct Bell {
    at: Instant,
    rung: AtomicBool,
    waker: AtomicWaker,
}

thread_local! {
    static SET: RefCell<Vec<Arc<Bell>>> = const { RefCell::new(Vec::new()) };
}

/// Rings the alarms of the calling thread that are due. Whoever runs a serving thread calls this many times a second.
pub fn ring() {
    let now = Instant::now();
    // Woken when the list isn't borrowed any more: whatever is woken may set an alarm.
    let due: Vec<_> = SET.with_borrow_mut(|set| {
        forget(set);
        set.extract_if(.., |bell| now >= bell.at).collect()
    });
    for bell in due {
        bell.rung.store(true, Ordering::Release);
        bell.waker.wake();
    }
}

/// Drops those that nobody waits for.
fn forget(set: &mut Vec<Arc<Bell>>) {
    set.retain(|bell| Arc::strong_count(bell) > 1);
}

// === impl Alarm ===

impl Alarm {
    /// Rings after this time.
    pub(super) fn after(time: Duration) -> Self {
        let bell = Arc::new(Bell { at: Instant::now() + time, rung: AtomicBool::new(false), waker: AtomicWaker::new() });
        SET.with_borrow_mut(|set| {
            if set.len() == set.capacity() {
                forget(set);
            }
            set.push(bell.clone());
        });
        Self(bell)
    }

    /// Ready once it has rung.
    pub(super) fn poll(&self, cx: &mut Context<'_>) -> Poll<()> {
        // Registered before the look, so that a ring in between isn't missed.
        self.0.waker.register(cx.waker());
        if self.0.rung.load(Ordering::Acquire) { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Waits until it rings.
    pub(super) async fn rung(&self) {
        poll_fn(|cx| self.poll(cx)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn has_rung(alarm: &Alarm) -> bool {
        alarm.poll(&mut Context::from_waker(std::task::Waker::noop())).is_ready()
    }

    #[tokio::test(start_paused = true)]
    async fn an_alarm_rings_at_the_first_tick_after_its_time_and_not_before() {
        let (early, late) = (Alarm::after(Duration::from_secs(1)), Alarm::after(Duration::from_secs(5)));
        ring();
        assert!(!has_rung(&early));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(!has_rung(&early), "nobody ticked");
        ring();
        assert!(has_rung(&early) && !has_rung(&late));
        let waiting = tokio::spawn(async move { late.rung().await });
        tokio::time::advance(Duration::from_secs(4)).await;
        ring();
        assert!(waiting.await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn alarms_that_nobody_waits_for_take_no_memory() {
        for _ in 0..10_000 {
            drop(Alarm::after(Duration::from_secs(600)));
        }
        SET.with_borrow(|set| assert!(set.len() <= set.capacity() && set.capacity() < 100, "{}", set.capacity()));
        ring();
        SET.with_borrow(|set| assert!(set.is_empty()));
    }
}
