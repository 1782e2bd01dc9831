#![expect(clippy::unwrap_used, reason = "tests")]

use super::*;
use crate::cpu::pool::{Pool, share_of};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

#[test]
fn every_share_runs_once_however_often() {
    let pool = Pool::new(3).unwrap();
    let counts: [AtomicUsize; 3] = Default::default();
    for _ in 0..2_000 {
        // SAFETY: this thread alone uses the pool, and the job doesn't.
        unsafe { pool.run(&|share| _ = counts[share].fetch_add(1, Ordering::Relaxed)) };
    }
    assert_eq!(counts.map(AtomicUsize::into_inner), [2_000; 3]);
}

#[test]
fn a_panic_in_any_share_reaches_the_caller_after_the_others_ended_and_the_pool_lives_on() {
    let pool = Pool::new(3).unwrap();
    for broken in 0..3 {
        let ended = AtomicUsize::new(0);
        let job = |share: usize| {
            assert!(share != broken, "share {share} breaks");
            ended.fetch_add(1, Ordering::SeqCst);
        };
        // SAFETY: this thread alone uses the pool, and the job doesn't.
        let panic = catch_unwind(AssertUnwindSafe(|| unsafe { pool.run(&job) })).unwrap_err();
        assert_eq!(panic.downcast_ref::<String>().unwrap(), &format!("share {broken} breaks"));
        assert_eq!(ended.into_inner(), 2);
    }
}

#[test]
fn a_panic_during_a_turn_ends_the_turn() {
    let device = device(Isa::Auto, 2);
    let panic = catch_unwind(AssertUnwindSafe(|| device.turn().add(&mut [1.0], &[])));
    assert!(panic.is_err());
    let mut x = [1.0];
    device.turn().add(&mut x, &[2.0]);
    assert_eq!(x, [3.0]);
}

#[test]
fn a_shard_that_ends_a_step_goes_behind_one_that_waits() {
    let device = device(Isa::Auto, 2);
    let log = Mutex::new(Vec::new());
    let first = device.turn();
    std::thread::scope(|scope| {
        let (device, log) = (&device, &log);
        let step = move |shard| {
            let _turn = device.turn();
            log.lock().unwrap().push(shard);
        };
        let wait_for = |turns| {
            while device.turns_asked_for() < turns {
                std::thread::yield_now();
            }
        };
        scope.spawn(move || (0..2).for_each(|_| step('a')));
        wait_for(2);
        scope.spawn(move || step('b'));
        wait_for(3);
        drop(first);
    });
    assert_eq!(log.into_inner().unwrap(), ['a', 'b', 'a']);
}

#[test]
fn memory_is_taken_given_back_and_refused_in_words() {
    let device = Device::new(&config::Device { threads: 1, isa: Isa::Auto, memory: 100 }).unwrap();
    let held = device.reserve(60, "weights of shard a").unwrap();
    let error = device.reserve(41, "weights of shard b").err().unwrap();
    assert_eq!(error.to_string(), "weights of shard b need 41 bytes, but 40 of the device's 100 bytes are free");
    drop(held);
    device.reserve(100, "weights of shard b").unwrap();
}

#[test]
fn shares_cover_everything_once_in_order() {
    for (total, unit, shares) in [(10, 1, 3), (10, 4, 2), (0, 1, 2), (3, 1, 8), (17, 16, 2)] {
        let all: Vec<usize> = (0..shares).flat_map(|share| share_of(total, unit, share, shares)).collect();
        assert_eq!(all, (0..total).collect::<Vec<_>>());
    }
}

#[cfg(not(target_arch = "x86_64"))]
#[test]
fn a_forced_instruction_set_that_is_missing_is_named() {
    let error = Device::new(&config::Device { threads: 1, isa: Isa::Avx2, memory: 1 }).err().unwrap();
    assert!(error.to_string().contains("avx2"));
}
