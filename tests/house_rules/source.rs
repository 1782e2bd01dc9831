//! A Rust file as tokens: comments and what stands in strings is gone, lines are kept.

use std::ops::Range;

/// One token: a word, a mark, or a literal, whose text is only its first character.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Token {
    pub(crate) text: String,
    pub(crate) line: usize,
    pub(crate) kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Kind {
    Word,
    Mark,
    Literal,
}

/// A file.
pub(crate) struct Source {
    /// Its path from the repository's root, with slashes.
    pub(crate) path: String,
    pub(crate) tokens: Vec<Token>,
    pub(crate) lines: usize,
}

/// A function with its lines, signature and all.
pub(crate) struct Function {
    pub(crate) name: String,
    pub(crate) line: usize,
    pub(crate) lines: usize,
}

impl Source {
    pub(crate) fn new(path: &str, text: &str) -> Self {
        Self { path: path.to_owned(), tokens: tokens(text), lines: text.lines().count() }
    }

    /// Whether the tokens from `at` on are these words and marks.
    pub(crate) fn is(&self, at: usize, expected: &[&str]) -> bool {
        let found = self.tokens.get(at..at + expected.len());
        found.is_some_and(|found| found.iter().zip(expected).all(|(token, text)| token.kind != Kind::Literal && token.text == *text))
    }

    /// Whether the whole file is a test.
    pub(crate) fn is_test(&self) -> bool {
        self.path.ends_with("/tests.rs") || self.path.contains("/tests/")
    }

    /// Says of a token whether it belongs to a test.
    pub(crate) fn tested(&self) -> impl Fn(usize) -> bool {
        let (all, some) = (self.is_test(), self.tests());
        move |at| all || some.iter().any(|range| range.contains(&at))
    }

    /// The token ranges of items under `#[cfg(test)]`.
    fn tests(&self) -> Vec<Range<usize>> {
        let starts = (0..self.tokens.len()).filter(|at| self.is(*at, &["#", "[", "cfg", "(", "test", ")", "]"]));
        starts.map(|start| start..self.item_end(start + 7)).collect()
    }

    /// The modules it declares, `mod x;` or `mod x {`.
    pub(crate) fn modules(&self) -> Vec<String> {
        let declared = (0..self.tokens.len()).filter(|at| self.is(*at, &["mod"]));
        declared.filter_map(|at| self.tokens.get(at + 1)).map(|name| name.text.clone()).collect()
    }

    /// Lines that count for a file's size: tests and tables (`const` and `static` over several lines) don't.
    pub(crate) fn counted_lines(&self) -> usize {
        let tables = (0..self.tokens.len()).filter(|at| {
            (self.is(*at, &["const"]) || self.is(*at, &["static"])) && self.tokens.get(at + 2).is_some_and(|next| next.text == ":")
        });
        let tables = tables.map(|start| start..self.item_end(start));
        let mut apart: Vec<_> = self.tests().into_iter().chain(tables).map(|range| self.lines_of(&range)).collect();
        apart.sort_by_key(|lines| lines.start);
        let mut counted = self.lines;
        let mut from = 0;
        for lines in apart.into_iter().filter(|lines| lines.len() > 1) {
            counted -= lines.end.saturating_sub(lines.start.max(from));
            from = from.max(lines.end);
        }
        counted
    }

    pub(crate) fn functions(&self) -> Vec<Function> {
        let starts = (0..self.tokens.len()).filter(|at| self.is(*at, &["fn"]));
        // `fn(` is a type.
        let named = starts.filter(|at| self.tokens.get(at + 1).is_some_and(|name| name.kind == Kind::Word));
        let function = |at: usize| {
            let lines = self.lines_of(&(at..self.item_end(at)));
            Function { name: self.tokens[at + 1].text.clone(), line: lines.start, lines: lines.len() }
        };
        named.map(function).collect()
    }

    fn lines_of(&self, range: &Range<usize>) -> Range<usize> {
        let line = |at: usize| self.tokens.get(at).map_or(self.lines, |token| token.line);
        line(range.start)..line(range.end.saturating_sub(1)) + 1
    }

    /// The end of the item that starts at `start`, attributes and all: behind its `;` or the brace that closes it.
    fn item_end(&self, start: usize) -> usize {
        let mut depth = 0_usize;
        // The item's own keyword says whether it ends with its `;`, whatever braces it has; those in its generics don't.
        let mut until_semicolon = None;
        for (at, token) in self.tokens.iter().enumerate().skip(start) {
            if token.kind == Kind::Literal {
                continue;
            }
            match token.text.as_str() {
                "const" if self.is(at + 1, &["fn"]) || self.is(at + 1, &["unsafe"]) => {}
                "use" | "static" | "type" | "const" if depth == 0 => until_semicolon = until_semicolon.or(Some(true)),
                "fn" | "mod" | "struct" | "enum" | "trait" | "impl" if depth == 0 => until_semicolon = until_semicolon.or(Some(false)),
                "(" | "[" | "{" => depth += 1,
                ")" | "]" => depth = depth.saturating_sub(1),
                "}" => {
                    depth = depth.saturating_sub(1);
                    if depth == 0 && until_semicolon != Some(true) {
                        return at + 1;
                    }
                }
                ";" if depth == 0 => return at + 1,
                _ => {}
            }
        }
        self.tokens.len()
    }
}

fn tokens(text: &str) -> Vec<Token> {
    let mut tokens = Vec::new();
    let characters: Vec<char> = text.chars().collect();
    let (mut at, mut line) = (0, 1);
    while at < characters.len() {
        let start = at;
        let kind = match characters[at] {
            '/' if characters.get(at + 1) == Some(&'/') => {
                at = find(&characters, at, |rest| rest[0] == '\n');
                None
            }
            '/' if characters.get(at + 1) == Some(&'*') => {
                at = comment_end(&characters, at);
                None
            }
            space if space.is_whitespace() => {
                at += 1;
                None
            }
            first => {
                let (end, kind) = token_end(&characters, at, first);
                at = end;
                Some(kind)
            }
        };
        if let Some(kind) = kind {
            let text = match kind {
                Kind::Literal => characters[start].to_string(),
                _ => characters[start..at].iter().collect::<String>().trim_start_matches("r#").to_owned(),
            };
            tokens.push(Token { text, line, kind });
        }
        line += characters[start..at].iter().filter(|character| **character == '\n').count();
    }
    tokens
}

fn token_end(characters: &[char], at: usize, first: char) -> (usize, Kind) {
    let next = |offset: usize| characters.get(at + offset).copied().unwrap_or(' ');
    let word_end = |from: usize| find(characters, from, |rest| !(rest[0].is_alphanumeric() || rest[0] == '_'));
    match first {
        '"' => (string_end(characters, at), Kind::Literal),
        '\'' if next(1) == '\\' => (find(characters, at + 3, |rest| rest[0] == '\'') + 1, Kind::Literal),
        '\'' if next(2) == '\'' => (at + 3, Kind::Literal),
        '\'' => (word_end(at + 1), Kind::Literal), // a lifetime
        digit if digit.is_ascii_digit() => (word_end(at), Kind::Literal),
        letter if letter.is_alphabetic() || letter == '_' => {
            let end = word_end(at);
            let prefix: String = characters[at..end].iter().collect();
            let raw = find(characters, end, |rest| rest[0] != '#');
            let quoted = characters.get(raw) == Some(&'"');
            match prefix.as_str() {
                "r" | "br" | "cr" if quoted => (raw_string_end(characters, raw, raw - end), Kind::Literal),
                "b" | "c" if quoted && raw == end => (string_end(characters, end), Kind::Literal),
                "b" if characters.get(end) == Some(&'\'') => (token_end(characters, end, '\'').0, Kind::Literal),
                "r" if raw == end + 1 => (word_end(raw), Kind::Word),
                _ => (end, Kind::Word),
            }
        }
        ':' if next(1) == ':' => (at + 2, Kind::Mark),
        // So that `=` alone is an assignment.
        '=' if next(1) == '=' || next(1) == '>' => (at + 2, Kind::Mark),
        '<' | '>' | '!' if next(1) == '=' => (at + 2, Kind::Mark),
        _ => (at + 1, Kind::Mark),
    }
}

fn find(characters: &[char], from: usize, found: impl Fn(&[char]) -> bool) -> usize {
    (from..characters.len()).find(|at| found(&characters[*at..])).unwrap_or(characters.len())
}

fn comment_end(characters: &[char], from: usize) -> usize {
    let mut depth = 0;
    let mut at = from;
    while at < characters.len() {
        match characters[at..].get(..2) {
            Some(['/', '*']) => (depth, at) = (depth + 1, at + 2),
            Some(['*', '/']) => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            break;
        }
    }
    at
}

fn string_end(characters: &[char], from: usize) -> usize {
    let mut at = from + 1;
    while at < characters.len() && characters[at] != '"' {
        at += if characters[at] == '\\' { 2 } else { 1 };
    }
    (at + 1).min(characters.len())
}

fn raw_string_end(characters: &[char], quote: usize, hashes: usize) -> usize {
    let closes = |rest: &[char]| rest[0] == '"' && rest[1..].iter().take(hashes).filter(|hash| **hash == '#').count() == hashes;
    (find(characters, quote + 1, closes) + 1 + hashes).min(characters.len())
}
