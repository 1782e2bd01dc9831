//! `roundhouse check --explain`

use std::process::Command;

fn explain(request: &str, more: &[&str]) -> (bool, String) {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/config/ab.toml");
    let program = env!("CARGO_BIN_EXE_roundhouse");
    let output = Command::new(program).args(["check", "--config", file, "--explain", request]).args(more).output();
    let output = output.expect("the program starts");
    let text = if output.status.success() { output.stdout } else { output.stderr };
    (output.status.success(), String::from_utf8(text).expect("it prints text"))
}

#[test]
fn a_request_s_way_is_told_rule_by_rule() {
    let (good, text) = explain(r#"{"model": "default", "tenant": "search", "key": "ci", "prompt_tokens": 12}"#, &[]);
    assert!(good, "{text}");
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(
        lines[..4],
        [
            "model    smollm2-135m",
            "rule     long: doesn't match, its prompt_tokens is 12 and has to be above 1500",
            "rule     beta: doesn't match, its header.x-beta is not given and has to be brief",
            "rule     everyone: matches",
        ]
    );
    assert!(lines[4].ends_with(", by its key, experiment q4-vs-q8"), "{text}");
    assert!(lines[5].starts_with("backends smol-q"), "{text}");
    assert_eq!(lines[6..], ["fallback q4 on smol-q4", "fallback q8 on smol-q8"]);
}

#[test]
fn the_same_as_json() {
    let (good, text) = explain(r#"{"model": "smollm2-135m", "headers": {"X-Beta": "brief"}}"#, &["--json"]);
    assert!(good, "{text}");
    let explained: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!((&explained["rule"], &explained["sticky"]), (&"beta".into(), &"request".into()));
    assert_eq!(explained["variants"], serde_json::json!([{ "variant": "brief", "share": 1.0, "backends": ["smol-q4"] }]));
    assert_eq!(explained["rules"].as_array().map(Vec::len), Some(2), "what comes after it isn't looked at");
}

#[test]
fn what_is_wrong_with_the_request_is_named() {
    for (request, expected) in [
        (r#"{"model": "nope"}"#, "there is no model `nope`"),
        (r#"{"model": "default", "tenant": "nope"}"#, "there is no tenant `nope`"),
        (r#"{"model": "default", "tokens": 1}"#, "unknown field `tokens`"),
        (r#"{"model": "default", "endpoint": "models"}"#, "no variant answers `models`"),
        (r#"{"model": "default", "prompt_tokens": -1}"#, "invalid value"),
        ("model", "expected value"),
    ] {
        let (good, text) = explain(request, &[]);
        assert!(!good && text.contains(expected), "{request}: {text}");
    }
}
