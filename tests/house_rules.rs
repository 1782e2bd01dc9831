//! The rules of the house, checked over `src/` and `kernels/`: who may import whom, how long a file may get, and what
//! stays in the one place it belongs to. Each break is told as path:line.

#[path = "house_rules/paths.rs"]
mod paths;
#[path = "house_rules/rules.rs"]
mod rules;
#[path = "house_rules/snippets.rs"]
mod snippets;
#[path = "house_rules/source.rs"]
mod source;

use source::Source;
use std::fs;
use std::path::{Path, PathBuf};

#[test]
fn the_house_keeps_its_rules() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut broken = Vec::new();
    for file in files(&root.join("src"), "rs") {
        let name = relative(root, &file);
        broken.extend(rules::source(&Source::new(&name, &read(&file))));
    }
    broken.extend(rules::manifest(&read(&root.join("Cargo.toml"))));
    let kernels: Vec<_> = files(&root.join("kernels"), "cu").iter().map(|file| relative(root, file)).collect();
    if !kernels.is_empty() {
        let tests: String = files(&root.join("tests"), "rs").iter().chain(&files(&root.join("src"), "rs")).map(|file| read(file)).collect();
        broken.extend(rules::kernels(&kernels, &read(&root.join("kernels/README.md")), &tests));
    }
    assert!(broken.is_empty(), "\n{}\n", broken.join("\n"));
}

#[test]
fn every_rule_has_files_to_look_at() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let files: Vec<_> = files(&root.join("src"), "rs").iter().map(|file| relative(root, file)).collect();
    for file in ["src/lib.rs", "src/main.rs", "src/call.rs", "src/config/mod.rs"] {
        assert!(files.iter().any(|found| found == file), "{file} isn't among {files:?}");
    }
    let declared = Source::new("src/lib.rs", &read(&root.join("src/lib.rs"))).modules();
    for room in declared {
        assert!(rules::is_known(&room), "src/lib.rs declares `{room}`, which has no floor in tests/house_rules/rules.rs");
    }
}

#[test]
fn every_symptom_of_the_table_has_its_test() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let code: String = files(&root.join("tests"), "rs").iter().chain(&files(&root.join("src"), "rs")).map(|file| read(file)).collect();
    let table = read(&root.join("tests/README.md"));
    let (_, table) = table.split_once("| reported to |").expect("tests/README.md has the table");
    let cells = table.lines().filter_map(|row| row.trim_end_matches(" |").rsplit_once("| "));
    let names: Vec<_> = cells.flat_map(|(_, cell)| cell.split('`').skip(1).step_by(2)).collect();
    assert!(names.len() > 30, "{names:?}");
    let missing: Vec<_> = names.iter().filter(|name| !code.contains(&format!("fn {name}("))).collect();
    assert!(missing.is_empty(), "tests/README.md names tests that there aren't: {missing:#?}");
}

/// All files below a folder with this ending, in order; none where there is no such folder.
fn files(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten() {
        let path = entry.expect("a folder can be listed").path();
        if path.is_dir() {
            found.extend(files(&path, ending));
        } else if path.extension().is_some_and(|extension| extension == ending) {
            found.push(path);
        }
    }
    found.sort();
    found
}

fn relative(root: &Path, file: &Path) -> String {
    file.strip_prefix(root).expect("the file is below the root").display().to_string().replace('\\', "/")
}

fn read(file: &Path) -> String {
    fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}
