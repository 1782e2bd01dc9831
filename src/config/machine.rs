//! What "auto" and "70%" mean on this machine.

use std::collections::BTreeSet;
use std::fs::read_to_string;
use std::num::NonZeroUsize;

/// Taken where the system doesn't tell how much memory it has.
const UNKNOWN_MEMORY: u64 = 8 << 30;

/// Logical processors this process may use (affinity and cgroup quota respected).
pub(super) fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, NonZeroUsize::get)
}

/// Physical cores this process may use: compute threads gain nothing from a second thread on one core's vector units.
pub(super) fn cores() -> usize {
    let allowed = read_to_string("/proc/self/status").ok().and_then(|status| allowed_processors(&status));
    let siblings = |processor: &usize| read_to_string(format!("/sys/devices/system/cpu/cpu{processor}/topology/thread_siblings_list")).ok();
    let cores = allowed.and_then(|allowed| allowed.iter().map(siblings).collect::<Option<BTreeSet<_>>>()).map(|cores| cores.len());
    cores.filter(|cores| *cores > 0).unwrap_or(usize::MAX).min(processors())
}

/// Bytes of physical memory this process may use: the machine's, or its cgroup's if that is less.
pub(super) fn memory() -> u64 {
    let machine = read_to_string("/proc/meminfo").ok().and_then(|meminfo| total_memory(&meminfo));
    // cgroup v2; in a container the process's own group is the root of what it sees. "max" is no limit.
    let group = read_to_string("/sys/fs/cgroup/memory.max").ok().and_then(|limit| limit.trim().parse().ok());
    machine.into_iter().chain(group).min().unwrap_or(UNKNOWN_MEMORY)
}

fn total_memory(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// The processors in a process's status, `Cpus_allowed_list: 0-3,8`.
fn allowed_processors(status: &str) -> Option<Vec<usize>> {
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?.trim();
    let mut processors = Vec::new();
    for range in list.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        processors.extend(first.parse::<usize>().ok()?..=last.parse().ok()?);
    }
    Some(processors)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_files_are_read_as_the_kernel_writes_them() {
        assert_eq!(total_memory("MemTotal:       24576 kB\nMemFree: 1 kB\n"), Some(24576 * 1024));
        assert_eq!(total_memory("nothing"), None);
        assert_eq!(allowed_processors("Name: x\nCpus_allowed_list:\t0-2,8\n"), Some(vec![0, 1, 2, 8]));
        assert_eq!(allowed_processors("Cpus_allowed_list:\t0\n"), Some(vec![0]));
        assert_eq!(allowed_processors("Name: x\n"), None);
    }

    #[test]
    fn a_machine_has_at_least_one_core_and_no_more_than_processors() {
        assert!((1..=processors()).contains(&cores()));
        assert!(memory() > 0);
    }
}
