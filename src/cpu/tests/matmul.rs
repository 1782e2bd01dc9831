#![expect(clippy::unwrap_used, reason = "tests")]

use super::*;
use crate::cpu::Scratch;
use crate::reference;
use proptest::prelude::*;

/// `x` as the kernels see it for weights of `dtype`: rounded to 127 levels a block. Written independently of them.
fn quantized(dtype: Dtype, x: &[f32]) -> Vec<f32> {
    let block = dtype.block_elements();
    if block == 1 {
        return x.to_vec();
    }
    let round = |x: &[f32]| {
        let top = x.iter().fold(0f32, |top, x| top.max(x.abs()));
        let inverse = if top > 0.0 { 127.0 / top } else { 0.0 };
        x.iter().map(|x| (x * inverse).round_ties_even() * (top / 127.0)).collect::<Vec<_>>()
    };
    x.chunks_exact(block).flat_map(round).collect()
}

fn product(device: &Device, x: &[f32], weight: &Matrix) -> Vec<f32> {
    let mut out = vec![f32::NAN; x.len() / weight.columns() * weight.rows()];
    device.turn().matmul(x, weight, &mut Scratch::new(), &mut out);
    out
}

/// Columns that are whole blocks, an odd number of them.
fn columns(dtype: Dtype) -> usize {
    match dtype.block_elements() {
        1 => 77,
        32 => 32 * 5,
        _ => 256 * 3,
    }
}

#[test]
fn products_match_the_reference_for_every_type() {
    let mut random = Random(1);
    for dtype in Dtype::ALL {
        let columns = columns(dtype);
        let (weight, floats) = matrix(dtype, 53, columns, &mut random);
        let x = random.floats(6 * columns);
        let want = reference::matmul(&quantized(dtype, &x), &floats, columns);
        let magnitudes: Vec<f32> = floats.iter().map(|w| w.abs()).collect();
        let magnitude = reference::matmul(&x.iter().map(|x| x.abs()).collect::<Vec<_>>(), &magnitudes, columns);
        for device in devices() {
            for (i, (got, want)) in product(&device, &x, &weight).iter().zip(&want).enumerate() {
                let (isa, threads) = (device.isa_name(), device.threads());
                assert!((got - want).abs() <= 2e-6 * magnitude[i], "{dtype} {isa} {threads}: element {i} is {got} instead of {want}");
            }
        }
    }
}

#[test]
fn no_batch_size_thread_count_or_instruction_set_changes_a_bit() {
    let mut random = Random(2);
    for dtype in Dtype::ALL {
        let columns = columns(dtype);
        let (weight, _) = matrix(dtype, 40, columns, &mut random);
        let x = random.floats(512 * columns);
        let all = product(&device(Isa::Auto, 2), &x, &weight);
        for device in devices() {
            for m in [1, 2, 7, 8, 16, 33, 512] {
                // Rows from the start and, where they're others, from the end.
                for first in [0, 512 - m] {
                    let got = product(&device, &x[first * columns..][..m * columns], &weight);
                    let want = &all[first * 40..][..m * 40];
                    let (isa, threads) = (device.isa_name(), device.threads());
                    assert!(bits(&got) == bits(want), "{dtype} {isa}, {threads} threads: rows {first} + {m} differ");
                }
            }
        }
    }
}

#[test]
fn extreme_levels_do_not_saturate() {
    // Every level and every activation at its limit, in both signs: where 16-bit sums would overflow if they could.
    for dtype in [Dtype::Q4_0, Dtype::Q4_1, Dtype::Q5_0, Dtype::Q5_1, Dtype::Q8_0, Dtype::Q4K, Dtype::Q5K, Dtype::Q6K] {
        for byte in [0x00, 0xff, 0x80, 0x7f] {
            let mut raw = vec![byte; dtype.row_bytes(256) * 3];
            let one = half::f16::from_f32(1.0).to_le_bytes();
            for block in raw.chunks_exact_mut(dtype.block_bytes()) {
                let at: &[usize] = match dtype {
                    Dtype::Q6K => &[208],
                    Dtype::Q4_0 | Dtype::Q5_0 | Dtype::Q8_0 => &[0],
                    _ => &[0, 2],
                };
                for &at in at {
                    block[at..at + 2].copy_from_slice(&one);
                }
            }
            let mut floats = vec![0.0; 3 * 256];
            reference::dequantize(dtype, &raw, &mut floats);
            let weight = Matrix::pack(dtype, 3, 256, &raw, None).unwrap();
            for sign in [1.0, -1.0] {
                // 127 makes the scale 1, so the products are integers and exact.
                let want = reference::matmul(&[127.0 * sign; 256], &floats, 256);
                for device in devices() {
                    assert_eq!(product(&device, &[127.0 * sign; 256], &weight), want, "{dtype} {byte:#x} {sign} {}", device.isa_name());
                }
            }
        }
    }
}

#[test]
fn rows_are_packed_in_the_order_asked_for_and_read_back_exactly() {
    let mut random = Random(3);
    for dtype in Dtype::ALL {
        let columns = columns(dtype);
        let raw = random.weights(dtype, 19 * columns);
        let mut floats = vec![0.0; 19 * columns];
        reference::dequantize(dtype, &raw, &mut floats);
        let table = Matrix::pack(dtype, 19, columns, &raw, Some(&|row| (row * 7 + 3) % 19)).unwrap();
        let mut out = vec![f32::NAN; 3 * columns];
        device(Isa::Auto, 2).turn().embed(&table, &[0, 18, 5], &mut out);
        for (out, row) in out.chunks_exact(columns).zip([3, (18 * 7 + 3) % 19, (5 * 7 + 3) % 19]) {
            assert!(bits(out) == bits(&floats[row * columns..][..columns]), "{dtype}");
        }
    }
}

#[test]
fn a_matrix_of_the_wrong_size_is_refused_in_words() {
    let error = Matrix::pack(Dtype::Q4_1, 2, 64, &[0; 79], None).err().unwrap();
    assert_eq!(error.to_string(), "a q4_1 matrix of 2 x 64 can't be made from 79 bytes: it has 80");
    let error = Matrix::pack(Dtype::Q4K, 2, 576, &[0; 648], None).err().unwrap();
    assert_eq!(error.to_string(), "a q4_k matrix of 2 x 576 can't be made from 648 bytes: rows must be whole blocks of 256");
}

#[test]
fn zeros_tiny_values_and_padding_rows_give_zeros() {
    let mut random = Random(4);
    for dtype in Dtype::ALL {
        let columns = columns(dtype);
        let (weight, _) = matrix(dtype, 17, columns, &mut random);
        for x in [0.0, -0.0, 1e-38] {
            let got = product(&device(Isa::Auto, 2), &vec![x; 2 * columns], &weight);
            assert_close(&got, &[0.0; 34], 1e-30);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn ragged_shapes_give_the_portable_bits(seed in any::<u64>(), kind in 0..11usize, rows in 1..70usize, blocks in 1..4usize, m in 1..12usize) {
        let dtype = Dtype::ALL[kind];
        let mut random = Random(seed);
        let (weight, _) = matrix(dtype, rows, blocks * dtype.block_elements(), &mut random);
        let x = random.floats(m * weight.columns());
        let want = product(&device(Isa::Portable, 1), &x, &weight);
        prop_assert_eq!(bits(&product(&device(Isa::Auto, 2), &x, &weight)), bits(&want));
    }
}
