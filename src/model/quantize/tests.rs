#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use super::*;
use crate::model::gguf::Gguf;
use crate::tiny_model::{self, TinyModel};
use proptest::prelude::*;

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn floats(dtype: Dtype, data: &[u8]) -> Vec<f32> {
    let mut values = vec![0.0; data.len() / dtype.block_bytes() * dtype.block_elements()];
    dequantize(dtype, data, &mut values);
    values
}

#[test]
fn the_formulas_are_ggmls() {
    let mut x = [0f32; 32];
    x[0] = -127.0;
    x[1] = 63.5;
    x[17] = 2.4;
    let q8 = quantize(Dtype::F32, &bytes(&x), 32, Dtype::Q8_0).unwrap();
    assert_eq!(q8[..4], [0x00, 0x3c, 0x81, 64]); // d = 1.0, −127, 63.5 away from zero
    assert_eq!(q8[2 + 17], 2);
    x[0] = 8.0;
    x[1] = -8.0;
    let q4 = quantize(Dtype::F32, &bytes(&x), 32, Dtype::Q4_0).unwrap();
    assert_eq!(q4[..2], [0x00, 0xbc]); // the first of the extremes decides: d = −1
    assert_eq!(q4[2..5], [0x80, 0x6f, 0x88]); // 8 → 0 and x[16] = 0 → 8; −8 → 16, cut to 15, and 2.4 → 6; 0 → 8
    assert_eq!(quantize(Dtype::F32, &[0; 128], 32, Dtype::Q4_0).unwrap(), [&[0, 0x80][..], &[0x88; 16]].concat());
}

#[test]
fn what_does_not_fit_is_an_error() {
    let quantize = |from, data: &[u8], columns, to| quantize(from, data, columns, to).unwrap_err().to_string();
    assert!(quantize(Dtype::F32, &[0; 64], 16, Dtype::Q8_0).contains("rows of 16 elements aren't whole blocks of q8_0"));
    assert!(quantize(Dtype::F32, &[0; 127], 32, Dtype::F16).contains("127 bytes"));
    assert!(quantize(Dtype::F32, &[], 0, Dtype::F16).contains("rows of 0"));
    assert!(quantize(Dtype::F32, &[0; 1024], 256, Dtype::Q4K).contains("can't be requantized to q4_k"));
}

#[test]
fn vectors_and_odd_rows_stay_as_they_are() {
    assert_eq!(stored(Quantize::Q8_0, Dtype::F32, &[576]), Dtype::F32);
    assert_eq!(stored(Quantize::Q8_0, Dtype::Q4_1, &[10, 576]), Dtype::Q8_0);
    assert_eq!(stored(Quantize::Q4_0, Dtype::F16, &[10, 40]), Dtype::F16);
    assert_eq!(stored(Quantize::F16, Dtype::F32, &[10, 3]), Dtype::F16);
    assert_eq!(stored(Quantize::Keep, Dtype::Q6K, &[10, 256]), Dtype::Q6K);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_requantized_value_is_off_by_at_most_half_a_step(x in prop::collection::vec(-100f32..100.0, 64)) {
        // A step is d, whose 11 bits err by up to 0.07 steps at level 127; Q4_0's far side may be cut by one more half step.
        for (to, step) in [(Dtype::F32, 0.0), (Dtype::F16, 0.07), (Dtype::BF16, 0.51), (Dtype::Q8_0, 0.57), (Dtype::Q4_0, 1.06)] {
            let block = to.block_elements().max(1);
            let back = floats(to, &quantize(Dtype::F32, &bytes(&x), 64, to).unwrap());
            for (x, back) in x.chunks(block).zip(back.chunks(block)) {
                let most = x.iter().fold(0f32, |most, x| most.max(x.abs()));
                let size = match to {
                    Dtype::Q8_0 => most / 127.0,
                    Dtype::Q4_0 => most / 8.0,
                    _ => most / 128.0,
                };
                for (x, back) in x.iter().zip(back) {
                    prop_assert!((x - back).abs() <= step * size, "{to}: {x} became {back}");
                }
            }
        }
    }

    #[test]
    fn what_a_type_can_store_is_stored_unchanged(levels in prop::collection::vec(-127i32..=127, 32)) {
        let mut levels = levels;
        levels[5] = 127;
        let x: Vec<f32> = levels.iter().map(|level| *level as f32 * 0.25).collect();
        for to in [Dtype::F32, Dtype::F16, Dtype::BF16, Dtype::Q8_0] {
            prop_assert_eq!(&floats(to, &quantize(Dtype::F32, &bytes(&x), 32, to).unwrap()), &x);
        }
    }
}

#[test]
fn a_requantized_file_has_the_same_metadata_and_its_tensors_in_the_new_type() {
    let folder = tempfile::tempdir().unwrap();
    let source = tiny_model::file(TinyModel { dtype: "q4_k", layers: 1, output: true, ..TinyModel::default() });
    let gguf = Gguf::open(&source).unwrap();
    for (to, dtype, id) in [
        (Quantize::F32, Dtype::F32, 0),
        (Quantize::F16, Dtype::F16, 1),
        (Quantize::BF16, Dtype::BF16, 32),
        (Quantize::Q8_0, Dtype::Q8_0, 7),
        (Quantize::Q4_0, Dtype::Q4_0, 2),
    ] {
        let path = folder.path().join("out.gguf");
        write(&gguf, to, &path).unwrap();
        let written = Gguf::open(&path).unwrap();
        assert_eq!(written.u64("general.file_type").unwrap(), Some(id));
        let records = |gguf: &Gguf| {
            gguf.records().filter(|(key, _)| *key != "general.file_type").map(|(_, record)| record.to_vec()).collect::<Vec<_>>()
        };
        assert_eq!(records(&written), records(&gguf));
        assert_eq!(written.tensors().count(), gguf.tensors().count());
        for (new, old) in written.tensors().zip(gguf.tensors()) {
            assert_eq!((new.name, &new.shape), (old.name, &old.shape));
            assert_eq!(new.dtype, if old.shape.len() == 1 { old.dtype } else { dtype });
            assert_eq!(new.data, quantize(old.dtype, old.data, *old.shape.last().unwrap(), new.dtype).unwrap());
        }
    }
    write(&gguf, Quantize::Keep, &folder.path().join("kept.gguf")).unwrap();
    assert_eq!(std::fs::read(folder.path().join("kept.gguf")).unwrap(), std::fs::read(&source).unwrap());
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2, "no unfinished file stays");
    assert!(write(&gguf, Quantize::F16, &folder.path().join("no/such/folder.gguf")).is_err());
}
