//! Python packages that tests use as clients, each set in a virtual environment of its own that later runs find again.

use std::path::PathBuf;
use std::process::Command;

/// The interpreter of an environment with these packages, `name==version` each.
pub(crate) fn with(packages: &[&str]) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(packages.join("+"));
    let (python, made) = (folder.join("bin/python"), folder.join("made"));
    if !made.exists() {
        run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&folder));
        run(Command::new(&python).args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]).args(packages));
        std::fs::write(&made, "").expect("the environment's folder can be written");
    }
    python
}

/// Runs a command that must succeed, and returns what it printed.
pub(crate) fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}\n{out}\n{err}");
    out.into_owned()
}
