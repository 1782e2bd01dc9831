//! Stop strings: an answer ends where one of them is complete, and nothing of it is shown.

/// Watches the text of one answer for its stop strings. Held back is only the longest suffix that begins a stop string.
/// The stop string that is complete first ends the answer; of several complete at once the one that began first. So the
/// result doesn't depend on how the text is cut.
#[derive(Clone, Debug)]
pub struct StopStrings {
    stops: Vec<Stop>,
    held: String,
    stopped: bool,
}

/// One stop string and how far the text matches it (Knuth, Morris, Pratt).
#[derive(Clone, Debug)]
struct Stop {
    bytes: Box<[u8]>,
    /// For each length of a match the length of the next shorter one.
    shorter: Box<[usize]>,
    /// Bytes at the text's end that begin the stop string.
    matched: usize,
}

// === impl StopStrings ===

impl StopStrings {
    /// Watches for `stops`; empty ones stop nothing.
    pub fn new(stops: &[String]) -> Self {
        let stops = stops.iter().filter(|stop| !stop.is_empty()).map(|stop| Stop::new(stop.as_bytes()));
        Self { stops: stops.collect(), held: String::new(), stopped: false }
    }

    /// Takes more text, appends to `out` what can be shown, and says whether a stop string has ended the answer. Text
    /// after that is ignored.
    pub fn push(&mut self, text: &str, out: &mut String) -> bool {
        if self.stopped {
            return true;
        }
        if self.stops.is_empty() {
            out.push_str(text);
            return false;
        }
        let before = self.held.len();
        self.held.push_str(text);
        for (at, byte) in text.bytes().enumerate() {
            let complete = self.stops.iter_mut().filter_map(|stop| stop.advance(byte).then_some(stop.bytes.len())).max();
            if let Some(len) = complete {
                out.push_str(&self.held[..before + at + 1 - len]);
                self.held.clear();
                self.stopped = true;
                return true;
            }
        }
        let kept = self.stops.iter().map(|stop| stop.matched).max().unwrap_or(0);
        out.extend(self.held.drain(..self.held.len() - kept));
        false
    }

    /// Ends the answer: what was held back is shown after all.
    pub fn finish(&mut self, out: &mut String) {
        out.push_str(&self.held);
        self.held.clear();
        self.stops.iter_mut().for_each(|stop| stop.matched = 0);
    }
}

// === impl Stop ===

impl Stop {
    fn new(bytes: &[u8]) -> Self {
        let mut stop = Self { bytes: bytes.into(), shorter: vec![0; bytes.len() + 1].into(), matched: 0 };
        for len in 2..=bytes.len() {
            stop.advance(bytes[len - 1]); // the stop string without its first byte, matched against itself
            stop.shorter[len] = stop.matched;
        }
        stop.matched = 0;
        stop
    }

    /// Takes one byte and says whether it completes the stop string.
    fn advance(&mut self, byte: u8) -> bool {
        while self.matched > 0 && self.bytes.get(self.matched) != Some(&byte) {
            self.matched = self.shorter[self.matched];
        }
        if self.bytes[self.matched] == byte {
            self.matched += 1;
        }
        self.matched == self.bytes.len()
    }
}

#[cfg(test)]
mod tests {
    use super::StopStrings;
    use proptest::prelude::*;

    fn run(stops: &[&str], pieces: &[&str]) -> (Vec<String>, bool) {
        let stops: Vec<_> = stops.iter().map(|&stop| stop.to_owned()).collect();
        let mut watch = StopStrings::new(&stops);
        let mut stopped = false;
        let mut shown = Vec::new();
        for piece in pieces {
            let mut out = String::new();
            stopped = watch.push(piece, &mut out);
            shown.push(out);
        }
        let mut out = String::new();
        watch.finish(&mut out);
        shown.push(out);
        (shown, stopped)
    }

    #[test]
    fn only_what_may_begin_a_stop_string_is_held_back() {
        assert_eq!(run(&["<end>"], &["a<", "e", "x<e", "nd", "y"]).0, ["a", "", "<ex", "", "<endy", ""]);
    }

    #[test]
    fn a_stop_string_over_token_borders_is_never_shown() {
        assert_eq!(run(&["STOP"], &["go S", "T", "OP on", "more"]), (vec!["go ".into(), "".into(), "".into(), "".into(), "".into()], true));
    }

    #[test]
    fn of_two_stop_strings_one_the_prefix_of_the_other_the_short_one_ends_the_answer() {
        assert_eq!(run(&["abc", "ab"], &["xa", "b", "c"]), (vec!["x".into(), "".into(), "".into(), "".into()], true));
    }

    #[test]
    fn a_stop_string_that_overlaps_itself_is_found() {
        assert_eq!(run(&["aab"], &["aaa", "ab"]), (vec!["a".into(), "a".into(), "".into()], true));
    }

    #[test]
    fn without_stop_strings_or_with_empty_ones_nothing_is_held_back() {
        assert_eq!(run(&[], &["a"]), (vec!["a".into(), "".into()], false));
        assert_eq!(run(&[""], &["a"]), (vec!["a".into(), "".into()], false));
    }

    #[test]
    fn characters_of_several_bytes_are_never_cut() {
        assert_eq!(run(&["漢字"], &["x漢", "語", "漢", "字"]).0.concat(), "x漢語");
        assert_eq!(run(&["é"], &["è", "ê"]).0, ["è", "ê", ""]);
    }

    /// Where the answer ends: the earliest end of a stop string, there the longest.
    fn end_of(text: &str, stops: &[String]) -> Option<usize> {
        let ends = (0..=text.len()).filter(|&end| text.is_char_boundary(end));
        let complete = |end: usize| stops.iter().filter(move |stop| text[..end].ends_with(stop.as_str())).map(|stop| stop.len()).max();
        ends.filter_map(|end| complete(end).map(|len| end - len)).next()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]
        #[test]
        fn what_is_shown_at_any_time_is_what_a_look_at_the_whole_text_allows(
            pieces in proptest::collection::vec("[abé]{0,4}", 0..12),
            stops in proptest::collection::vec("[abé]{1,5}", 0..4),
        ) {
            let mut watch = StopStrings::new(&stops);
            let (mut text, mut shown) = (String::new(), String::new());
            for piece in &pieces {
                text.push_str(piece);
                let stopped = watch.push(piece, &mut shown);
                if let Some(end) = end_of(&text, &stops) {
                    prop_assert!(stopped);
                    prop_assert_eq!(&shown, &text[..end]);
                } else {
                    prop_assert!(!stopped);
                    let held = (0..=text.len()).find(|&from| text.is_char_boundary(from)
                        && (from == text.len() || stops.iter().any(|stop| stop.starts_with(&text[from..])))).expect("the end");
                    prop_assert_eq!(&shown, &text[..held]);
                }
            }
            watch.finish(&mut shown);
            prop_assert_eq!(&shown, &text[..end_of(&text, &stops).unwrap_or(text.len())]);
        }
    }
}
