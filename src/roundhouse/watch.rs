//! Sees the configuration file change: also when an editor renames a new one over it, or when a link on the way to it is
//! set to another folder, as Kubernetes does with a ConfigMap.

use super::house::House;
use notify::{Config, Event, PollWatcher, RecommendedWatcher, RecursiveMode, Watcher};
use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant, SystemTime};

/// How a file looks from outside: another file in its place, or other contents, look different.
#[derive(PartialEq, Eq)]
struct Look(Option<(PathBuf, u64, u64, SystemTime)>);

/// A file is read when it has looked the same for this long: whoever writes it may do so in several pieces.
const QUIET: Duration = Duration::from_millis(200);
/// How often to look where the system doesn't tell of changes.
const POLL: Duration = Duration::from_secs(2);

/// What ends the watch.
pub(super) struct Stop(Sender<Told>);

enum Told {
    Changed,
    Stop,
}

// === impl Look ===

impl Look {
    fn at(file: &Path) -> Self {
        let look = || {
            let (path, metadata) = (file.canonicalize()?, std::fs::metadata(file)?);
            Ok::<_, std::io::Error>((path, metadata.ino(), metadata.len(), metadata.modified()?))
        };
        Self(look().ok()) // a file that is gone looks like nothing
    }
}

// === impl Stop ===

impl Drop for Stop {
    fn drop(&mut self) {
        let _ = self.0.send(Told::Stop); // the thread may have ended by itself
    }
}

/// Reloads `house` whenever something changes in the folders of `file`, until the answer is dropped.
pub(super) fn watch(house: Arc<House>, file: PathBuf) -> std::io::Result<Stop> {
    let (tell, told) = channel();
    let stop = Stop(tell.clone());
    let known = Look::at(&file);
    // What changes from here on is seen, also before the watcher is up: the first look is taken unasked.
    let _ = tell.send(Told::Changed);
    std::thread::Builder::new().name("config watch".to_owned()).spawn(move || run(&house, &file, known, tell, &told))?;
    Ok(stop)
}

fn run(house: &House, file: &Path, mut known: Look, tell: Sender<Told>, told: &Receiver<Told>) {
    let changed = move |event: Result<Event, notify::Error>| match event {
        Ok(event) if event.kind.is_access() => {} // our own reading is none of our business
        Ok(_) => drop(tell.send(Told::Changed)),
        Err(error) => tracing::warn!(%error, "watching the configuration file"),
    };
    let mut watcher: Box<dyn Watcher> = match RecommendedWatcher::new(changed.clone(), Config::default()) {
        Ok(watcher) => Box::new(watcher),
        Err(error) => {
            tracing::warn!(%error, "the system doesn't tell of changed files, so the configuration is looked at every two seconds");
            match PollWatcher::new(changed, Config::default().with_poll_interval(POLL).with_compare_contents(true)) {
                Ok(watcher) => Box::new(watcher),
                Err(error) => return tracing::error!(%error, "the configuration file can't be watched; SIGHUP reloads it"),
            }
        }
    };
    let mut watched = BTreeSet::new();
    follow(watcher.as_mut(), file, &mut watched);
    while let Ok(Told::Changed) = told.recv() {
        // Others write into the same folder, such as a ledger, and all the time.
        let mut look = Look::at(file);
        if look == known {
            continue;
        }
        loop {
            if stopped_within(told, QUIET) {
                return;
            }
            let next = Look::at(file);
            if next == look {
                break;
            }
            look = next;
        }
        known = look;
        follow(watcher.as_mut(), file, &mut watched);
        // Its outcome is in the log and in the metrics.
        let _ = house.reload_file();
    }
}

/// Whether the watch is to end, after `wait` at the latest.
fn stopped_within(told: &Receiver<Told>, wait: Duration) -> bool {
    let until = Instant::now() + wait;
    loop {
        match told.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(Told::Changed) => {}
            Ok(Told::Stop) => return true,
            Err(_) => return false,
        }
    }
}

/// Watches the folders on the way to `file`: that of each link, and that of what it leads to.
fn follow(watcher: &mut dyn Watcher, file: &Path, watched: &mut BTreeSet<PathBuf>) {
    let folder = |path: &Path| path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new(".")).to_owned();
    let mut folders = BTreeSet::from([folder(file)]);
    folders.extend(file.canonicalize().ok().map(|real| folder(&real)));
    for gone in watched.difference(&folders) {
        let _ = watcher.unwatch(gone); // it may not exist any more
    }
    for new in folders.difference(watched) {
        if let Err(error) = watcher.watch(new, RecursiveMode::NonRecursive) {
            tracing::warn!(%error, folder = %new.display(), "a folder of the configuration file can't be watched");
        }
    }
    *watched = folders;
}
