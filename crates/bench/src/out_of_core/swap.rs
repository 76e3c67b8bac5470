//! A swap file for the bench.

use anyhow::{Context, Result};
use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Usually on a disk; /tmp may be a tmpfs, which cannot hold swap files.
const FOLDER: &str = "/var/tmp";
/// Prefix of the file's name; the process ID follows.
const NAME: &str = "weir-swap-";
const PAGE: u64 = 4096;
/// Flags of swapon(2): the priority is set (SWAP_FLAG_PREFER), to the highest.
const PREFER: libc::c_int = 0x8000;
const HIGHEST: libc::c_int = 0x7fff;

/// A swap file in use. Dropping it disables and removes it.
pub struct Swap {
    path: PathBuf,
}

impl Swap {
    /// A new swap file of `bytes` with the highest priority.
    pub fn new(bytes: u64) -> Result<Swap> {
        remove_stale();
        let path = Path::new(FOLDER).join(format!("{NAME}{}", std::process::id()));
        let swap = Swap { path };
        let shown = || swap.path.display().to_string();
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&swap.path).with_context(shown)?;
        fill(&file, bytes).with_context(shown)?;
        drop(file);
        let name = CString::new(swap.path.as_os_str().as_bytes())?;
        let flags = PREFER | HIGHEST;
        // SAFETY: `name` is a path that ends with a zero byte, and outlives the call.
        if unsafe { libc::swapon(name.as_ptr(), flags) } != 0 {
            let error = io::Error::last_os_error();
            return Err(error)
                .with_context(|| format!("cannot use {} as swap: this file system may not allow it", shown()));
        }
        Ok(swap)
    }

    /// Path of the swap file.
    pub fn path(&self) -> std::path::Display<'_> {
        self.path.display()
    }
}

impl Drop for Swap {
    fn drop(&mut self) {
        disable_and_remove(&self.path);
    }
}

/// Fills the file without holes, and writes the header of a swap area (mkswap(8)).
fn fill(file: &File, bytes: u64) -> io::Result<()> {
    let zeros = vec![0; 1 << 20];
    let mut left = bytes;
    while left > 0 {
        let part = left.min(zeros.len() as u64) as usize;
        (&*file).write_all(&zeros[..part])?;
        left -= part as u64;
    }
    // Version 1, number of the last page, no bad pages; then the signature.
    let mut header = [0; 12];
    header[..4].copy_from_slice(&1u32.to_ne_bytes());
    header[4..8].copy_from_slice(&((bytes / PAGE - 1) as u32).to_ne_bytes());
    file.write_all_at(&header, 1024)?;
    file.write_all_at(b"SWAPSPACE2", PAGE - 10)?;
    file.sync_all()
}

fn disable_and_remove(path: &Path) {
    if let Ok(name) = CString::new(path.as_os_str().as_bytes()) {
        // SAFETY: `name` is a path that ends with a zero byte, and outlives the call. The call fails without effect if
        // the file is not in use as swap.
        unsafe { libc::swapoff(name.as_ptr()) };
    }
    let _ = fs::remove_file(path);
}

/// Disables and removes swap files that killed runs of the bench have left.
fn remove_stale() {
    for path in fs::read_dir(FOLDER).into_iter().flatten().flatten().map(|entry| entry.path()) {
        let name = path.file_name().and_then(|name| name.to_str());
        if let Some(pid) = name.and_then(|name| name.strip_prefix(NAME))
            && !Path::new("/proc").join(pid).exists()
        {
            disable_and_remove(&path);
        }
    }
}
