//! A persistent pool of compute threads: each operation is cut into one share per thread, and the caller does share 0.
//!
//! `wait => run a share => wait`, with a brief spin before parking, because operations follow each other within
//! microseconds while a step runs, and a spinning thread takes the core from everybody else when none does.

use super::CpuError;
use std::any::Any;
use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

/// Spins before parking, about 40 µs.
const SPINS: u32 = 2_000;

/// How much nicer compute threads are than the threads that serve sockets.
const NICE: i32 = 10;
/// A thread this nice has a seventh of the time of one at [`NICE`] where they share a core.
const NICEST: i32 = 19;

/// The threads.
pub(super) struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
}

struct Shared {
    /// The operation in progress. Written by the caller while no worker runs, read by workers after `generation`.
    job: UnsafeCell<Option<Job>>,
    /// Counts operations; a worker runs a share when it changes.
    generation: AtomicUsize,
    /// Workers that have ended their share of this operation.
    done: AtomicUsize,
    quit: AtomicBool,
    /// Parked workers, and whether the caller is parked.
    parked: AtomicUsize,
    caller_parked: AtomicBool,
    lock: Mutex<()>,
    started: Condvar,
    ended: Condvar,
    /// The first panic of a worker's share.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

type Job = *const (dyn Fn(usize) + Sync);

// SAFETY: `job` is the only part that isn't `Sync` by itself. It is written only inside `Pool::run`, which one thread at a
// time may call, while every worker has ended its share; the release on `generation` publishes it to them. What it points
// to is `Sync` and outlives the operation.
unsafe impl Sync for Shared {}
// SAFETY: as above; the pointer isn't tied to a thread.
unsafe impl Send for Shared {}

/// A slice that threads write in disjoint pieces.
pub(super) struct Pieces<'a, T> {
    start: *mut T,
    len: usize,
    owner: PhantomData<&'a mut [T]>,
}

// SAFETY: it hands out `&mut` pieces of `T` to other threads, which `T: Send` allows; `Pieces::get` makes the caller
// promise that pieces don't overlap.
unsafe impl<T: Send> Sync for Pieces<'_, T> {}

// === impl Pool ===

impl Pool {
    /// A pool of `threads` threads, the caller's among them.
    pub(super) fn new(threads: usize) -> Result<Self, CpuError> {
        let shared = Arc::new(Shared {
            job: UnsafeCell::new(None),
            generation: AtomicUsize::new(0),
            done: AtomicUsize::new(0),
            quit: AtomicBool::new(false),
            parked: AtomicUsize::new(0),
            caller_parked: AtomicBool::new(false),
            lock: Mutex::new(()),
            started: Condvar::new(),
            ended: Condvar::new(),
            panic: Mutex::new(None),
        });
        let mut pool = Self { shared, workers: Vec::new() };
        for share in 1..threads {
            let shared = pool.shared.clone();
            let spawned = std::thread::Builder::new().name(format!("cpu-{share}")).spawn(move || shared.work(share));
            pool.workers.push(spawned.map_err(CpuError::Thread)?);
        }
        Ok(pool)
    }

    /// Threads, the caller's among them.
    pub(super) fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Runs `job(share)` for every share `0..threads()` at once and returns when all have ended. A panic in any of them is
    /// carried to the caller once the others have ended.
    ///
    /// # Safety
    /// Only one thread may be inside `run` at a time, and `job` must not call it.
    pub(super) unsafe fn run(&self, job: &(dyn Fn(usize) + Sync)) {
        if self.workers.is_empty() {
            return job(0);
        }
        let shared = &*self.shared;
        // SAFETY: only the lifetime changes; this function returns, or unwinds, only after every worker is done with it.
        let job_for_workers: Job = unsafe { std::mem::transmute::<&(dyn Fn(usize) + Sync), &'static (dyn Fn(usize) + Sync)>(job) };
        // SAFETY: no worker runs: the previous operation has ended, and only this thread starts one.
        unsafe { *shared.job.get() = Some(job_for_workers) };
        shared.done.store(0, Ordering::Relaxed);
        shared.generation.fetch_add(1, Ordering::SeqCst);
        if shared.parked.load(Ordering::SeqCst) > 0 {
            let _lock = shared.lock();
            shared.started.notify_all();
        }
        let own = catch_unwind(AssertUnwindSafe(|| job(0)));
        shared.wait_for(self.workers.len());
        let workers = shared.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(panic) = own.err().or(workers) {
            resume_unwind(panic);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.quit.store(true, Ordering::SeqCst);
        self.shared.generation.fetch_add(1, Ordering::SeqCst);
        {
            let _lock = self.shared.lock();
            self.shared.started.notify_all();
        }
        for worker in self.workers.drain(..) {
            // A share's panic is caught inside the worker, so a worker itself never panics.
            worker.join().expect("invariant: workers catch panics");
        }
    }
}

// === impl Shared ===

impl Shared {
    fn lock(&self) -> std::sync::MutexGuard<'_, ()> {
        self.lock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A worker's life.
    fn work(&self, share: usize) {
        be_nice();
        let mut seen = 0;
        loop {
            seen = self.wait_past(seen);
            if self.quit.load(Ordering::SeqCst) {
                return;
            }
            // SAFETY: the caller wrote the job before it raised `generation`, and waits for `done` before it writes again.
            let job = unsafe { (*self.job.get()).expect("invariant: a job is set before the generation is raised") };
            // SAFETY: the job lives until `run` returns, which waits for this share.
            let ended = catch_unwind(AssertUnwindSafe(|| unsafe { (*job)(share) }));
            if let Err(panic) = ended {
                self.panic.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(panic);
            }
            self.done.fetch_add(1, Ordering::SeqCst);
            if self.caller_parked.load(Ordering::SeqCst) {
                let _lock = self.lock();
                self.ended.notify_one();
            }
        }
    }

    /// Waits until the generation isn't `seen` any more and returns it.
    fn wait_past(&self, seen: usize) -> usize {
        let now = || self.generation.load(Ordering::SeqCst);
        if !spin(|| now() != seen) {
            let mut lock = self.lock();
            // Announced before the last look, so either the caller sees it and wakes, or this sees the caller's change.
            self.parked.fetch_add(1, Ordering::SeqCst);
            while now() == seen {
                lock = self.started.wait(lock).unwrap_or_else(PoisonError::into_inner);
            }
            self.parked.fetch_sub(1, Ordering::SeqCst);
        }
        now()
    }

    /// Waits until `workers` shares have ended.
    fn wait_for(&self, workers: usize) {
        let all = || self.done.load(Ordering::SeqCst) == workers;
        if !spin(all) {
            let mut lock = self.lock();
            self.caller_parked.store(true, Ordering::SeqCst);
            while !all() {
                lock = self.ended.wait(lock).unwrap_or_else(PoisonError::into_inner);
            }
            self.caller_parked.store(false, Ordering::SeqCst);
        }
    }
}

/// Whether `ready` came true within a brief spin.
fn spin(ready: impl Fn() -> bool) -> bool {
    (0..SPINS).any(|_| {
        std::hint::spin_loop();
        ready()
    })
}

/// Makes the calling thread nicer: compute must not delay accepting, streaming and cancelling.
pub fn be_nice() {
    be_nice_by(NICE);
}

/// Makes the calling thread, and those it starts, as nice as can be: loading must not delay a step. Without privileges there
/// is no way back.
pub fn be_nicest() {
    be_nice_by(NICEST);
}

fn be_nice_by(nice: i32) {
    #[cfg(target_os = "linux")]
    // SAFETY: plain system calls without pointers; on Linux a thread id names one thread here.
    let refused = unsafe { libc::setpriority(libc::PRIO_PROCESS, libc::gettid().cast_unsigned(), nice) } != 0;
    #[cfg(target_os = "linux")]
    if refused {
        tracing::warn!(error = %std::io::Error::last_os_error(), "a compute thread keeps its priority");
    }
    #[cfg(not(target_os = "linux"))]
    let _ = nice; // elsewhere a thread has no niceness of its own
}

/// Share `share` of `0..total` among `shares`, in whole units of `unit`: contiguous, in order, sizes differing by one unit.
pub(super) fn share_of(total: usize, unit: usize, share: usize, shares: usize) -> Range<usize> {
    let units = total.div_ceil(unit);
    let at = |share: usize| (units * share / shares * unit).min(total);
    at(share)..at(share + 1)
}

// === impl Pieces ===

impl<'a, T> Pieces<'a, T> {
    pub(super) fn new(slice: &'a mut [T]) -> Self {
        Self { start: slice.as_mut_ptr(), len: slice.len(), owner: PhantomData }
    }

    /// The elements of `range`.
    ///
    /// # Safety
    /// No two pieces that live at the same time overlap.
    #[expect(clippy::mut_from_ref, reason = "handing out disjoint pieces of one slice is what it is for")]
    pub(super) unsafe fn get(&self, range: Range<usize>) -> &mut [T] {
        assert!(range.start <= range.end && range.end <= self.len, "piece {range:?} of {}", self.len);
        // SAFETY: in bounds by the assertion, unaliased by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }
}
