//! Weights files that are cut, changed or made up to harm: each is an error or a model, never a panic or a flood of memory.

mod support;

use roundhouse::config::Shard;
use roundhouse::engine::{Executor, Input, Mask, Plan, Row, Sampled, Sampling, SeqId, Start};
use roundhouse::model::load;
use std::alloc::{GlobalAlloc, Layout, System};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use support::tiny_model::{self, TinyModel};

/// Counts what is allocated.
struct Counting;

static NOW: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);
/// What is counted is the process's, so tests go one after the other.
static ALONE: Mutex<()> = Mutex::new(());

// SAFETY: every call goes to the system's allocator as it is.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        PEAK.fetch_max(NOW.fetch_add(layout.size(), Relaxed) + layout.size(), Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// The device's budget is 64 MiB; what a load needs beside it is a file's header and its tokenizer, twice.
const MOST: usize = 96 << 20;

fn shard() -> Shard {
    let mut shard = support::smollm2_shard();
    shard.kv_cache.memory = 4 << 20;
    shard
}

/// Loads the file and computes a step; what went wrong, if anything did.
fn try_out(path: &Path) -> Result<(), String> {
    let device =
        roundhouse::cpu::Device::new(&roundhouse::config::Device { threads: 1, isa: roundhouse::config::Isa::Auto, memory: 64 << 20 });
    let loaded = load(&shard(), path, &device.expect("the device opens"), &support::Silent).map_err(|error| error.to_string())?;
    let mut runner = loaded.into_executor();
    let row =
        Row { seq: SeqId(0), start: 0, count: 3, mask: Mask::Causal, input: Input::Known(0..3), blocks: 0..1, sample: 1, score: 0..0 };
    let start = Start { seq: SeqId(0), sampling: Sampling::greedy(), history: 0..0, prompt: 3 };
    let blocks = vec![roundhouse::engine::BlockId(0)];
    let plan = Plan { rows: vec![row], tokens: vec![1, 2, 0], blocks, started: vec![start], ended: Vec::new() };
    let ticket = runner.launch(&plan).map_err(|error| error.to_string())?;
    runner.collect(ticket, &mut Sampled::default()).map_err(|error| error.to_string())
}

/// Writes the bytes to a file and tries it out within the bound on memory.
fn attempt(bytes: &[u8], what: &str) -> Result<(), String> {
    let file = tempfile::NamedTempFile::new().expect("a temporary file can be made");
    std::fs::write(file.path(), bytes).expect("it can be written");
    let before = NOW.load(Relaxed);
    PEAK.store(before, Relaxed);
    let outcome = try_out(file.path());
    let peak = PEAK.load(Relaxed) - before;
    assert!(peak < MOST, "{what}: {peak} bytes for {outcome:?}");
    outcome
}

/// The file with the 32-bit value of a metadata key replaced.
fn with_key(mut bytes: Vec<u8>, key: &str, value: u32) -> Vec<u8> {
    let at = bytes.windows(key.len()).position(|window| window == key.as_bytes()).unwrap_or_else(|| panic!("no {key}"));
    let at = at + key.len() + 4; // behind the value's type
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
    bytes
}

#[test]
fn absurd_hyperparameters_are_an_error_that_names_them() {
    let _alone = ALONE.lock();
    let original = tiny_model::llama(TinyModel::default());
    attempt(&original, "the original").expect("it loads");
    for key in [
        "llama.block_count",
        "llama.attention.head_count",
        "llama.attention.head_count_kv",
        "llama.embedding_length",
        "llama.feed_forward_length",
        "llama.context_length",
    ] {
        for value in [0, 1 << 25, u32::MAX] {
            let error = attempt(&with_key(original.clone(), key, value), key).expect_err(key);
            assert!(error.contains(key), "{error}");
        }
    }
    // As large as is believed: other parts of the file contradict it, but nothing overflows and nothing is allocated for it.
    for (key, value) in [("llama.block_count", 1024), ("llama.attention.head_count_kv", 1024), ("llama.embedding_length", 1 << 17)] {
        attempt(&with_key(original.clone(), key, value), key).expect_err(key);
    }
    // A context of sixteen million tokens is cut to what the KV cache holds.
    attempt(&with_key(original, "llama.context_length", 1 << 24), "a long context").expect("it loads");
}

#[test]
fn a_thousand_cut_or_changed_files_are_an_error_or_a_model_that_runs() {
    let _alone = ALONE.lock();
    let original = tiny_model::llama(TinyModel { context: 128, ..TinyModel::default() });
    let header = original.windows(7).rposition(|window| window == b".weight").expect("tensors have names");
    let mut random = 0x0bad_5eed_u64;
    let mut next = |bound: usize| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) as usize % bound
    };
    let (mut refused, cases) = (0, if support::long() { 1000 } else { 150 });
    for case in 0..cases {
        let mut bytes = original.clone();
        match case % 5 {
            0 => bytes.truncate(next(original.len())),
            // Anywhere, so that weights become NaN and infinite.
            1 => (0..50).for_each(|_| bytes[next(original.len())] = 0xff),
            _ => {
                for _ in 0..=next(4) {
                    let at = next(header);
                    match next(4) {
                        0 => bytes[at] ^= 1 << next(8),
                        1 => bytes[at] = next(256) as u8,
                        2 => bytes[at..at + 8].copy_from_slice(&[[0xff; 8], [0; 8], (1u64 << 40).to_le_bytes()][next(3)]),
                        _ => {
                            let from = next(header);
                            bytes.copy_within(from..from + 16, at);
                        }
                    }
                }
            }
        }
        refused += usize::from(attempt(&bytes, &format!("case {case}")).is_err());
    }
    assert!(refused > cases / 4 && refused < cases, "{refused} of {cases} were refused");
}
