//! One JSON object of a request, taken apart field by field. Whatever is asked for knows its path, so whatever is wrong
//! with it can be named; what nobody asked for is unknown.

use crate::call::{Error, Extra};
use crate::config::UnknownParameters;
use serde_json::{Map, Value};
use std::ops::RangeInclusive;

/// The fields of one object that haven't been taken yet.
pub(super) struct Fields {
    map: Map<String, Value>,
    /// Where the object stands in the request; empty for the request itself.
    path: String,
    /// What was asked for, to suggest the nearest name for what wasn't.
    asked: Vec<&'static str>,
    /// Those that only some remote servers know.
    extras: Vec<Extra>,
}

// === impl Fields ===

impl Fields {
    pub(super) fn of(value: Value, path: String) -> Result<Self, Error> {
        match value {
            Value::Object(map) => Ok(Self { map, path, asked: Vec::with_capacity(32), extras: Vec::new() }),
            other if path.is_empty() => {
                Err(Error::Invalid { param: None, message: format!("The body must be a JSON object, but it is {}.", shown(&other)) })
            }
            other => Err(wrong_type(path, "an object", &other)),
        }
    }

    /// The full path of a field of this object.
    pub(super) fn path(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }

    /// The field's value; `null` is the same as none.
    pub(super) fn take(&mut self, name: &'static str) -> Option<Value> {
        self.asked.push(name);
        self.map.remove(name).filter(|value| !value.is_null())
    }

    /// Takes a field that must be there.
    pub(super) fn need(&mut self, name: &'static str) -> Result<Value, Error> {
        self.take(name).ok_or_else(|| invalid(self.path(name), format!("Missing required parameter: '{}'.", self.path(name))))
    }

    pub(super) fn string(&mut self, name: &'static str) -> Result<Option<String>, Error> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(wrong_type(self.path(name), "a string", &other)),
        }
    }

    pub(super) fn need_string(&mut self, name: &'static str) -> Result<String, Error> {
        match self.need(name)? {
            Value::String(text) => Ok(text),
            other => Err(wrong_type(self.path(name), "a string", &other)),
        }
    }

    pub(super) fn boolean(&mut self, name: &'static str) -> Result<bool, Error> {
        match self.take(name) {
            None => Ok(false),
            Some(Value::Bool(value)) => Ok(value),
            Some(other) => Err(wrong_type(self.path(name), "true or false", &other)),
        }
    }

    pub(super) fn integer(&mut self, name: &'static str, range: RangeInclusive<i64>) -> Result<Option<i64>, Error> {
        self.take(name).map(|value| integer(&self.path(name), &value, range)).transpose()
    }

    pub(super) fn number(&mut self, name: &'static str, range: RangeInclusive<f64>) -> Result<Option<f64>, Error> {
        let Some(value) = self.take(name) else { return Ok(None) };
        let Some(number) = value.as_f64() else { return Err(wrong_type(self.path(name), "a number", &value)) };
        if !range.contains(&number) {
            let (path, low, high) = (self.path(name), range.start(), range.end());
            return Err(invalid(path.clone(), format!("Invalid value for '{path}': {number} isn't between {low} and {high}.")));
        }
        Ok(Some(number))
    }

    pub(super) fn object(&mut self, name: &'static str) -> Result<Option<Fields>, Error> {
        self.take(name).map(|value| Fields::of(value, self.path(name))).transpose()
    }

    /// Takes a field that is known and not built. A neutral value asks for nothing and passes.
    pub(super) fn not_built(&mut self, name: &'static str, neutral: fn(&Value) -> bool) -> Result<(), Error> {
        match self.take(name) {
            Some(value) if !neutral(&value) => Err(self.unsupported(name, &value)),
            _ => Ok(()),
        }
    }

    /// Takes a field that is known, not built here, and passed on to remote servers. True where it asks for something.
    pub(super) fn remote(&mut self, name: &'static str, neutral: fn(&Value) -> bool) -> bool {
        let Some(value) = self.take(name).filter(|value| !neutral(value)) else { return false };
        let refusal = self.unsupported(name, &value);
        self.extras.push(Extra { name: name.to_owned(), value: Some(value), known: true, refusal });
        true
    }

    fn unsupported(&self, name: &str, value: &Value) -> Error {
        let path = self.path(name);
        let message = format!("'{path}' with the value {} isn't supported here. Leave it out.", shown(value));
        Error::Unsupported { param: path, message }
    }

    /// Refuses what nobody asked for, unless it may be ignored.
    pub(super) fn finish(self, unknown: UnknownParameters) -> Result<(), Error> {
        match self.map.keys().next().filter(|_| unknown == UnknownParameters::Refuse) {
            Some(name) => Err(self.unknown(name)),
            None => Ok(()),
        }
    }

    /// What is left for remote servers: the fields that were taken for them, and those that nobody asked for.
    pub(super) fn rest(mut self) -> Vec<Extra> {
        let mut extras = std::mem::take(&mut self.extras);
        let unknown = std::mem::take(&mut self.map).into_iter().filter(|(_, value)| !value.is_null());
        extras.extend(unknown.map(|(name, value)| {
            let refusal = self.unknown(&name);
            Extra { name, value: Some(value), known: false, refusal }
        }));
        extras
    }

    fn unknown(&self, name: &str) -> Error {
        let path = self.path(name);
        let near = self.asked.iter().map(|asked| (strsim::damerau_levenshtein(name, asked), asked)).min();
        let message = match near.filter(|(distance, _)| *distance <= 2) {
            Some((_, asked)) => format!("Unknown parameter: '{path}'. Did you mean '{}'?", self.path(asked)),
            None => format!("Unknown parameter: '{path}'. Leave it out."),
        };
        Error::Unsupported { param: path, message }
    }
}

/// A JSON integer in `range`. 1.0 isn't one: whoever sends it computes lengths in floats and should know.
pub(super) fn integer(path: &str, value: &Value, range: RangeInclusive<i64>) -> Result<i64, Error> {
    if !value.is_i64() && !value.is_u64() {
        return Err(wrong_type(path.to_owned(), "an integer", value));
    }
    match value.as_i64().filter(|number| range.contains(number)) {
        Some(number) => Ok(number),
        None => {
            let message = format!("Invalid value for '{path}': {value} isn't between {} and {}.", range.start(), range.end());
            Err(invalid(path.to_owned(), message))
        }
    }
}

pub(super) fn invalid(path: String, message: String) -> Error {
    Error::Invalid { param: Some(path), message }
}

pub(super) fn wrong_type(path: String, expected: &str, found: &Value) -> Error {
    let message = format!("Invalid type for '{path}': expected {expected}, but got {} instead.", shown(found));
    invalid(path, message)
}

/// The kind of a value, never its content where that may be a prompt.
fn shown(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(_) | Value::Number(_) => value.to_string(),
        Value::String(_) => "a string".to_owned(),
        Value::Array(_) => "an array".to_owned(),
        Value::Object(_) => "an object".to_owned(),
    }
}
