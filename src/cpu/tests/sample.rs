use super::*;
use crate::cpu::{Draw, Scratch};
use crate::reference;
use proptest::prelude::*;

fn sampled(device: &Device, logits: &[f32], draws: &[Draw]) -> Vec<u32> {
    let mut out = vec![9; 3];
    device.turn().sample(logits, logits.len() / draws.len(), draws, &mut Scratch::new(), &mut out);
    out
}

fn draw(temperature: f32, top_p: f32, position: u32) -> Draw {
    Draw { temperature, top_k: 0, top_p, min_p: 0.0, seed: 11, choice: 2, position }
}

fn judged(draw: &Draw) -> reference::Draw {
    let Draw { temperature, top_k, top_p, min_p, seed, choice, position } = *draw;
    reference::Draw { temperature, top_k, top_p, min_p, seed, choice, position }
}

#[test]
fn draws_are_the_references_at_any_temperature_and_top_p() {
    let mut random = Random(10);
    let vocabulary = 1_003;
    for (temperature, top_p) in [(0.0, 1.0), (0.7, 0.9), (1.0, 1.0), (1.5, 0.5), (1.0, 0.0), (1e-30, 0.3), (50.0, 0.999)] {
        let logits: Vec<f32> = random.floats(60 * vocabulary).iter().map(|x| x * 8.0).collect();
        let draws: Vec<Draw> = (0..60).map(|position| draw(temperature, top_p, position)).collect();
        let want: Vec<u32> = logits.chunks_exact(vocabulary).zip(&draws).map(|(logits, d)| reference::sample(logits, &judged(d))).collect();
        for device in devices() {
            assert_eq!(sampled(&device, &logits, &draws), want, "temperature {temperature}, top_p {top_p}");
        }
    }
}

#[test]
fn a_draw_does_not_depend_on_its_batch() {
    let mut random = Random(11);
    let logits = random.floats(64 * 500);
    let draws: Vec<Draw> = (0..64).map(|position| draw(1.0, 0.95, position)).collect();
    let all = sampled(&device(Isa::Auto, 2), &logits, &draws);
    for i in 0..64 {
        assert_eq!(sampled(&device(Isa::Auto, 1), &logits[i * 500..][..500], &draws[i..=i]), all[i..=i]);
    }
}

#[test]
fn seeds_choices_and_positions_give_other_tokens() {
    let logits = vec![0.0; 1_000_000];
    let base = Draw { seed: 1, choice: 0, ..draw(1.0, 1.0, 0) };
    let draws = [base, Draw { seed: 2, ..base }, Draw { choice: 1, ..base }, Draw { position: 1, ..base }];
    let mut ids: Vec<u32> = draws.iter().flat_map(|&draw| sampled(&device(Isa::Auto, 1), &logits, &[draw])).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 4);
}

#[test]
fn equal_logits_keep_the_lower_ids() {
    // Four equal tokens, half of the mass: ids 0 and 1 only, and argmax is id 0.
    for position in 0..200 {
        assert!(sampled(&device(Isa::Auto, 1), &[1.0; 4], &[draw(1.0, 0.5, position)])[0] < 2);
    }
    assert_eq!(sampled(&device(Isa::Auto, 1), &[1.0; 4], &[draw(0.0, 1.0, 0)]), [0]);
}

#[test]
fn broken_logits_have_a_defined_answer() {
    let (nan, inf) = (f32::NAN, f32::INFINITY);
    for (temperature, top_p) in [(0.0, 1.0), (1.0, 1.0), (1.0, 0.5)] {
        let one = |logits: &[f32]| sampled(&device(Isa::Auto, 1), logits, &[draw(temperature, top_p, 3)])[0];
        assert_eq!(one(&[nan; 20]), 0);
        assert_eq!(one(&[-inf; 20]), 0);
        assert_eq!(one(&[nan, -inf, 0.0, nan, -inf]), 2);
        assert_eq!(one(&[nan, 0.0, inf, inf]), 2);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn any_draw_is_the_references(
        (seed, choice, position) in any::<(u64, u32, u32)>(),
        temperature in 0.05f32..3.0,
        top_k in prop_oneof![Just(0u32), 1..20u32, 1..400u32],
        top_p in prop_oneof![Just(1.0f32), 0.0f32..1.0],
        min_p in prop_oneof![Just(0.0f32), 0.0f32..1.0],
        len in 1..300usize,
    ) {
        let logits: Vec<f32> = Random(seed).floats(len).iter().map(|x| x * 10.0).collect();
        let draw = Draw { temperature, top_k, top_p, min_p, seed, choice, position };
        prop_assert_eq!(sampled(&device(Isa::Auto, 1), &logits, &[draw]), [reference::sample(&logits, &judged(&draw))]);
    }

    #[test]
    fn log_probabilities_are_the_references(seed: u64, len in 1..300usize, top in 0..25u32) {
        let logits: Vec<f32> = Random(seed).floats(len).iter().map(|x| (x * 10.0).round()).collect(); // many are equal
        let expected = reference::log_probabilities(&logits);
        let mut order: Vec<usize> = (0..len).collect();
        order.sort_by(|&a, &b| expected[b].total_cmp(&expected[a]).then(a.cmp(&b)));
        for device in devices() {
            let (logprob, likeliest) = device.turn().log_probabilities(&logits, (len / 2) as u32, top);
            prop_assert!((f64::from(logprob) - expected[len / 2]).abs() < 1e-4);
            prop_assert_eq!(likeliest.len(), len.min(top as usize));
            for ((id, logprob), expected_id) in likeliest.iter().zip(&order) {
                prop_assert_eq!(*id as usize, *expected_id);
                prop_assert!((f64::from(*logprob) - expected[*expected_id]).abs() < 1e-4);
            }
        }
    }
}
