//! Which paths Weir shows to the program in place of the kernel's, and where they are in the process's folder.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

/// A folder of the kernel that Weir shows, and its place in the process's folder.
struct Shown {
    components: &'static [&'static str],
    place: &'static str,
}

/// The whole of each folder is Weir's: files of other RDMA devices of the machine are not visible there, because
/// this libibverbs does not have these devices.
const SHOWN: [Shown; 5] = [
    Shown { components: &["sys", "class", "infiniband"], place: "class/infiniband" },
    Shown { components: &["sys", "class", "infiniband_verbs"], place: "class/infiniband_verbs" },
    Shown { components: &["sys", "class", "infiniband_mad"], place: "class/infiniband_mad" },
    Shown { components: &["sys", "class", "misc", "rdma_cm"], place: "class/misc/rdma_cm" },
    Shown { components: &["dev", "infiniband"], place: "dev/infiniband" },
];

/// A quick look, for functions that are called often: only paths for which this is true can have a place.
#[inline]
pub fn may_be_shown(start: [u8; 2]) -> bool {
    start[0] == b'/' && matches!(start[1], b's' | b'd' | b'/' | b'.')
}

/// The place of an absolute path in the process's folder; `None` if the path is not shown.
pub fn place(path: &[u8]) -> Option<PathBuf> {
    if !path.starts_with(b"/") {
        return None;
    }
    SHOWN.iter().find_map(|shown| shown.place_of(path))
}

/// The path that a program uses for a place in the process's folder; `None` if there is none.
pub fn path_of(place: &Path) -> Option<PathBuf> {
    SHOWN.iter().find_map(|shown| {
        let rest = place.strip_prefix(shown.place).ok()?;
        let path: PathBuf = std::iter::once("/").chain(shown.components.iter().copied()).collect();
        Some(if rest.as_os_str().is_empty() { path } else { path.join(rest) })
    })
}

impl Shown {
    fn place_of(&self, path: &[u8]) -> Option<PathBuf> {
        let components = || Path::new(OsStr::from_bytes(path)).components().skip(1);
        if !components().any(|part| part == Component::ParentDir) {
            let mut rest = components();
            let inside = self.components.iter().all(|name| rest.next() == Some(Component::Normal(name.as_ref())));
            return inside.then(|| Path::new(self.place).join(rest.collect::<PathBuf>()));
        }
        // As if no part were a symbolic link, which is true within the folders that are shown.
        let mut plain: Vec<&OsStr> = vec![];
        for part in components() {
            match part {
                Component::Normal(name) => plain.push(name),
                Component::ParentDir => drop(plain.pop()),
                _ => {}
            }
        }
        let rest = plain.strip_prefix(self.components.iter().map(OsStr::new).collect::<Vec<_>>().as_slice())?;
        Some(Path::new(self.place).join(rest.iter().collect::<PathBuf>()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_devices_have_a_place() {
        for (path, wanted) in [
            ("/sys/class/infiniband", Some("class/infiniband")),
            ("/sys/class/infiniband/", Some("class/infiniband")),
            ("//sys/./class//infiniband/weir_lo/ports/1", Some("class/infiniband/weir_lo/ports/1")),
            ("/sys/class/infiniband/weir_lo/../weir_eth0/node_guid", Some("class/infiniband/weir_eth0/node_guid")),
            ("/sys/class/net/../infiniband_verbs/uverbs0", Some("class/infiniband_verbs/uverbs0")),
            ("/sys/class/misc/rdma_cm/abi_version", Some("class/misc/rdma_cm/abi_version")),
            ("/dev/infiniband/uverbs0", Some("dev/infiniband/uverbs0")),
            ("/sys/class/infiniband/..", None),
            ("/sys/class/infiniband/../net/lo", None),
            ("/sys/class/infiniband_cm", None),
            ("/sys/class/misc", None),
            ("/dev", None),
            ("/", None),
            ("sys/class/infiniband", None),
            ("", None),
        ] {
            assert_eq!(place(path.as_bytes()), wanted.map(PathBuf::from), "{path}");
            if let (Some(place), [first, second, ..]) = (wanted, path.as_bytes()) {
                assert!(may_be_shown([*first, *second]));
                assert_eq!(
                    super::place(path_of(Path::new(place)).unwrap().as_os_str().as_bytes()).unwrap(),
                    Path::new(place)
                );
            }
        }
        assert_eq!(path_of(Path::new("class/infiniband")), Some("/sys/class/infiniband".into()));
        assert_eq!(path_of(Path::new("counters")), None);
    }
}
