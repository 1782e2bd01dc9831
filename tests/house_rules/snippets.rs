//! Small bad snippets, so that no rule silently stops matching, and good ones that only look bad.

use super::rules;
use super::source::Source;

fn broken(path: &str, text: &str) -> Vec<String> {
    rules::source(&Source::new(path, text))
}

#[track_caller]
fn breaks(path: &str, text: &str, line: usize, word: &str) {
    let broken = broken(path, text);
    let place = format!("{path}:{line}: ");
    assert!(broken.iter().any(|it| it.starts_with(&place) && it.contains(word)), "{text}\nshould break {place}{word}, but {broken:?}");
}

#[track_caller]
fn holds(path: &str, text: &str) {
    let broken = broken(path, text);
    assert!(broken.is_empty(), "{text}\n{broken:?}");
}

#[test]
fn an_import_upward_is_found_in_every_form() {
    for text in [
        "use crate::gateway::Stack;",
        "use crate::{config::Name, gateway::{stack::Stack, *}};",
        "pub(crate) use crate::gateway as edge;",
        "fn f() { crate::gateway::start(); }",
        "fn f(x: Vec<crate::gateway::Stack>) {}",
        "fn f() { if true { use crate::gateway::start; } }",
        "macro_rules! m { () => { $crate::gateway::start() } }",
        "use super::super::gateway::Stack;",
        "#[cfg(test)] mod tests { use super::super::super::gateway::Stack; }",
        "type Edge = crate::gateway::Stack;",
        "use crate::r#gateway::Stack;",
    ] {
        breaks("src/engine/scheduler.rs", text, 1, "upward");
    }
    breaks("src/engine/mod.rs", "\nuse super::gateway::Stack;", 2, "upward");
    breaks("src/call.rs", "\n\nuse super::backend::Backend;", 3, "sideways");
}

#[test]
fn an_alias_of_the_crate_does_not_hide_an_import() {
    breaks("src/engine/plan.rs", "use crate as root;\nuse root::gateway::Stack;", 1, "whole crate");
    breaks("src/engine/plan.rs", "use crate as root;\nfn f() { root::gateway::start() }", 2, "upward");
    breaks("src/engine/plan.rs", "use crate::{self as root};", 1, "whole crate");
    breaks("src/engine/plan.rs", "use crate::*;", 1, "whole crate");
    breaks("src/call.rs", "use super::*;", 1, "whole crate");
    breaks("src/engine/plan.rs", "use super::super as root;\nfn f() { root::gateway::start() }", 2, "upward");
    breaks("src/engine/plan.rs", "extern crate self as root;", 1, "another name");
    breaks("src/engine/plan.rs", "#[path = \"../gateway/stack.rs\"] mod stack;", 1, "its path");
    breaks("src/engine/plan.rs", "include!(\"../gateway/stack.rs\");", 1, "its path");
    breaks("src/lib.rs", "pub mod gateway;\npub use gateway::Stack;", 2, "only lists");
    breaks("src/engine/plan.rs", "use crate::Stack;", 1, "no room");
    breaks("src/engine/plan.rs", "use crate::tiny_model::gguf;", 1, "no room");
    holds("src/engine/tests.rs", "use crate::tiny_model::gguf;");
    holds("src/lib.rs", "#[cfg(test)]\n#[path = \"../tests/support/tiny_model.rs\"]\nmod tiny_model;");
}

#[test]
fn an_import_sideways_is_found_and_an_ordered_one_is_allowed() {
    breaks("src/engine/mod.rs", "use crate::cpu::Device;", 1, "sideways");
    breaks("src/tenant/keys.rs", "use crate::shard::Handle;", 1, "sideways");
    breaks("src/config/mod.rs", "use crate::call::Call;", 1, "sideways");
    breaks("src/roundhouse/mod.rs", "use crate::cli::main;", 1, "sideways");
    holds("src/call.rs", "use crate::config::Name; use crate::clock::Clock;");
    holds("src/cli/mod.rs", "use crate::roundhouse; fn f() { roundhouse::serve() }");
    holds("src/main.rs", "fn main() { roundhouse::cli::main() }");
}

#[test]
fn what_only_looks_like_an_import_is_none() {
    holds(
        "src/engine/mod.rs",
        "//! See [`crate::gateway`].\n/* use crate::gateway; /* nested */ use crate::cpu; */\nconst S: &str = \"use crate::gateway::Stack;\";",
    );
    holds("src/engine/mod.rs", "const S: &str = r#\"\" crate::gateway::x \"#; const C: char = '\"'; fn f<'a>(x: &'a str) {}");
    holds(
        "src/engine/plan.rs",
        "use super::executor::Executor; use self::inner::X; mod inner { pub(crate) struct X; use super::super::Plan; }",
    );
    holds("src/engine/plan.rs", "mod tests { use super::*; }");
    holds("src/engine/mod.rs", "fn f(x: &u8) -> impl Iterator<Item = u8> + use<'_> { gateway::x() }");
    holds("src/gateway/stack.rs", "use crate::{call::{Call, Reply}, layer::trace, config as c}; fn f() -> c::Name { loop {} }");
}

#[test]
fn a_long_file_is_found_and_tests_and_tables_are_apart() {
    let lines = |count: usize| "fn f() {}\n".repeat(count);
    breaks("src/engine/plan.rs", &lines(501), 501, "at most 500");
    holds("src/engine/plan.rs", &lines(500));
    breaks("src/engine/mod.rs", &lines(101), 101, "at most 100");
    holds("src/engine/tests.rs", &lines(900));
    let table = format!("const TABLE: [u8; 3] = [\n{}];\n", "1,\n".repeat(300));
    let tests = format!("#[cfg(test)]\nmod tests {{\n{}}}\n", lines(300));
    holds("src/engine/plan.rs", &format!("{}{table}{tests}", lines(490)));
    breaks("src/engine/plan.rs", &format!("{}{table}{tests}", lines(501)), 501, "at most 500");
}

#[test]
fn a_long_function_is_found_unless_it_is_a_models_forward() {
    let function =
        |signature: &str, lines: usize| format!("impl X {{\n    fn {signature} {{\n{}    }}\n}}\n", "        f();\n".repeat(lines - 2));
    holds("src/model/llama.rs", &function("step()", 80));
    breaks("src/model/llama.rs", &function("step()", 81), 2, "`step` has 81 lines");
    holds("src/model/llama.rs", &function("forward()", 130));
    breaks("src/model/llama.rs", &function("forward()", 131), 2, "`forward` has 131 lines");
    let typed = "fn layer() -> impl Layer<S, Service = Self> + use<'_> {}\n";
    holds("src/layer/meter.rs", &format!("{typed}{}", "fn f() {}\n".repeat(100)));
    let generic = "fn tile<const N: usize>(x: [u8; N]) {}\n#[cfg(test)]\nimpl<const N: usize> X<N> {}\n";
    holds("src/cpu/tile.rs", &format!("{generic}{}", "fn f() {}\n".repeat(100)));
    breaks("src/cpu/tile.rs", &function("tile<const N: usize>()", 81), 2, "`tile` has 81 lines");
    breaks("src/cpu/tile.rs", &function("t() -> u8 where X: Y<Z = u8>", 81), 2, "`t` has 81 lines");
    holds("src/model/llama.rs", &format!("struct S {{ f: fn(u8) }}\ntrait T {{ fn f(); }}\n{}", "const A: u8 = 1;\n".repeat(100)));
}

#[test]
fn what_belongs_to_one_place_is_found_everywhere_else() {
    for (path, text, word) in [
        ("src/engine/mod.rs", "#[cfg(feature = \"cuda\")] fn f() {}", "one build"),
        ("src/engine/mod.rs", "fn f() { if cfg!(all(unix, feature=\"x\")) {} }", "one build"),
        ("src/engine/mod.rs", "fn f() { unsafe { g() } }", "unsafe"),
        ("src/engine/mod.rs", "unsafe impl Send for X {}", "unsafe"),
        ("src/gateway/listener.rs", "fn f() { ServiceBuilder::new().layer(x); }", "stack.rs"),
        ("src/layer/limit.rs", "fn f() { builder\n.layer (x); }", "stack.rs"),
        ("src/layer/limit.rs", "fn f() { tower::Layer::layer(&x, y); }", "stack.rs"),
        ("src/gateway/translate.rs", "fn f() { http::StatusCode::OK; }", "respond.rs"),
        ("src/gateway/translate.rs", "use http::StatusCode as S; fn f() { S::from_u16(200); }", "respond.rs"),
        ("src/gateway/translate.rs", "type S = http::StatusCode; fn f() { S::OK; }", "respond.rs"),
        ("src/gateway/translate.rs", "fn f() { Response::builder().status(404); }", "respond.rs"),
        ("src/model/source.rs", "fn f() { std::env::var(\"X\"); }", "config/"),
        ("src/model/source.rs", "use std::env; fn f() { env::var_os(\"X\"); }", "config/"),
        ("src/model/source.rs", "use std::env::var as v; fn f() { v(\"X\"); }", "config/"),
        ("src/model/source.rs", "use std::{env as e}; fn f() { e::vars(); }", "config/"),
        ("src/model/source.rs", "use std::env::*;", "config/"),
    ] {
        let at = 1 + text.find('\n').map_or(0, |_| 1);
        breaks(path, text, at, word);
    }
}

#[test]
fn what_belongs_to_one_place_is_allowed_there_and_in_tests() {
    holds("src/cpu/avx2.rs", "unsafe fn f() {}");
    holds("src/gateway/stack.rs", "fn f() { ServiceBuilder::new().layer(x); }");
    holds("src/gateway/respond.rs", "fn f() { http::StatusCode::OK; }");
    holds("src/upstream/client.rs", "fn f() { http::StatusCode::OK; }");
    holds("src/config/environment.rs", "fn f() { std::env::var(\"X\"); }");
    holds("src/layer/limit.rs", "#[cfg(test)] mod tests { fn f() { x.layer(y); http::StatusCode::OK; } }");
    holds(
        "src/layer/limit.rs",
        "fn layer(x: u8) {} fn f(model: M) { model.layers(); layer(1); x.layer += 1; answer.status(); env!(\"X\"); }",
    );
    holds("src/model/llama.rs", "#[target_feature(enable = \"avx2\")] fn f() { std::env::args(); std::env::temp_dir(); }");
}

#[test]
fn a_feature_in_the_manifest_is_found() {
    assert_eq!(rules::manifest("[package]\n[features]\n"), ["Cargo.toml:2: there is one build, so there are no features"]);
    assert!(rules::manifest("[dependencies]\nx = { features = [] }\n").is_empty());
}

#[test]
fn a_kernel_without_a_row_or_a_parity_test_is_found() {
    let kernels = ["kernels/rms_norm.cu".to_owned()];
    let (row, test) = ("| `rms_norm` | x |\n", "fn rms_norm_has_parity_with_its_reference() {\n");
    assert!(rules::kernels(&kernels, row, test).is_empty());
    assert!(rules::kernels(&kernels, "`rms_norm` without a table", test)[0].contains("no row"));
    assert!(rules::kernels(&kernels, row, "fn rms_norm_runs() {\n")[0].contains("no parity test"));
}
