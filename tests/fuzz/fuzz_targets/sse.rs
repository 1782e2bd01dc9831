//! Any bytes as an upstream's stream: what is read doesn't depend on how it is cut into pieces, and what is kept is bounded.

#![no_main]

use libfuzzer_sys::fuzz_target;
use roundhouse::api::sse::{Reader, TooLong};

fn read(pieces: &[&[u8]]) -> (Vec<Vec<u8>>, bool) {
    let (mut reader, mut events) = (Reader::new(64), Vec::new());
    for piece in pieces {
        let taken = reader.read(piece, |event| {
            assert!(event.len() <= 64);
            events.push(event.to_vec());
            Ok::<_, TooLong>(())
        });
        if taken.is_err() {
            return (events, true);
        }
    }
    (events, false)
}

fuzz_target!(|input: (&[u8], u8)| {
    let (bytes, size) = input;
    let whole = read(&[bytes]);
    let pieces: Vec<_> = bytes.chunks(usize::from(size).max(1)).collect();
    assert_eq!(read(&pieces), whole);
});
