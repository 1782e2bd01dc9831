//! Matrix products of the CPU device at decode (1 row), a batch of 16 and prefill (512 rows), in the shape of SmolLM2-135M's
//! feed-forward. `cargo bench --bench cpu_kernels`

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use roundhouse::config::{Device, Isa};
use roundhouse::cpu::{self, Matrix, Scratch};
use roundhouse::reference::Dtype;
use std::hint::black_box;

const ROWS: usize = 1536;
const COLUMNS: usize = 576;

/// Blocks with a scale of one and every other byte in use.
fn raw(dtype: Dtype) -> Vec<u8> {
    let block: Vec<u8> = match dtype {
        Dtype::Q8_0 => [0x00, 0x3c].into_iter().chain(0..32).collect(),
        Dtype::Q4_1 => [0x00, 0x3c, 0x00, 0x3c].into_iter().chain(0..16).collect(),
        other => panic!("no blocks of {other:?} here"),
    };
    block.repeat(ROWS * COLUMNS / dtype.block_elements())
}

fn products(criterion: &mut Criterion) {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let device = cpu::Device::new(&Device { threads, isa: Isa::Auto, memory: 1 << 30 }).expect("this machine has a CPU");
    let mut group = criterion.benchmark_group(format!("matmul {ROWS}x{COLUMNS}, {}, {threads} threads", device.isa_name()));
    for dtype in [Dtype::Q4_1, Dtype::Q8_0] {
        let weight = Matrix::pack(dtype, ROWS, COLUMNS, &raw(dtype), None).expect("the shape is whole blocks");
        for tokens in [1, 16, 512] {
            let x: Vec<f32> = (0..tokens * COLUMNS).map(|i| (i % 17) as f32 / 17.0 - 0.5).collect();
            let (mut scratch, mut out) = (Scratch::default(), vec![0.0; tokens * ROWS]);
            group.throughput(Throughput::Elements((2 * tokens * ROWS * COLUMNS) as u64));
            group.bench_function(BenchmarkId::new(dtype.as_str(), tokens), |bencher| {
                bencher.iter(|| device.turn().matmul(black_box(&x), &weight, &mut scratch, &mut out));
            });
        }
    }
    group.finish();
}

criterion_group!(benches, products);
criterion_main!(benches);
