use super::*;
use crate::cpu::RopeTable;
use crate::cpu::exp::exp;
use crate::reference;

/// Runs `operation` on every device; all must give the same bits, which are returned.
fn everywhere(operation: impl Fn(&Device) -> Vec<f32>) -> Vec<f32> {
    let all: Vec<Vec<f32>> = devices().iter().map(|device| operation(device)).collect();
    assert!(all.iter().all(|out| bits(out) == bits(&all[0])), "the instruction set or the threads change a bit");
    all.into_iter().next().expect("there is a device")
}

#[test]
fn exp_is_exact_to_the_last_bits_over_its_whole_range() {
    for i in -880_000..880_000 {
        let x = i as f32 / 10_000.0;
        let (got, want) = (f64::from(exp(x)), f64::from(x).exp());
        assert!((got - want).abs() <= 2e-7 * want || want < 1.3e-38, "exp({x}) = {got:e} instead of {want:e}");
    }
    assert_eq!([0.0, -1e9, f32::NEG_INFINITY, 1e9].map(exp), [1.0, 0.0, 0.0, f32::INFINITY]);
}

#[test]
fn rms_norm_matches_the_reference() {
    let mut random = Random(6);
    for (rows, width) in [(1, 576), (3, 7), (40, 1_001)] {
        let (x, weight) = (random.floats(rows * width), random.floats(width));
        let got = everywhere(|device| {
            let mut out = vec![f32::NAN; x.len()];
            device.turn().rms_norm(&x, &weight, 1e-5, &mut out);
            out
        });
        assert_close(&got, &reference::rms_norm(&x, &weight, 1e-5), 2e-6);
    }
}

#[test]
fn silu_mul_and_add_match_the_reference() {
    let mut random = Random(7);
    for len in [1, 1_536, 20_003] {
        let gate: Vec<f32> = random.floats(len).iter().map(|x| x * 30.0).collect();
        let up = random.floats(len);
        let got = everywhere(|device| {
            let mut gate = gate.clone();
            device.turn().silu_mul(&mut gate, &up);
            gate
        });
        assert_close(&got, &reference::silu_mul(&gate, &up), 1e-5);
        let got = everywhere(|device| {
            let mut x = gate.clone();
            device.turn().add(&mut x, &up);
            x
        });
        assert_close(&got, &gate.iter().zip(&up).map(|(a, b)| a + b).collect::<Vec<_>>(), 0.0);
    }
}

#[test]
fn rope_matches_the_reference_with_factors_and_partial_heads() {
    let mut random = Random(8);
    let positions = [0, 1, 17, 4_095, 2_048];
    let factors: Vec<f32> = (0..16).map(|i| 1.0 + i as f32).collect();
    for (rotated, head_dim, factors) in [(64, 64, None), (32, 64, Some(&factors[..])), (2, 6, None)] {
        let x = random.floats(positions.len() * 3 * head_dim);
        let table = RopeTable::new(rotated, 10_000.0, factors, 4_096);
        let got = everywhere(|device| {
            let mut x = x.clone();
            device.turn().rope(&mut x, 3, &positions, &table);
            x
        });
        let mut want = x.clone();
        reference::rope(&mut want, 3, &positions, rotated, 10_000.0, factors);
        assert_close(&got, &want, 1e-6);
    }
}

#[test]
fn empty_batches_do_nothing() {
    let (device, table) = (device(Isa::Auto, 2), RopeTable::new(4, 10_000.0, None, 8));
    let turn = device.turn();
    turn.rms_norm(&[], &[1.0; 4], 1e-5, &mut []);
    turn.add(&mut [], &[]);
    turn.silu_mul(&mut [], &[]);
    turn.rope(&mut [], 3, &[], &table);
    let (weight, _) = matrix(Dtype::Q8_0, 8, 32, &mut Random(9));
    turn.embed(&weight, &[], &mut []);
    turn.matmul(&[], &weight, &mut crate::cpu::Scratch::new(), &mut []);
}

#[test]
#[should_panic(expected = "embed: out is [1, 32]")]
fn a_wrong_shape_is_named() {
    let (weight, _) = matrix(Dtype::Q8_0, 8, 32, &mut Random(9));
    device(Isa::Auto, 1).turn().embed(&weight, &[0], &mut [0.0; 31]);
}
