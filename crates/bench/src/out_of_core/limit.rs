//! A cgroup with a memory limit, of version 1 or 2, for the processes of the bench.

use anyhow::{Context, Result, bail};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

/// Prefix of the cgroup's name; the process ID follows.
const NAME: &str = "weir-bench-";

/// A cgroup. Dropping it removes it, for which its processes must have ended.
pub struct Limit {
    version: Version,
    folder: PathBuf,
    members: Arc<File>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

impl Limit {
    /// A new cgroup with a limit of `bytes` of memory, and no limit of swap.
    pub fn new(bytes: u64) -> Result<Limit> {
        let mounts = fs::read_to_string("/proc/self/mounts").context("reading /proc/self/mounts")?;
        let controllers = |mount: &Path| fs::read_to_string(mount.join("cgroup.controllers")).unwrap_or_default();
        let Some((version, mount)) = find(&mounts, controllers) else {
            bail!(
                "no cgroup can limit memory: /proc/self/mounts shows neither a cgroup of version 1 with the memory \
                 controller nor a cgroup of version 2 with it"
            );
        };
        remove_stale(&mount);
        if version == Version::Two {
            // It may be enabled already, or only a parent cgroup can enable it.
            let _ = fs::write(mount.join("cgroup.subtree_control"), "+memory");
        }
        let folder = mount.join(format!("{NAME}{}", std::process::id()));
        fs::create_dir(&folder).with_context(|| format!("making {}", folder.display()))?;
        let made = (|| {
            match version {
                Version::One => set(&folder, "memory.limit_in_bytes", &bytes.to_string())?,
                Version::Two => {
                    set(&folder, "memory.max", &bytes.to_string())?;
                    set(&folder, "memory.swap.max", "max")?;
                }
            }
            let members = folder.join("cgroup.procs");
            OpenOptions::new().write(true).open(&members).with_context(|| members.display().to_string())
        })();
        match made {
            Ok(members) => Ok(Limit { version, folder, members: Arc::new(members) }),
            Err(error) => {
                let _ = fs::remove_dir(&folder);
                Err(error)
            }
        }
    }

    /// Makes the command run in the cgroup.
    pub fn join(&self, command: &mut Command) {
        let members = self.members.clone();
        // SAFETY: one system call between fork and exec.
        unsafe {
            command.pre_exec(move || (&*members).write_all(b"0"));
        }
    }

    /// The file to which a process writes 0 to join. By this path a process finds it that sees other file systems.
    pub fn members(&self) -> PathBuf {
        format!("/proc/{}/fd/{}", std::process::id(), self.members.as_raw_fd()).into()
    }

    /// Bytes in swap of the processes in the cgroup.
    pub fn swapped(&self) -> u64 {
        let of = |pid: &str| {
            let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
            let line = status.lines().find_map(|line| line.strip_prefix("VmSwap:"))?;
            line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok().map(|kib| kib * 1024)
        };
        fs::read_to_string(self.folder.join("cgroup.procs")).unwrap_or_default().lines().filter_map(of).sum()
    }

    /// Number of processes in the cgroup that the kernel has killed because memory was short.
    pub fn killed(&self) -> u64 {
        let name = if self.version == Version::One { "memory.oom_control" } else { "memory.events" };
        let text = fs::read_to_string(self.folder.join(name)).unwrap_or_default();
        text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok()).unwrap_or(0)
    }

    /// A short description.
    pub fn describe(&self) -> String {
        let version = if self.version == Version::One { 1 } else { 2 };
        format!("cgroup of version {version}, {}", self.folder.display())
    }
}

impl Drop for Limit {
    fn drop(&mut self) {
        // The kernel removes a process from its cgroup a moment after the process has ended.
        for _ in 0..100 {
            match fs::remove_dir(&self.folder) {
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                    std::thread::sleep(Duration::from_millis(20))
                }
                _ => return,
            }
        }
        eprintln!("weir: {} could not be removed", self.folder.display());
    }
}

fn set(folder: &Path, name: &str, value: &str) -> Result<()> {
    let path = folder.join(name);
    fs::write(&path, value).with_context(|| format!("writing {value} to {}", path.display()))
}

/// The mount point of a cgroup file system that can limit memory.
fn find(mounts: &str, controllers: impl Fn(&Path) -> String) -> Option<(Version, PathBuf)> {
    let mut lines = mounts.lines().filter_map(|line| {
        let mut words = line.split(' ');
        let (_, folder, kind, options) = (words.next()?, words.next()?, words.next()?, words.next()?);
        Some((PathBuf::from(folder), kind, options))
    });
    lines.find_map(|(folder, kind, options)| match kind {
        "cgroup" if options.split(',').any(|option| option == "memory") => Some((Version::One, folder)),
        "cgroup2" if controllers(&folder).split_whitespace().any(|name| name == "memory") => {
            Some((Version::Two, folder))
        }
        _ => None,
    })
}

/// Removes cgroups that killed runs of the bench have left. Removing fails if processes are still in them.
fn remove_stale(mount: &Path) {
    for path in fs::read_dir(mount).into_iter().flatten().flatten().map(|entry| entry.path()) {
        let name = path.file_name().and_then(|name| name.to_str());
        if let Some(pid) = name.and_then(|name| name.strip_prefix(NAME))
            && !Path::new("/proc").join(pid).exists()
        {
            let _ = fs::remove_dir(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_controller_is_found_in_either_version() {
        let one = "tmpfs /sys/fs/cgroup tmpfs rw 0 0\ncgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\n\
                   cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\ncgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0\n";
        let none = |_: &Path| String::new();
        assert_eq!(find(one, none), Some((Version::One, "/sys/fs/cgroup/memory".into())));
        let two = "cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0\n";
        assert_eq!(find(two, |_| "cpu memory pids\n".into()), Some((Version::Two, "/sys/fs/cgroup".into())));
        assert_eq!(find(two, none), None);
    }
}
