//! The real binary in a process of its own.

use super::tenants::Place;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::process::{Child, ChildStderr, ChildStdout, Command, ExitStatus, Stdio};

/// A server in a process of its own; killed when dropped.
pub(crate) struct Process {
    pub(crate) child: Child,
    pub(crate) address: SocketAddr,
    pub(crate) admin: SocketAddr,
    /// What it still prints.
    pub(crate) out: BufReader<ChildStdout>,
}

// === impl Process ===

impl Process {
    /// Starts it and waits until it serves.
    pub(crate) fn start(place: &Place) -> Self {
        Self::spawn(place, Stdio::null(), &[])
    }

    /// As [`start`](Self::start); what it logs can be read.
    pub(crate) fn with_log(place: &Place) -> (Self, ChildStderr) {
        let mut process = Self::spawn(place, Stdio::piped(), &[]);
        let log = process.child.stderr.take().expect("its log is piped");
        (process, log)
    }

    /// As [`start`](Self::start), with these environment variables; all it logs goes to a file.
    pub(crate) fn with_log_file(place: &Place, log: File, variables: &[(&str, &str)]) -> Self {
        Self::spawn(place, log.into(), variables)
    }

    fn spawn(place: &Place, log: Stdio, variables: &[(&str, &str)]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_roundhouse"))
            .args(["serve", "--config"])
            .arg(place.file())
            .stdout(Stdio::piped())
            .stderr(log)
            .envs(variables.iter().copied())
            .spawn()
            .expect("the binary starts");
        let mut out = BufReader::new(child.stdout.take().expect("its output is piped"));
        let mut address = || {
            let mut line = String::new();
            out.read_line(&mut line).expect("it writes text");
            let address = line.rsplit_once("http://").map(|(_, address)| address.trim().trim_end_matches("/metrics"));
            address.and_then(|address| address.parse().ok()).unwrap_or_else(|| panic!("no address: {line}"))
        };
        let (public, admin) = (address(), address());
        Self { child, address: public, admin, out }
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("it can be killed");
        self.child.wait().expect("it ends");
    }

    /// Sends it a signal.
    pub(crate) fn signal(&self, signal: &str) {
        let sent = Command::new("kill").args(["-s", signal, &self.child.id().to_string()]).status().expect("there is a kill command");
        assert!(sent.success());
    }

    /// Waits until it has ended by itself.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        self.child.wait().expect("it ends")
    }
}

/// Everything that is still to be read.
pub(crate) fn rest(mut log: impl Read) -> String {
    let mut text = String::new();
    log.read_to_string(&mut text).expect("logs are text");
    text
}

impl Drop for Process {
    fn drop(&mut self) {
        // Already dead where the test killed it.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
