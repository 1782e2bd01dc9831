//! Text → [`Raw`], with every unknown key and every wrong value, not only the first.

use super::problem::{Finding, instead, join};
use super::raw::Raw;
use serde::Deserialize;
use std::collections::BTreeSet;
use std::ops::Range;
use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue};

/// What could be read of a file.
#[derive(Debug, Default)]
pub(super) struct Read {
    /// The file without what was wrong.
    pub(super) raw: Raw,
    /// What was wrong.
    pub(super) findings: Vec<Finding>,
    /// The paths of the values left out because they were wrong: these aren't missing.
    pub(super) broken: BTreeSet<String>,
}

/// Reads a file. serde stops at the first error, so that is taken out of the document and the rest read again.
pub(super) fn read(text: &str) -> Read {
    let (mut document, errors) = DeTable::parse_recoverable(text);
    let findings = errors.into_iter().map(|error| Finding {
        span: error.span().unwrap_or_default(),
        key: String::new(),
        message: format!("this isn't TOML: {}", error.message()),
    });
    let mut read = Read { findings: findings.collect(), ..Read::default() };
    if !read.findings.is_empty() {
        return read; // whatever follows a broken line may be misread
    }
    loop {
        let error = match Raw::deserialize(toml::Deserializer::from(document.clone())) {
            Ok(raw) => return Read { raw, ..read },
            Err(error) => error,
        };
        let span = error.span().unwrap_or_default();
        let taken = take_out(document.get_mut(), "", &span);
        let key = taken.clone().unwrap_or_default();
        read.findings.push(Finding { span, message: message(error.message()), key });
        match taken {
            Some(path) => read.broken.insert(path),
            None => return read, // nothing to take out, so reading again would end here again
        };
    }
}

/// serde's words in ours, with the nearest valid name for an unknown one.
fn message(serde: &str) -> String {
    let mut quoted = serde.split('`').skip(1).step_by(2);
    let kind = if serde.starts_with("unknown field") {
        "unknown key"
    } else if serde.starts_with("unknown variant") {
        "unknown value"
    } else {
        return serde.to_owned();
    };
    match quoted.next() {
        Some(given) => format!("{kind} `{given}`; {}", instead(given, quoted)),
        None => serde.to_owned(),
    }
}

/// Takes the entry out of the document whose key or value is at `span`, the innermost of several; returns its path.
fn take_out(table: &mut DeTable<'_>, path: &str, span: &Range<usize>) -> Option<String> {
    for (key, value) in table.iter_mut() {
        if let Some(found) = take_out_of_value(value, &join(path, key.get_ref()), span) {
            return Some(found);
        }
    }
    let holds = |value: &Spanned<DeValue<'_>>| value.span() == *span || item_at(value.get_ref(), span).is_some();
    let key = table.iter().find(|(key, value)| key.span() == *span || holds(value)).map(|(key, _)| key.clone())?;
    let (_, value) = table.remove_entry(&key)?;
    let item = item_at(value.get_ref(), span).map(|item| format!("[{item}]")).unwrap_or_default();
    Some(join(path, key.get_ref()) + &item)
}

fn take_out_of_value(value: &mut Spanned<DeValue<'_>>, path: &str, span: &Range<usize>) -> Option<String> {
    match value.get_mut() {
        DeValue::Table(table) => take_out(table, path, span),
        DeValue::Array(array) => {
            let mut items = array.iter_mut().enumerate();
            items.find_map(|(item, value)| take_out_of_value(value, &format!("{path}[{item}]"), span))
        }
        _ => None,
    }
}

/// The item of an array that is at `span`.
fn item_at(value: &DeValue<'_>, span: &Range<usize>) -> Option<usize> {
    let array: &DeArray<'_> = value.as_array()?;
    array.iter().position(|item| item.span() == *span)
}
