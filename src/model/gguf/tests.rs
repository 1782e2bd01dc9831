#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use super::*;
use crate::tiny_model::{self, DTYPES, TinyModel};
use std::io::Write;

const SMALL: TinyModel = TinyModel {
    layers: 1,
    heads: 2,
    kv_heads: 1,
    embedding: 32,
    ff: 32,
    vocabulary: 0,
    context: 64,
    dtype: "q8_0",
    output: true,
    rope_factors: true,
    seed: 3,
};

fn open(bytes: &[u8]) -> Result<Gguf, GgufError> {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(bytes).unwrap();
    Gguf::open(file.path())
}

/// A file of these keys and tensor descriptions with `data` bytes behind them.
fn crafted(keys: &[&[u8]], tensors: &[&[u8]], data: usize) -> Vec<u8> {
    let mut bytes = b"GGUF\x03\0\0\0".to_vec();
    bytes.extend((tensors.len() as u64).to_le_bytes());
    bytes.extend((keys.len() as u64).to_le_bytes());
    bytes.extend(keys.concat());
    bytes.extend(tensors.concat());
    bytes.resize(bytes.len().next_multiple_of(32) + data, 0);
    bytes
}

fn string(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
}

fn key(name: &str, kind: u32, value: &[u8]) -> Vec<u8> {
    [&string(name)[..], &kind.to_le_bytes(), value].concat()
}

fn list(name: &str, kind: u32, count: u64, values: &[u8]) -> Vec<u8> {
    key(name, 9, &[&kind.to_le_bytes()[..], &count.to_le_bytes(), values].concat())
}

/// `shape` as in the file: innermost first.
fn tensor(name: &str, shape: &[u64], dtype: u32, offset: u64) -> Vec<u8> {
    let dimensions: Vec<u8> = shape.iter().flat_map(|length| length.to_le_bytes()).collect();
    [&string(name)[..], &(shape.len() as u32).to_le_bytes(), &dimensions, &dtype.to_le_bytes(), &offset.to_le_bytes()].concat()
}

fn message(bytes: &[u8]) -> String {
    open(bytes).map(drop).unwrap_err().to_string()
}

#[test]
fn every_element_type_is_read_as_it_was_written() {
    for dtype in DTYPES {
        let model = TinyModel { dtype, layers: 1, ..TinyModel::default() };
        let bytes = tiny_model::llama(model);
        let gguf = open(&bytes).unwrap();
        assert_eq!(gguf.architecture().unwrap(), "llama");
        let down = gguf.tensor("blk.0.ffn_down.weight").unwrap();
        assert_eq!((down.dtype.as_str(), down.shape.as_slice()), (dtype, &[256, 512][..]));
        assert_eq!(down.data.len(), 256 * down.dtype.row_bytes(512));
        let norm = gguf.tensor("output_norm.weight").unwrap();
        assert_eq!((norm.dtype, norm.shape.as_slice()), (Dtype::F32, &[256][..]));
        // The tensors lie behind each other up to the end of the file, apart from padding.
        let last = gguf.tensors().last().unwrap();
        assert!(bytes.len() - last.data.len() - (last.data.as_ptr() as usize - gguf.file.bytes().as_ptr() as usize) < 32);
        assert!(gguf.tensor("no.such.weight").is_none());
    }
}

#[test]
fn values_are_read_as_what_they_are_and_nothing_else() {
    let bytes = crafted(
        &[
            &key("u8", 0, &[200]),
            &key("i32", 5, &(-3i32).to_le_bytes()),
            &key("f64", 12, &0.5f64.to_le_bytes()),
            &key("yes", 7, &[1]),
            &key("text", 8, &string("héllo")),
            &key("bad", 8, &[1, 0, 0, 0, 0, 0, 0, 0, 0xff]),
            &list("texts", 8, 2, &[string("a"), string("")].concat()),
            &list("ints", 2, 2, &[1, 0, 0xff, 0xff]),
            &list("floats", 6, 1, &1.5f32.to_le_bytes()),
            &list("none", 8, 0, &[]),
        ],
        &[],
        0,
    );
    let gguf = open(&bytes).unwrap();
    assert_eq!(gguf.u64("u8").unwrap(), Some(200));
    assert_eq!(gguf.u64("missing").unwrap(), None);
    assert_eq!(gguf.f32("f64").unwrap(), Some(0.5));
    assert_eq!(gguf.bool("yes").unwrap(), Some(true));
    assert_eq!(gguf.str("text").unwrap(), Some("héllo"));
    assert_eq!(gguf.strings("texts").unwrap(), Some(vec!["a".to_owned(), String::new()]));
    assert_eq!(gguf.strings("none").unwrap(), Some(Vec::new()));
    assert_eq!(gguf.i32s("ints").unwrap(), Some(vec![1, 0xffff]));
    assert_eq!(gguf.f32s("floats").unwrap(), Some(vec![1.5]));
    for wrong in [gguf.u64("i32").map(drop), gguf.u64("text").map(drop), gguf.f32("u8").map(drop), gguf.str("bad").map(drop)] {
        assert!(matches!(wrong, Err(GgufError::Value { .. })));
    }
    assert!(gguf.strings("ints").is_err() && gguf.i32s("texts").is_err() && gguf.f32s("ints").is_err() && gguf.bool("u8").is_err());
    let message = gguf.f32("texts").unwrap_err().to_string();
    assert!(message.contains("`texts`") && message.contains("a list of 2 String") && message.contains("floating-point"), "{message}");
}

#[test]
fn what_is_no_gguf_file_is_named() {
    assert!(message(b"").contains("not a GGUF file"));
    assert!(message(b"<html>").contains("not a GGUF file"));
    assert!(message(b"GGUF").contains("the header at byte 4 needs 4 bytes"));
    assert!(message(b"GGUF\x01\0\0\0").contains("version 1"));
    assert!(message(b"GGUF\0\0\0\x03").contains("big-endian"));
    assert!(Gguf::open(Path::new("no/such/file.gguf")).unwrap_err().to_string().contains("no/such/file.gguf"));
}

#[test]
fn claims_beyond_the_file_are_refused_by_name_and_offset() {
    let huge = u64::MAX.to_le_bytes();
    assert!(message(&[&b"GGUF\x03\0\0\0"[..], &huge, &huge].concat()).contains("the number of tensors at byte 8"));
    let keys: [(&[u8], &str); 7] = [
        (&huge, "the key with number 0"),
        (&key("k", 8, &huge), "key `k`"),
        (&list("k", 8, u64::MAX, &[]), "key `k`"),
        (&list("k", 10, u64::MAX, &[]), "key `k`"),
        (&list("k", 9, 1, &[]), "list of lists"),
        (&key("k", 99, &[]), "unknown kind 99"),
        (&key("general.alignment", 4, &3u32.to_le_bytes()), "power of two"),
    ];
    for (record, expected) in keys {
        let message = message(&crafted(&[record], &[], 0));
        assert!(message.contains(expected), "{message}");
    }
    let tensors: [(&[u64], u32, u64, &str); 10] = [
        (&[4, 4], 0, 0, "tensor `t` at byte 96 needs 64 bytes, but the file has 63 left"),
        (&[8], 0, 1 << 40, "the file has 0 left"),
        (&[8], 0, u64::MAX - 31, "beyond any file"),
        (&[8], 0, 4, "no multiple of the alignment"),
        (&[u64::MAX, 2], 0, 0, "a dimension of 2"),
        (&[u64::MAX], 0, 0, "larger than any file"),
        (&[4, 0], 0, 0, "a dimension of 0"),
        (&[], 0, 0, "has 0 dimensions"),
        (&[16], 2, 0, "rows of 16 elements, which q4_0 can't store in blocks of 32"),
        (&[32], 23, 0, "stored as IQ4_XS (23), which isn't supported; supported are f32, f16, bf16"),
    ];
    for (shape, dtype, offset, expected) in tensors {
        let message = message(&crafted(&[], &[&tensor("t", shape, dtype, offset)], 63));
        assert!(message.contains("`t`") && message.contains(expected), "{message}");
    }
}

#[test]
fn the_same_name_or_the_same_bytes_twice_are_refused() {
    let (a, b) = (tensor("a", &[8], 0, 0), tensor("b", &[8], 0, 32));
    assert!(open(&crafted(&[], &[&a, &b], 64)).is_ok());
    assert!(message(&crafted(&[], &[&a, &a], 64)).contains("tensor `a` at byte 57 is there twice"));
    let overlapping = tensor("b", &[9], 0, 0);
    assert!(message(&crafted(&[], &[&a, &overlapping], 64)).contains("overlaps"));
    let key = key("k", 0, &[1]);
    assert!(message(&crafted(&[&key, &key], &[], 0)).contains("key `k`"));
}

#[test]
fn a_thousand_cut_or_changed_files_give_an_error_or_a_checked_file() {
    let original = tiny_model::llama(SMALL);
    let header = open(&original).unwrap().header.tensors[0].data.start;
    let mut random = 0x1234_5678_9abc_def0u64;
    let mut next = |bound: usize| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) as usize % bound
    };
    let mut refused = 0;
    for case in 0..1000 {
        let mut bytes = original.clone();
        if case % 4 == 0 {
            bytes.truncate(next(original.len()));
        } else {
            for _ in 0..=next(3) {
                let at = next(header - 8);
                match next(3) {
                    0 => bytes[at] ^= 1 << next(8),
                    1 => bytes[at] = next(256) as u8,
                    _ => bytes[at..at + 8].copy_from_slice(&[[0xff; 8], [0; 8], (1u64 << 40).to_le_bytes()][next(3)]),
                }
            }
        }
        match Header::parse(&bytes) {
            Err(error) => refused += usize::from(!error.to_string().is_empty()),
            Ok(header) => {
                let total: usize = header.tensors.iter().map(|record| record.data.len()).sum();
                assert!(total <= bytes.len() && header.metadata.iter().all(|entry| entry.value.end <= bytes.len()));
            }
        }
    }
    assert!(refused > 500, "{refused} of 1000 were refused");
}

#[test]
fn the_digest_is_the_contents() {
    let bytes = tiny_model::llama(SMALL);
    let gguf = open(&bytes).unwrap();
    assert_eq!(gguf.digest(), blake3::hash(&bytes).as_bytes()[..16]);
    let tensor = gguf.tensor("output.weight").unwrap();
    let before = tensor.data.to_vec();
    gguf.drop_pages(&tensor);
    assert_eq!(tensor.data, before);
}
