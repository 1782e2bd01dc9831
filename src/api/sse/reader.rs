//! Server-sent events of other servers, read as <https://html.spec.whatwg.org/multipage/server-sent-events.html> says.

/// Puts the bytes of a stream together to events, however they were cut. Holds one event at most.
#[derive(Debug)]
pub struct Reader {
    /// Most bytes of one event, its field names included.
    limit: usize,
    /// The line that hasn't ended.
    line: Vec<u8>,
    /// The `data` lines of the event that hasn't ended, each with a line feed at its end.
    data: Vec<u8>,
    /// Bytes of the event that hasn't ended.
    read: usize,
    /// The last byte was a carriage return: a line feed that follows belongs to it.
    after_return: bool,
    /// No line has ended, so that it may begin with a byte order mark.
    at_start: bool,
}

/// An event is longer than may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an event has more than {limit} bytes")]
pub struct TooLong {
    /// Bytes that an event may have.
    pub limit: usize,
}

const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

// === impl Reader ===

impl Reader {
    /// A reader of a new stream, whose events have at most `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self { limit, line: Vec::new(), data: Vec::new(), read: 0, after_return: false, at_start: true }
    }

    /// Reads more of the stream; `event` gets the data of each event that ends in it. Comments, events without data and
    /// other fields say nothing.
    ///
    /// # Errors
    /// An event is too long, as soon as it is; or that of `event`.
    pub fn read<E: From<TooLong>>(&mut self, mut bytes: &[u8], mut event: impl FnMut(&[u8]) -> Result<(), E>) -> Result<(), E> {
        while let Some(first) = bytes.first() {
            if std::mem::take(&mut self.after_return) && *first == b'\n' {
                bytes = &bytes[1..];
                continue;
            }
            let Some(end) = bytes.iter().position(|byte| matches!(byte, b'\n' | b'\r')) else {
                self.count(bytes.len())?;
                self.line.extend_from_slice(bytes);
                break;
            };
            self.count(end)?;
            self.after_return = bytes[end] == b'\r';
            // Most lines come whole and aren't copied twice.
            if self.line.is_empty() {
                self.end_line(&bytes[..end], &mut event)?;
            } else {
                let mut line = std::mem::take(&mut self.line);
                line.extend_from_slice(&bytes[..end]);
                self.end_line(&line, &mut event)?;
                line.clear();
                self.line = line;
            }
            bytes = &bytes[end + 1..];
        }
        Ok(())
    }

    fn count(&mut self, bytes: usize) -> Result<(), TooLong> {
        self.read += bytes;
        if self.read > self.limit { Err(TooLong { limit: self.limit }) } else { Ok(()) }
    }

    fn end_line<E>(&mut self, mut line: &[u8], event: &mut impl FnMut(&[u8]) -> Result<(), E>) -> Result<(), E> {
        if std::mem::take(&mut self.at_start) {
            line = line.strip_prefix(BYTE_ORDER_MARK).unwrap_or(line);
        }
        if line.is_empty() {
            self.read = 0;
            let result = match self.data.split_last() {
                Some((_, data)) => event(data),
                None => Ok(()),
            };
            self.data.clear();
            return result;
        }
        let (field, value) = match line.iter().position(|byte| *byte == b':') {
            Some(0) => {
                self.read -= line.len().min(self.read); // comments are kept nowhere, so they may go on for ever
                return Ok(());
            }
            Some(colon) => (&line[..colon], &line[colon + 1..]),
            None => (line, &[][..]),
        };
        if field == b"data" {
            self.data.extend_from_slice(value.strip_prefix(b" ").unwrap_or(value));
            self.data.push(b'\n');
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test may stop at a surprise")]

    use super::*;
    use proptest::prelude::*;

    fn read_in<'a>(pieces: impl IntoIterator<Item = &'a [u8]>, limit: usize) -> Result<Vec<String>, TooLong> {
        let (mut reader, mut events) = (Reader::new(limit), Vec::new());
        for piece in pieces {
            reader.read(piece, |data| {
                events.push(String::from_utf8(data.to_vec()).unwrap());
                Ok::<_, TooLong>(())
            })?;
        }
        Ok(events)
    }

    fn read(stream: &str) -> Vec<String> {
        read_in([stream.as_bytes()], 1 << 20).unwrap()
    }

    #[test]
    fn lines_end_with_a_line_feed_a_carriage_return_or_both() {
        for stream in ["data: a\n\ndata: b\n\n", "data: a\r\n\r\ndata: b\r\n\r\n", "data: a\r\rdata: b\r\r", "data: a\r\n\ndata: b\n\r\n"] {
            assert_eq!(read(stream), ["a", "b"], "{stream:?}");
        }
    }

    #[test]
    fn one_space_after_the_colon_is_no_part_of_the_data() {
        assert_eq!(read("data:a\n\ndata: b\n\ndata:  c\n\ndata: x:y\n\n"), ["a", "b", " c", "x:y"]);
    }

    #[test]
    fn several_data_lines_are_one_event() {
        assert_eq!(read("data: {\ndata:  \"a\": 1\ndata: }\n\n"), ["{\n \"a\": 1\n}"]);
        // A line without a colon is a field with an empty value.
        assert_eq!(read("data\ndata\n\n"), ["\n"]);
    }

    #[test]
    fn comments_other_fields_and_events_without_data_say_nothing() {
        assert_eq!(read(": ping\n\nevent: x\nid: 7\nretry: 3\n\n:\ndata: a\nevent: y\n\ndataset: no\n\n"), ["a"]);
    }

    #[test]
    fn a_byte_order_mark_at_the_beginning_is_skipped() {
        assert_eq!(read("\u{feff}data: a\n\n\u{feff}data: b\n\n"), ["a"]);
    }

    #[test]
    fn an_event_that_does_not_end_is_none() {
        assert_eq!(read("data: a\n\ndata: b\n"), ["a"]);
        assert_eq!(read("data: a\n\ndata: b"), ["a"]);
    }

    #[test]
    fn a_line_or_an_event_that_is_too_long_ends_the_stream_before_it_is_kept() {
        let long = "x".repeat(60);
        assert_eq!(read_in([format!("data: {long}\n\n").as_bytes()], 66).unwrap(), std::slice::from_ref(&long));
        assert_eq!(read_in([format!("data: {long}\n\n").as_bytes()], 65), Err(TooLong { limit: 65 }));
        let pieces = vec![b"0123456789".as_slice(); 7];
        assert_eq!(read_in(pieces, 65), Err(TooLong { limit: 65 }));
        assert_eq!(read_in(vec![b"data: 1\n".as_slice(); 10], 65), Err(TooLong { limit: 65 }));
        // Comments between events, or within one, are kept nowhere.
        assert_eq!(read_in(vec![b": keep-alive\n".as_slice(); 100], 65).unwrap(), Vec::<String>::new());
    }

    proptest! {
        #[test]
        fn however_a_stream_is_cut_it_has_the_same_events(
            events in prop::collection::vec(prop::collection::vec("[ -~äöü€]{0,12}", 1..3), 0..6),
            ending in prop::sample::select(vec!["\n", "\r\n", "\r"]),
            cuts in prop::collection::vec(0_usize..400, 0..12),
        ) {
            let mut stream = String::new();
            for lines in &events {
                for line in lines {
                    stream.push_str(&format!("data: {line}{ending}: note{ending}"));
                }
                stream.push_str(ending);
            }
            let mut cuts: Vec<_> = cuts.into_iter().map(|cut| cut.min(stream.len())).collect();
            cuts.extend([0, stream.len()]);
            cuts.sort_unstable();
            let pieces: Vec<_> = cuts.windows(2).map(|pair| &stream.as_bytes()[pair[0]..pair[1]]).collect();
            let expected: Vec<_> = events.iter().map(|lines| lines.join("\n")).collect();
            prop_assert_eq!(read_in(pieces, 1 << 20).unwrap(), expected);
        }

        #[test]
        fn whatever_the_bytes_are_no_more_than_the_limit_is_kept(pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..20)) {
            let mut reader = Reader::new(64);
            for piece in pieces {
                if reader.read(&piece, |data| { assert!(data.len() <= 64); Ok::<_, TooLong>(()) }).is_err() {
                    break;
                }
                prop_assert!(reader.line.len() + reader.data.len() <= 2 * 64);
            }
        }
    }
}
