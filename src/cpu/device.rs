//! A CPU device: its threads, its memory budget, and whose turn it is.

use super::isa::Path;
use super::pool::{Pieces, Pool, share_of};
use crate::config;
use std::cell::Cell;
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// What the CPU device can't do.
#[derive(Debug, thiserror::Error)]
pub enum CpuError {
    /// The configuration forces an instruction set this machine lacks.
    #[error("isa = \"{isa}\" needs {needs}, which this machine lacks; use \"auto\"")]
    IsaMissing {
        /// The configured set.
        isa: &'static str,
        /// What it takes.
        needs: &'static str,
    },
    /// A compute thread couldn't be started.
    #[error("can't start a compute thread")]
    Thread(#[source] std::io::Error),
    /// The device's memory budget doesn't allow an allocation.
    #[error("{what} need {needed} bytes, but {free} of the device's {total} bytes are free")]
    Memory {
        /// What the memory was for.
        what: String,
        /// Its size.
        needed: u64,
        /// What is left of the budget.
        free: u64,
        /// The budget, `devices.NAME.memory`.
        total: u64,
    },
    /// A weight matrix and its bytes don't fit together.
    #[error("a {dtype} matrix of {rows} x {columns} can't be made from {bytes} bytes: {}", match expected { Some(expected) => format!("it has {expected}"), None => format!("rows must be whole blocks of {}", dtype.block_elements()) })]
    Matrix {
        /// Its element type.
        dtype: crate::reference::Dtype,
        /// Its rows.
        rows: usize,
        /// Its columns.
        columns: usize,
        /// The bytes given.
        bytes: usize,
        /// The bytes such a matrix has; `None` where its rows aren't whole blocks.
        expected: Option<usize>,
    },
}

/// One thread pool and one memory budget, shared by the shards on it.
pub struct Device {
    path: Path,
    pool: Pool,
    memory: u64,
    reserved: Mutex<u64>,
    line: Line,
}

/// Memory of a device's budget, given back on drop.
pub struct Reservation {
    device: Arc<Device>,
    bytes: u64,
}

/// First come, first served: a shard that has just ended a step goes behind one that waits.
#[derive(Default)]
struct Line {
    tickets: Mutex<Tickets>,
    moved: Condvar,
}

#[derive(Default)]
struct Tickets {
    next: u64,
    serving: u64,
}

/// Exclusive use of a device's threads, for one step of one shard; every operation is a method of it.
pub struct Turn<'a> {
    device: &'a Device,
    /// Operations of one turn run one after the other, so a turn isn't shared between threads.
    one_thread: PhantomData<Cell<()>>,
}

// === impl Device ===

impl Device {
    /// Starts a device's threads.
    ///
    /// # Errors
    /// The machine lacks a forced instruction set, or a thread can't be started.
    pub fn new(config: &config::Device) -> Result<Arc<Self>, CpuError> {
        let path = Path::choose(config.isa)?;
        let pool = Pool::new(config.threads)?;
        Ok(Arc::new(Self { path, pool, memory: config.memory, reserved: Mutex::new(0), line: Line::default() }))
    }

    /// The instruction set its kernels use, as the configuration writes it.
    pub fn isa_name(&self) -> &'static str {
        self.path.as_str()
    }

    /// Its compute threads; the caller of an operation is one of them.
    pub fn threads(&self) -> usize {
        self.pool.threads()
    }

    /// Takes `bytes` of the memory budget before `what` ("weights of shard x") is allocated.
    ///
    /// # Errors
    /// The budget has less left; nothing was taken.
    pub fn reserve(self: &Arc<Self>, bytes: u64, what: &str) -> Result<Reservation, CpuError> {
        let mut reserved = self.reserved();
        let free = self.memory - *reserved;
        if bytes > free {
            return Err(CpuError::Memory { what: what.to_owned(), needed: bytes, free, total: self.memory });
        }
        *reserved += bytes;
        Ok(Reservation { device: self.clone(), bytes })
    }

    /// Waits for exclusive use of the threads, in order of arrival.
    pub fn turn(&self) -> Turn<'_> {
        self.line.wait();
        Turn { device: self, one_thread: PhantomData }
    }

    /// Turns that were ever asked for.
    #[cfg(test)]
    pub(super) fn turns_asked_for(&self) -> u64 {
        self.line.tickets().next
    }

    fn reserved(&self) -> MutexGuard<'_, u64> {
        // Every change of the number is one addition or subtraction, so it is right even after a panic.
        self.reserved.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Reservation ===

impl Drop for Reservation {
    fn drop(&mut self) {
        *self.device.reserved() -= self.bytes;
    }
}

// === impl Line ===

impl Line {
    fn wait(&self) {
        let mut tickets = self.tickets();
        let mine = tickets.next;
        tickets.next += 1;
        while tickets.serving != mine {
            tickets = self.moved.wait(tickets).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn leave(&self) {
        self.tickets().serving += 1;
        self.moved.notify_all();
    }

    fn tickets(&self) -> MutexGuard<'_, Tickets> {
        self.tickets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Turn ===

impl Turn<'_> {
    pub(super) fn path(&self) -> Path {
        self.device.path
    }

    pub(super) fn threads(&self) -> usize {
        self.device.threads()
    }

    /// Runs one share per thread. A job must not start another.
    pub(super) fn run(&self, job: &(dyn Fn(usize) + Sync)) {
        // SAFETY: there is one turn at a time and it stays on its thread, so nobody else is inside `run`; jobs are this
        // module's kernels, none of which holds a turn.
        unsafe { self.device.pool.run(job) }
    }

    /// Cuts `out`, rows of `width`, into contiguous ranges of rows, one per thread, and calls `job(rows, their part of out)`
    /// for each. With `work` (elements touched, roughly) too small to pay for waking threads, the caller does it all.
    pub(super) fn rows<T: Send>(&self, out: &mut [T], width: usize, work: usize, job: &(dyn Fn(Range<usize>, &mut [T]) + Sync)) {
        let rows = out.len() / width;
        if rows == 1 || work < SERIAL_BELOW {
            return job(0..rows, out);
        }
        let (pieces, threads) = (Pieces::new(out), self.threads());
        self.run(&|share| {
            let rows = share_of(rows, 1, share, threads);
            // SAFETY: shares are disjoint ranges of rows.
            let out = unsafe { pieces.get(rows.start * width..rows.end * width) };
            job(rows, out);
        });
    }
}

/// Elements of elementwise work that take less time than waking the pool.
const SERIAL_BELOW: usize = 8_192;

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.device.line.leave();
    }
}
