//! Redis and Postgres servers of one test: on sockets in folders of their own, stopped when dropped.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;

/// A Redis server.
pub(crate) struct Redis {
    folder: TempDir,
    /// Whether what it counted outlives it.
    keeps: bool,
    child: Option<Child>,
}

/// A Postgres server.
pub(crate) struct Postgres {
    folder: TempDir,
    child: Option<Child>,
}

/// A user that isn't root: Postgres refuses to run as root.
#[derive(Clone, Copy)]
struct User {
    id: u32,
    group: u32,
}

// === impl Redis ===

impl Redis {
    /// One that forgets everything when it stops.
    pub(crate) fn start() -> Self {
        Self::with(false)
    }

    /// One that finds everything again when it starts again.
    pub(crate) fn keeping() -> Self {
        Self::with(true)
    }

    fn with(keeps: bool) -> Self {
        let mut redis = Self { folder: folder(), keeps, child: None };
        redis.start_again();
        redis
    }

    /// Its URL, the same for all its lives.
    pub(crate) fn url(&self) -> String {
        format!("redis+unix://{}", self.folder.path().join("redis.sock").display())
    }

    /// Kills it.
    pub(crate) fn stop(&mut self) {
        stop(&mut self.child, "KILL");
    }

    /// Starts it again after [`stop`](Self::stop).
    pub(crate) fn start_again(&mut self) {
        let mut command = Command::new("redis-server");
        command.args(["--port", "0", "--save", "", "--appendfsync", "always", "--appendonly", if self.keeps { "yes" } else { "no" }]);
        command.arg("--dir").arg(self.folder.path()).arg("--unixsocket").arg(self.folder.path().join("redis.sock"));
        let mut child = spawn(command.stdout(Stdio::piped()).stderr(Stdio::null()));
        let out = child.stdout.take().expect("its output is piped");
        await_line(out, "eady to accept connections");
        self.child = Some(child);
    }

    /// Holds it, so that it takes connections and answers nobody, or lets it go on.
    pub(crate) fn hold(&self, hold: bool) {
        signal(self.child.as_ref().expect("it runs"), if hold { "STOP" } else { "CONT" });
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        self.stop();
    }
}

// === impl Postgres ===

impl Postgres {
    /// One with an empty database.
    pub(crate) fn start() -> Self {
        let folder = folder();
        let user = user();
        if let Some(user) = user {
            chown(folder.path(), Some(user.id), Some(user.group)).expect("a folder can be given away");
        }
        let data = folder.path().join("data");
        let mut init = Command::new(program("initdb"));
        init.args(["--no-sync", "--auth", "trust", "--username", "roundhouse", "--encoding", "UTF8", "--pgdata"]).arg(&data);
        let made = as_user(&mut init, user).current_dir(folder.path()).output().expect("initdb runs");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let mut command = Command::new(program("postgres"));
        command.arg("-D").arg(&data).arg("-k").arg(folder.path()).args(["-h", "", "-c", "fsync=off"]);
        as_user(&mut command, user).current_dir(folder.path());
        let mut child = spawn(command.stdout(Stdio::null()).stderr(Stdio::piped()));
        let out = child.stderr.take().expect("its log is piped");
        await_line(out, "ready to accept connections");
        Self { folder, child: Some(child) }
    }

    /// The URL of its database.
    pub(crate) fn url(&self) -> String {
        format!("postgres:///postgres?host={}&user=roundhouse", self.folder.path().display())
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        stop(&mut self.child, "QUIT");
    }
}

fn folder() -> TempDir {
    tempfile::tempdir().expect("a temporary folder can be made")
}

/// Whom to run Postgres as; `None` where this process isn't root.
fn user() -> Option<User> {
    let number = |arguments: &[&str]| {
        let out = Command::new("id").args(arguments).output().expect("there is an id command");
        String::from_utf8_lossy(&out.stdout).trim().parse::<u32>().ok()
    };
    if number(&["-u"]) != Some(0) {
        return None;
    }
    let named = |name: &str| Some(User { id: number(&["-u", name])?, group: number(&["-g", name])? });
    Some(named("postgres").or_else(|| named("nobody")).expect("there is a user that isn't root"))
}

fn as_user(command: &mut Command, user: Option<User>) -> &mut Command {
    match user {
        Some(user) => command.uid(user.id).gid(user.group),
        None => command,
    }
}

/// A program of Postgres's, which Debian keeps out of the path.
fn program(name: &str) -> PathBuf {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let found = versions.map(|version| version.path().join("bin").join(name)).filter(|file| file.exists()).max();
    found.unwrap_or_else(|| Path::new(name).to_owned())
}

fn spawn(command: &mut Command) -> Child {
    command.stdin(Stdio::null()).spawn().unwrap_or_else(|error| panic!("{error}: {command:?}; tests/run installs what is missing"))
}

/// Waits until a server says so, and reads on, so that it never waits for somebody to listen.
fn await_line(out: impl Read + Send + 'static, text: &str) {
    let mut lines = BufReader::new(out).lines();
    let mut said = Vec::new();
    loop {
        match lines.next() {
            Some(Ok(line)) if line.contains(text) => break,
            Some(Ok(line)) => said.push(line),
            _ => panic!("it doesn't start: {said:?}"),
        }
    }
    std::thread::spawn(move || lines.for_each(drop));
}

fn signal(child: &Child, name: &str) {
    let sent = Command::new("kill").args(["-s", name, &child.id().to_string()]).status().expect("there is a kill command");
    assert!(sent.success());
}

fn stop(child: &mut Option<Child>, name: &str) {
    if let Some(mut child) = child.take() {
        signal(&child, name);
        child.wait().expect("it ends");
    }
}
