//! The files by which programs look for RDMA devices: `/sys/class/infiniband`, `/dev/infiniband` and their like.
//!
//! Without the kernel's RDMA modules these files do not exist, and UCX, Open MPI and pyverbs then see no device. Weir
//! writes them into the folder of this process (`weir_device::stat`), and the interposed functions of the C library
//! ([`crate::hooks`]) take the paths there. The kernel does all the rest: a program may open, list and stat them in
//! any way.

mod contents;
mod names;
mod tree;

use contents::Numbered;
use std::ffi::{CStr, CString, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use tree::Tree;
use weir_device::PerProcess;

use names::Place;

pub use names::may_be_shown;

/// The tree of this process. A forked child has its own.
static TREE: PerProcess<Mutex<Option<Tree>>> = PerProcess::new();

/// The file of this process's folder that stands for `path`, up to date, or a folder of the kernel above it. `None` if the path is not one of those that
/// Weir shows, or if this process can have no folder: then the program sees the kernel's file.
pub fn shown(path: &[u8]) -> Option<CString> {
    let file = match names::place(path).filter(|_| !weir_device::gains_privileges())? {
        Place::Own(place) => match refresh(&place) {
            Some(folder) => folder.join(place),
            // Weir opens this file itself, which needs no folder.
            None if place.as_os_str() == contents::CM_PLACE => Path::new("/").join(place),
            None => return None,
        },
        Place::Above { device, path } => {
            let device = refresh(&device)?.join(device);
            // Of a device that does not exist, a path that does not exist.
            if device.exists() { path } else { device }
        }
    };
    CString::new(file.into_os_string().into_encoded_bytes()).ok()
}

/// Returns whether [`shown`] stands for the file for connection management.
pub fn is_rdma_cm(shown: &CStr) -> bool {
    Path::new(OsStr::from_bytes(shown.to_bytes())).ends_with(contents::CM_PLACE)
}

/// The path under which the program knows a file of this process's folder; `None` if it is another file.
pub fn known_as(path: &[u8]) -> Option<PathBuf> {
    let tree = TREE.existing()?.lock().unwrap_or_else(PoisonError::into_inner);
    let place = Path::new(OsStr::from_bytes(path)).strip_prefix(tree.as_ref()?.root()).ok()?;
    names::path_of(place)
}

/// Writes what has changed; returns the folder.
fn refresh(place: &Path) -> Option<PathBuf> {
    let mut guard = TREE.get().lock().unwrap_or_else(PoisonError::into_inner);
    let tree = match &mut *guard {
        Some(tree) => tree,
        none => {
            crate::log::start();
            none.insert(Tree::new(weir_device::stat::own_folder()?))
        }
    };
    match weir_device::devices() {
        Ok(devices) => {
            let devices: Vec<Numbered> = devices.iter().map(Numbered::of).collect();
            let mut entries = contents::of_devices(&devices);
            // Reading the counters of all processes takes long, so they are as new as the last look at them.
            if place.components().any(|part| contents::has_counters(part.as_os_str())) {
                contents::add_counters(&mut entries, &devices);
            } else {
                contents::keep_counters(&mut entries, tree.entries());
            }
            if let Err(error) = tree.update(entries) {
                tracing::warn!(%error, "the files in {} are not up to date", tree.root().display());
            }
        }
        Err(error) => tracing::warn!(?error, "no list of devices for {}", place.display()),
    }
    Some(tree.root().to_owned())
}
