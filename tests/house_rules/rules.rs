//! The rules themselves.

use super::source::{Kind, Source};

/// Rooms by floor. Rooms of one list may not know each other; on the first and the last floor the order counts.
const FLOORS: [&[&str]; 9] = [
    &["clock", "config", "metrics", "outbound", "call", "backend"],
    &["reference", "text", "api"],
    &["engine", "cpu", "cuda"],
    &["model"],
    &["shard", "upstream", "tenant"],
    &["layer", "route"],
    &["gateway"],
    &["admin"],
    &["roundhouse", "cli", "main"],
];
const ORDERED: [usize; 2] = [0, 8];

/// What unit tests and the tests of `tests/` share; declared in `lib.rs` and for tests only.
const TEST_SUPPORT: [&str; 2] = ["services", "tiny_model"];

const FILE_LINES: usize = 500;
const MOD_LINES: usize = 100;
const FUNCTION_LINES: usize = 80;
/// A model's `forward` reads like its paper, in one piece.
const FORWARD_LINES: usize = 130;

/// A room's floor, and its place among the rooms of that floor.
fn floor(room: &str) -> Option<(usize, usize)> {
    FLOORS.iter().enumerate().find_map(|(floor, rooms)| Some((floor, rooms.iter().position(|name| *name == room)?)))
}

/// Whether `lib.rs` may declare this module.
pub(crate) fn is_known(module: &str) -> bool {
    floor(module).is_some() || TEST_SUPPORT.contains(&module)
}

/// What is wrong with a file of `src/`.
pub(crate) fn source(source: &Source) -> Vec<String> {
    let mut broken = Vec::new();
    let mut say = |line: usize, what: String| broken.push(format!("{}:{line}: {what}", source.path));
    imports(source, &mut say);
    sizes(source, &mut say);
    places(source, &mut say);
    broken
}

/// What is wrong with `Cargo.toml`.
pub(crate) fn manifest(text: &str) -> Vec<String> {
    let features = text.lines().enumerate().filter(|(_, line)| line.trim() == "[features]");
    features.map(|(line, _)| format!("Cargo.toml:{}: there is one build, so there are no features", line + 1)).collect()
}

/// Kernels without a row in their table or without a parity test.
pub(crate) fn kernels(kernels: &[String], readme: &str, tests: &str) -> Vec<String> {
    let mut broken = Vec::new();
    for kernel in kernels {
        let name = kernel.rsplit('/').next().unwrap_or(kernel).trim_end_matches(".cu");
        if !readme.lines().any(|line| line.starts_with('|') && line.contains(&format!("`{name}`"))) {
            broken.push(format!("{kernel}:1: `{name}` has no row in kernels/README.md"));
        }
        if !tests.lines().any(|line| line.trim_start().starts_with("fn ") && line.contains(name) && line.contains("parity")) {
            broken.push(format!("{kernel}:1: `{name}` has no parity test, a function with both words in its name"));
        }
    }
    broken
}

fn room(path: &str) -> &str {
    path.trim_start_matches("src/").split(['/', '.']).next().unwrap_or_default()
}

fn imports(source: &Source, say: &mut impl FnMut(usize, String)) {
    let own = room(&source.path);
    let tested = source.tested();
    for (at, token) in source.tokens.iter().enumerate() {
        if source.is(at, &["extern", "crate"]) {
            say(token.line, "`extern crate` gives the crate another name".to_owned());
        }
        if (source.is(at, &["#", "[", "path", "="]) || source.is(at, &["include", "!"])) && !tested(at) {
            say(token.line, "a file belongs to the module its path says".to_owned());
        }
        if own == "lib" && source.is(at, &["use"]) {
            say(token.line, "lib.rs only lists the rooms; a name at the root would have no floor".to_owned());
        }
    }
    if own == "lib" || own == "main" {
        return;
    }
    for named in source.paths() {
        if named.parts.first().is_none_or(|first| first != "crate") {
            continue;
        }
        match named.parts.get(1).map(String::as_str) {
            None | Some("*") => say(named.line, "import a room by its name, not the whole crate".to_owned()),
            Some(other) if other == own => {}
            Some(other) if TEST_SUPPORT.contains(&other) && tested(named.at) => {}
            Some(other) => match (floor(own), floor(other)) {
                (_, None) => say(named.line, format!("`crate::{other}` is no room with a floor")),
                (None, _) => say(named.line, format!("`{own}` is no room with a floor")),
                (Some(mine), Some(theirs)) if may_import(mine, theirs) => {}
                (Some((mine, _)), Some((theirs, _))) => {
                    let way = if theirs > mine { "upward" } else { "sideways" };
                    say(named.line, format!("`{own}` on floor {mine} imports {way} from `{other}` on floor {theirs}"));
                }
            },
        }
    }
}

fn may_import(mine: (usize, usize), theirs: (usize, usize)) -> bool {
    theirs.0 < mine.0 || theirs.0 == mine.0 && ORDERED.contains(&mine.0) && theirs.1 < mine.1
}

fn sizes(source: &Source, say: &mut impl FnMut(usize, String)) {
    let (lines, most) = match source.path.ends_with("/mod.rs") {
        true => (source.counted_lines(), MOD_LINES),
        false => (source.counted_lines(), FILE_LINES),
    };
    if lines > most && !source.is_test() {
        say(lines, format!("{lines} lines without tests and tables; at most {most}"));
    }
    for function in source.functions() {
        let most = if function.name == "forward" { FORWARD_LINES } else { FUNCTION_LINES };
        if function.lines > most {
            say(function.line, format!("`{}` has {} lines; at most {most}", function.name, function.lines));
        }
    }
}

/// What stays in the one place it belongs to.
fn places(source: &Source, say: &mut impl FnMut(usize, String)) {
    let within = |places: &[&str]| places.iter().any(|place| source.path.starts_with(place));
    let device = within(&["src/cpu", "src/cuda"]);
    let stack = within(&["src/gateway/stack.rs"]);
    let respond = within(&["src/gateway/respond"]);
    let reads_answers = within(&["src/upstream", "src/model/source"]);
    let config = within(&["src/config"]);
    let tested = source.tested();

    for (at, token) in source.tokens.iter().enumerate().filter(|(_, token)| token.kind == Kind::Word) {
        let after_dot = at > 0 && source.is(at - 1, &["."]);
        match token.text.as_str() {
            "feature" if source.is(at + 1, &["="]) => say(token.line, "there is one build, so no `cfg(feature)`".to_owned()),
            "unsafe" if !device => say(token.line, "`unsafe` stays in cpu/ and cuda/".to_owned()),
            "layer" if after_dot && !stack && !tested(at) && (source.is(at + 1, &["("]) || source.is(at + 1, &["::"])) => {
                say(token.line, "layers are put together in gateway/stack.rs".to_owned())
            }
            "status" if after_dot && !respond && !tested(at) && is_number(source, at + 2) => {
                say(token.line, "status codes are chosen in gateway/respond.rs".to_owned());
            }
            _ => {}
        }
    }
    for named in source.paths() {
        let has = |first: &str, second: &dyn Fn(&str) -> bool| named.parts.windows(2).any(|pair| pair[0] == first && second(&pair[1]));
        if has("StatusCode", &|_| true) && !respond && !reads_answers && !tested(named.at) {
            say(named.line, "status codes are chosen in gateway/respond.rs".to_owned());
        }
        if (has("Layer", &|it| it == "layer") || has("ServiceBuilder", &|it| it == "layer")) && !stack && !tested(named.at) {
            say(named.line, "layers are put together in gateway/stack.rs".to_owned());
        }
        let variable = |it: &str| it.starts_with("var") || it == "set_var" || it == "remove_var" || it == "*";
        if has("env", &variable) && !config {
            say(named.line, "environment variables are read in config/; make it a key".to_owned());
        }
    }
}

/// Whether a number literal is at `at`, behind an opening parenthesis.
fn is_number(source: &Source, at: usize) -> bool {
    let number =
        source.tokens.get(at).is_some_and(|token| token.kind == Kind::Literal && token.text.starts_with(|c: char| c.is_ascii_digit()));
    source.is(at - 1, &["("]) && number
}
