//! The deltas of what isn't text, joined to what an answer in one piece says.

use serde_json::{Map, Value};

/// Fields that say which thing or what kind of thing, instead of more of it.
const NAMING: [&str; 3] = ["index", "id", "type"];

/// Adds a delta: to a text more text, to an object more of its fields, to a list's element with the same `index` more of
/// that; anything else takes the place of what was there.
pub(super) fn join(whole: &mut Map<String, Value>, delta: Map<String, Value>) {
    for (name, more) in delta {
        match whole.get_mut(&name) {
            None => _ = whole.insert(name, more),
            Some(before) if NAMING.contains(&name.as_str()) => {
                if more.as_str() != Some("") && !more.is_null() {
                    *before = more;
                }
            }
            Some(before) => add(before, more),
        }
    }
}

fn add(before: &mut Value, more: Value) {
    match (before, more) {
        (_, Value::Null) => {}
        (Value::String(text), Value::String(more)) => text.push_str(&more),
        (Value::Object(whole), Value::Object(delta)) => join(whole, delta),
        (Value::Array(whole), Value::Array(deltas)) => deltas.into_iter().for_each(|delta| element(whole, delta)),
        (before, more) => *before = more,
    }
}

fn element(whole: &mut Vec<Value>, delta: Value) {
    let index = delta.get("index").cloned();
    match index.and_then(|index| whole.iter_mut().find(|element| element.get("index") == Some(&index))) {
        Some(element) => add(element, delta),
        None => whole.push(delta),
    }
}

/// Takes out what only told deltas apart: in a whole answer the place in the list is the index.
pub(super) fn finish(whole: &mut Map<String, Value>) {
    let Some(Value::Array(calls)) = whole.get_mut("tool_calls") else { return };
    calls.sort_by_key(|call| call.get("index").and_then(Value::as_u64));
    for call in calls {
        if let Value::Object(call) = call {
            call.shift_remove("index");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn joined(deltas: &[Value]) -> Value {
        let mut whole = Map::new();
        for delta in deltas {
            join(&mut whole, delta.as_object().cloned().unwrap_or_default());
        }
        finish(&mut whole);
        whole.into()
    }

    #[test]
    fn calls_of_tools_are_joined_by_their_index() {
        let call = |index: u32, id: &str, name: &str, arguments: &str| json!({"tool_calls": [{"index": index, "id": id, "type": "function", "function": {"name": name, "arguments": arguments}}]});
        let more = |index: u32, arguments: &str| json!({"tool_calls": [{"index": index, "function": {"arguments": arguments}}]});
        let deltas = [
            call(1, "b", "time", ""),
            call(0, "a", "weather", "{"),
            more(0, "\"city\":"),
            more(1, "{}"),
            more(0, "1}"),
            call(1, "", "", ""),
        ];
        let expected = json!({"tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "weather", "arguments": "{\"city\":1}"}},
            {"id": "b", "type": "function", "function": {"name": "time", "arguments": "{}"}},
        ]});
        assert_eq!(joined(&deltas), expected);
    }

    #[test]
    fn texts_grow_and_nothing_takes_nothing_away() {
        let deltas = [json!({"reasoning": "a", "n": 1}), json!({"reasoning": null}), json!({"reasoning": "b", "n": 2})];
        assert_eq!(joined(&deltas), json!({"reasoning": "ab", "n": 2}));
    }
}
