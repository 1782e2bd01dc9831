//! Which paths a file names, in imports and elsewhere, with every alias put back to what it stands for.

use super::source::{Kind, Source};
use std::collections::HashMap;

/// A path that a file names.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Named {
    /// Its parts: from the crate's root and beginning with `crate`, or as written where it leads out of the crate.
    pub(crate) parts: Vec<String>,
    pub(crate) line: usize,
    /// The index of its first token.
    pub(crate) at: usize,
}

/// One leaf of a `use` tree, or a `type` alias.
struct Leaf {
    parts: Vec<String>,
    alias: Option<String>,
    line: usize,
    at: usize,
}

impl Source {
    /// Every path of at least two parts, and every import.
    pub(crate) fn paths(&self) -> Vec<Named> {
        let leaves = self.leaves();
        let aliases: HashMap<&str, &[String]> = leaves
            .iter()
            .filter_map(|leaf| Some((leaf.alias.as_deref().or(leaf.parts.last().map(String::as_str))?, leaf.parts.as_slice())))
            .collect();
        let imported = leaves.iter().map(|leaf| (leaf.parts.clone(), leaf.line, leaf.at));
        let named = imported.chain(self.expressions());
        named.map(|(parts, line, at)| Named { parts: self.absolute(at, expand(parts, &aliases)), line, at }).collect()
    }

    fn leaves(&self) -> Vec<Leaf> {
        let mut leaves = Vec::new();
        for at in 0..self.tokens.len() {
            if self.is_use(at) {
                self.tree(at + 1, Vec::new(), &mut leaves);
            } else if self.is(at, &["type"]) && self.is(at + 2, &["="]) {
                let parts = self.parts(at + 3);
                leaves.push(Leaf { parts, alias: Some(self.tokens[at + 1].text.clone()), line: self.tokens[at].line, at });
            }
        }
        leaves
    }

    /// Whether an import starts here; `use<…>` in a type captures lifetimes.
    fn is_use(&self, at: usize) -> bool {
        self.is(at, &["use"]) && !self.is(at + 1, &["<"])
    }

    /// Collects the leaves of the `use` tree at `at`; returns what follows it.
    fn tree(&self, mut at: usize, mut parts: Vec<String>, leaves: &mut Vec<Leaf>) -> usize {
        let start = at;
        let mut alias = None;
        while let Some(token) = self.tokens.get(at) {
            match token.text.as_str() {
                "::" => at += 1,
                "{" => {
                    at += 1;
                    while at < self.tokens.len() && !self.is(at, &["}"]) {
                        at = self.tree(at, parts.clone(), leaves);
                        at += usize::from(self.is(at, &[","]));
                    }
                    return at + 1;
                }
                "as" => {
                    alias = self.tokens.get(at + 1).map(|token| token.text.clone());
                    at += 2;
                }
                "self" if !parts.is_empty() => at += 1,
                text if token.kind == Kind::Word || text == "*" => {
                    parts.push(text.to_owned());
                    at += 1;
                }
                _ => break,
            }
        }
        let line = self.tokens.get(start).map_or(self.lines, |token| token.line);
        leaves.push(Leaf { parts, alias, line, at: start });
        at
    }

    /// Paths outside imports.
    fn expressions(&self) -> Vec<(Vec<String>, usize, usize)> {
        let mut found = Vec::new();
        let mut at = 0;
        while at < self.tokens.len() {
            if self.is_use(at) {
                while at < self.tokens.len() && !self.is(at, &[";"]) {
                    at += 1;
                }
            }
            let starts = at == 0 || !(self.is(at - 1, &["::"]) || self.is(at - 1, &["."]));
            let parts = if starts { self.parts(at) } else { Vec::new() };
            if parts.len() > 1 {
                found.push((parts, self.tokens[at].line, at));
            }
            at += 1;
        }
        found
    }

    fn parts(&self, mut at: usize) -> Vec<String> {
        let mut parts = Vec::new();
        at += usize::from(self.is(at, &["::"]));
        while let Some(token) = self.tokens.get(at).filter(|token| token.kind == Kind::Word) {
            parts.push(token.text.clone());
            if !self.is(at + 1, &["::"]) {
                break;
            }
            at += 2;
        }
        parts
    }

    /// The path from the crate's root, if it begins with `crate`, `self` or `super`.
    fn absolute(&self, at: usize, parts: Vec<String>) -> Vec<String> {
        let mut base = match parts.first().map(String::as_str) {
            Some("self" | "super") => self.module_at(at),
            _ => return parts,
        };
        let mut rest = parts.as_slice();
        while let Some((first, after)) = rest.split_first() {
            match first.as_str() {
                "self" => {}
                "super" => drop(base.pop()),
                _ => break,
            }
            rest = after;
        }
        std::iter::once("crate".to_owned()).chain(base).chain(rest.iter().cloned()).collect()
    }

    /// The module that the token belongs to: the file's, and those opened in it.
    fn module_at(&self, at: usize) -> Vec<String> {
        let file = self.path.trim_start_matches("src/").trim_end_matches(".rs");
        let mut module: Vec<String> = match file {
            "lib" | "main" => Vec::new(),
            _ => file.trim_end_matches("/mod").split('/').map(str::to_owned).collect(),
        };
        let mut opened = Vec::new();
        for index in 0..at {
            if self.is(index, &["{"]) {
                let name = index.checked_sub(2).filter(|before| self.is(*before, &["mod"])).map(|before| &self.tokens[before + 1].text);
                opened.push(name);
            } else if self.is(index, &["}"]) {
                opened.pop();
            }
        }
        module.extend(opened.into_iter().flatten().cloned());
        module
    }
}

/// A path with its first part replaced by what it was imported as, again and again.
fn expand(mut parts: Vec<String>, aliases: &HashMap<&str, &[String]>) -> Vec<String> {
    // An alias may stand for another; a handful is plenty, and a circle ends.
    for _ in 0..8 {
        let Some(stands_for) = parts.first().and_then(|first| aliases.get(first.as_str())) else { break };
        if stands_for.first() == parts.first() {
            break;
        }
        parts = stands_for.iter().cloned().chain(parts.into_iter().skip(1)).collect();
    }
    parts
}
