//! Which paths Weir shows to the program in place of the kernel's, and where they are in the process's folder.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

/// Where a path leads that begins in a folder that Weir shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// To this place in the process's folder.
    Own(PathBuf),
    /// Through a device (its place) up to a folder of the kernel.
    Above { device: PathBuf, path: PathBuf },
}

/// A folder of the kernel that Weir shows, and its place in the process's folder.
struct Shown {
    components: &'static [&'static str],
    place: &'static str,
}

/// The whole of each folder is Weir's: files of other RDMA devices of the machine are not visible there, because
/// this libibverbs does not have these devices.
const SHOWN: [Shown; 8] = [
    Shown { components: &["sys", "class", "infiniband"], place: "class/infiniband" },
    Shown { components: &["sys", "class", "infiniband_verbs"], place: "class/infiniband_verbs" },
    Shown { components: &["sys", "class", "infiniband_mad"], place: "class/infiniband_mad" },
    Shown { components: &["sys", "class", "misc", "rdma_cm"], place: "class/misc/rdma_cm" },
    Shown { components: &["dev", "infiniband"], place: "dev/infiniband" },
    // The other names of the first three, which `path_of` therefore does not use.
    Shown { components: &["sys", "devices", "virtual", "infiniband"], place: "class/infiniband" },
    Shown { components: &["sys", "devices", "virtual", "infiniband_verbs"], place: "class/infiniband_verbs" },
    Shown { components: &["sys", "devices", "virtual", "infiniband_mad"], place: "class/infiniband_mad" },
];

/// A quick look, for functions that are called often: only paths for which this is true can have a place.
#[inline]
pub fn may_be_shown(start: [u8; 2]) -> bool {
    start[0] == b'/' && matches!(start[1], b's' | b'd' | b'/' | b'.')
}

/// Where an absolute path leads; `None` if it is not about the folders that are shown.
pub fn place(path: &[u8]) -> Option<Place> {
    if !path.starts_with(b"/") {
        return None;
    }
    let components = || Path::new(OsStr::from_bytes(path)).components().skip(1);
    let names: Vec<&OsStr> = components().map(Component::as_os_str).collect();
    match components().any(|part| part == Component::ParentDir) {
        true => place_above(&names),
        false => own_place(&names).map(Place::Own),
    }
}

fn own_place(names: &[&OsStr]) -> Option<PathBuf> {
    SHOWN.iter().find_map(|shown| shown.place_of(names))
}

/// As [`place`], of a path with `..`. A device in a class's folder is a symbolic link to one of the kernel's
/// `/sys/devices/virtual`, which programs use to find what the device is attached to. Nothing else in the folders that
/// are shown is a symbolic link.
fn place_above(names: &[&OsStr]) -> Option<Place> {
    let mut plain: Vec<&OsStr> = vec![];
    let mut through = None;
    for name in names {
        if *name != ".." {
            plain.push(name);
            continue;
        }
        if let [sys, class, _, _] = plain[..]
            && sys == "sys"
            && class == "class"
            && let Some(device) = own_place(&plain)
        {
            plain.splice(1..2, ["devices", "virtual"].map(OsStr::new));
            through = Some(device);
        }
        plain.pop();
    }
    let own = own_place(&plain).map(Place::Own);
    own.or_else(|| through.map(|device| Place::Above { device, path: absolute(plain) }))
}

fn absolute<S: AsRef<OsStr>>(names: impl IntoIterator<Item = S>) -> PathBuf {
    names.into_iter().fold(PathBuf::from("/"), |path, name| path.join(name.as_ref()))
}

/// The path that a program uses for a place in the process's folder; `None` if there is none.
pub fn path_of(place: &Path) -> Option<PathBuf> {
    SHOWN.iter().find_map(|shown| {
        let rest = place.strip_prefix(shown.place).ok()?;
        let path = absolute(shown.components);
        Some(if rest.as_os_str().is_empty() { path } else { path.join(rest) })
    })
}

impl Shown {
    fn place_of(&self, names: &[&OsStr]) -> Option<PathBuf> {
        let (inside, rest) = names.split_at_checked(self.components.len())?;
        (inside == self.components).then(|| Path::new(self.place).join(rest.iter().collect::<PathBuf>()))
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
            ("/sys/class/infiniband/weir_lo/..", Some("class/infiniband")),
            ("/sys/class/infiniband/weir_lo/ports/../..", Some("class/infiniband")),
            ("/sys/class/infiniband/weir_lo/../../infiniband_verbs/uverbs0", Some("class/infiniband_verbs/uverbs0")),
            ("/sys/devices/virtual/infiniband/weir_lo/node_guid", Some("class/infiniband/weir_lo/node_guid")),
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
            assert_eq!(place(path.as_bytes()), wanted.map(|place| Place::Own(place.into())), "{path}");
            if let (Some(place), [first, second, ..]) = (wanted, path.as_bytes()) {
                assert!(may_be_shown([*first, *second]));
                assert_eq!(
                    super::place(path_of(Path::new(place)).unwrap().as_os_str().as_bytes()),
                    Some(Place::Own(place.into()))
                );
            }
        }
        assert_eq!(path_of(Path::new("class/infiniband")), Some("/sys/class/infiniband".into()));
        assert_eq!(path_of(Path::new("counters")), None);
    }

    #[test]
    fn a_device_is_a_link_to_the_virtual_devices() {
        for (path, wanted) in [
            ("/sys/class/infiniband/weir_lo/../..", "/sys/devices/virtual"),
            ("/sys/class/infiniband/weir_lo/../../net/lo", "/sys/devices/virtual/net/lo"),
            ("/sys/class/infiniband/weir_lo/../../../../kernel", "/sys/kernel"),
        ] {
            let device = "class/infiniband/weir_lo".into();
            assert_eq!(place(path.as_bytes()), Some(Place::Above { device, path: wanted.into() }), "{path}");
        }
    }
}
