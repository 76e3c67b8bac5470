//! What `weir devices` prints about ODP memory: which changes the adapter is notified of, and which it is not.

use serde::Serialize;
use std::fmt::Write;
use weir_device::{Feature, userfault};

/// How the adapter is notified that ODP memory is unmapped, moved, emptied or protected.
#[derive(Serialize, Debug)]
pub struct Invalidation {
    /// Functions of the C library that Weir interposes, in programs that it is linked or preloaded into.
    interposed: &'static [&'static str],
    /// How this process can open a userfaultfd, which reports most other changes; `None` if it cannot.
    userfaultfd: Option<&'static str>,
    /// Why it cannot.
    #[serde(skip_serializing_if = "Option::is_none")]
    userfaultfd_error: Option<String>,
    /// Changes without a notification. The adapter detects them when it next accesses the memory, which costs a page
    /// fault.
    unseen: Vec<&'static str>,
}

/// What holds for programs that start now on this machine. `features`: the kernel features that Weir uses or not.
pub fn on_this_machine(features: &[Feature]) -> Invalidation {
    let unused =
        features.iter().filter(|feature| feature.name == "userfaultfd").find_map(|feature| feature.unused.clone());
    let by = || userfault::available().map(|opened| opened.name());
    Invalidation::new(match unused {
        Some(why) => Err(why),
        None => by().map_err(|error| std::io::Error::from_raw_os_error(error.0).to_string()),
    })
}

const INTERPOSED: &[&str] =
    &["brk", "madvise", "mmap", "mprotect", "mremap", "munmap", "pkey_mprotect", "sbrk", "shmdt"];

/// Not reported on any kernel.
const ALWAYS_UNSEEN: &[&str] = &[
    "swap-out",
    "hole punching and truncation of files",
    "process_madvise and shmat(SHM_REMAP)",
    "mprotect, shmdt and reclaiming advice by raw system calls",
];
const COVERED_BY_USERFAULTFD: &str = "free() and raw system calls on mapped files and SysV shared memory, and in implicit \
                                      regions";
const NOT_COVERED: &str = "free() and raw system calls";

impl Invalidation {
    fn new(userfaultfd: Result<&'static str, String>) -> Invalidation {
        let rest = if userfaultfd.is_ok() { COVERED_BY_USERFAULTFD } else { NOT_COVERED };
        Invalidation {
            interposed: INTERPOSED,
            userfaultfd: userfaultfd.as_ref().ok().copied(),
            userfaultfd_error: userfaultfd.err(),
            unseen: ALWAYS_UNSEEN.iter().copied().chain([rest]).collect(),
        }
    }

    /// Lines of text, indented.
    pub fn text(&self) -> String {
        let mut text = String::new();
        let net = match (self.userfaultfd, &self.userfaultfd_error) {
            (Some(opened), _) => format!("userfaultfd, by {opened}"),
            (None, Some(error)) => format!("no userfaultfd: {error}"),
            (None, None) => "no userfaultfd".to_owned(),
        };
        // Writing to a String cannot fail.
        let _ = writeln!(text, "  ODP memory: changes are seen by {}; {net}", self.interposed.join(", "));
        let _ = writeln!(text, "    not seen: {}", self.unseen.join("; "));
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_listed_functions_are_those_that_the_library_exports() {
        let map = include_str!("../../verbs/libibverbs.map");
        let exported: Vec<&str> = map.lines().filter_map(|line| line.trim().strip_suffix(';')).collect();
        let hooks = include_str!("../../verbs/src/hooks/mod.rs");
        let mut named: Vec<&str> = hooks
            .split("pub unsafe extern \"C\" fn ")
            .skip(1)
            .map(|rest| rest.split('(').next().unwrap_or_default())
            // `ioctl` is interposed for programs that register memory with a userfaultfd of their own; mmap64 is mmap.
            .filter(|name| !["ioctl", "mmap64"].contains(name))
            .collect();
        named.sort_unstable();
        assert_eq!(named, INTERPOSED);
        assert!(named.iter().all(|name| exported.contains(name)), "{named:?}, {exported:?}");
    }

    #[test]
    fn without_userfaultfd_free_and_raw_system_calls_are_not_covered() {
        let text = Invalidation::new(Err("Operation not permitted".to_owned())).text();
        assert!(text.contains("no userfaultfd: Operation not permitted"), "{text}");
        assert!(text.contains("; free() and raw system calls\n"), "{text}");
        let text = Invalidation::new(Ok("/dev/userfaultfd")).text();
        assert!(text.contains("userfaultfd, by /dev/userfaultfd") && text.contains("implicit"), "{text}");
    }
}
