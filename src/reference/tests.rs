use super::*;

#[test]
fn a_type_is_found_by_its_number_and_only_by_it() {
    for dtype in Dtype::ALL {
        assert_eq!(Dtype::from_ggml(dtype.ggml()), Some(dtype));
    }
    assert_eq!(Dtype::from_ggml(4), None);
    assert_eq!(Dtype::Q4K.row_bytes(512), 288);
}

#[test]
fn blocks_of_32_mean_what_their_format_says() {
    let one = half::f16::from_f32(1.0).to_le_bytes();
    let half = half::f16::from_f32(0.5).to_le_bytes();
    let nibbles: Vec<u8> = (0..16).map(|i| i | (15 - i) << 4).collect();
    let mut out = [0.0; 32];

    dequantize(Dtype::Q4_0, &[&half[..], &nibbles].concat(), &mut out);
    assert_eq!((out[0], out[15], out[16], out[31]), (-4.0, 3.5, 3.5, -4.0));

    dequantize(Dtype::Q4_1, &[&half[..], &one, &nibbles].concat(), &mut out);
    assert_eq!((out[0], out[15], out[16], out[31]), (1.0, 8.5, 8.5, 1.0));

    // The fifth bits of elements 0 and 31 only.
    dequantize(Dtype::Q5_0, &[&one[..], &[1, 0, 0, 0x80], &nibbles].concat(), &mut out);
    assert_eq!((out[0], out[15], out[16], out[31]), (0.0, -1.0, -1.0, 0.0));

    dequantize(Dtype::Q5_1, &[&one[..], &half, &[1, 0, 0, 0x80], &nibbles].concat(), &mut out);
    assert_eq!((out[0], out[15], out[16], out[31]), (16.5, 15.5, 15.5, 16.5));

    let levels: Vec<u8> = (0..32).map(|i| i * 8).collect();
    dequantize(Dtype::Q8_0, &[&half[..], &levels].concat(), &mut out);
    assert_eq!((out[0], out[1], out[15], out[16], out[31]), (0.0, 4.0, 60.0, -64.0, -4.0));
}

#[test]
fn blocks_of_256_mean_what_their_format_says() {
    let one = half::f16::from_f32(1.0).to_le_bytes();
    let mut out = [0.0; 256];

    // Sub-block 1: scale 3, minimum 2. Sub-block 5: scale 4 + 16, minimum 5 + 32.
    let mut scales = [0u8; 12];
    (scales[1], scales[5]) = (3 | 1 << 6, 2 | 2 << 6);
    scales[9] = 4 | 5 << 4;
    let levels: Vec<u8> = (0..128).map(|i| (i % 16) as u8 | 7 << 4).collect();
    dequantize(Dtype::Q4K, &[&one[..], &one, &scales, &levels].concat(), &mut out);
    assert_eq!((out[0], out[32], out[5 * 32]), (0.0, 3.0 * 7.0 - 2.0, 20.0 * 7.0 - 37.0));

    let fifth = [1u8 << 5; 32];
    dequantize(Dtype::Q5K, &[&one[..], &one, &scales, &fifth, &levels].concat(), &mut out);
    assert_eq!((out[32], out[5 * 32 + 9]), (3.0 * 7.0 - 2.0, 20.0 * 23.0 - 37.0));

    // Element 128 + 64 + 5: second half, third quarter, so a high nibble and the third pair of bits.
    let mut block = [0u8; 210];
    block[64 + 5] = 9 << 4;
    block[128 + 32 + 5] = 2 << 4;
    block[192 + 12] = (-3i8).cast_unsigned();
    block[208..].copy_from_slice(&one);
    dequantize(Dtype::Q6K, &block, &mut out);
    assert_eq!((out[197], out[198], out[0]), (-3.0 * 9.0, 96.0, 0.0));
}

#[test]
fn a_draw_at_top_p_zero_is_the_likeliest_token() {
    let draw = |temperature, top_p| Draw { temperature, top_k: 0, top_p, min_p: 0.0, seed: 7, choice: 0, position: 0 };
    assert_eq!(sample(&[0.0, 3.0, f32::NAN, 3.0], &draw(1.0, 0.0)), 1);
    assert_eq!(sample(&[0.0, 3.0, f32::NAN, 3.0], &draw(0.0, 1.0)), 1);
    assert_eq!(sample(&[f32::NAN; 4], &draw(1.0, 1.0)), 0);
    let logits = [0.0, 1.0, 0.9, 0.8];
    for position in 0..200 {
        assert!([1, 2].contains(&sample(&logits, &Draw { top_k: 2, position, ..draw(1.0, 1.0) })), "top-k");
        assert!(sample(&logits, &Draw { min_p: 0.5, position, ..draw(1.0, 1.0) }) > 0, "min-p");
    }
}

#[test]
fn draws_follow_the_softmax() {
    let logits = [1.0, 0.0, 2.0];
    let mut counts = [0u32; 3];
    for position in 0..20_000 {
        counts[sample(&logits, &Draw { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed: 42, choice: 0, position }) as usize] += 1;
    }
    for (count, p) in counts.iter().zip(softmax(&logits)) {
        assert!((f64::from(*count) / 20_000.0 - f64::from(p)).abs() < 0.015, "{counts:?}");
    }
}
