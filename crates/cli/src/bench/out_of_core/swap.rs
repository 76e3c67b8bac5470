//! A swap file of our own.

use anyhow::{Context, Result};
use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// On a disk as a rule, which /tmp need not be.
const FOLDER: &str = "/var/tmp";
/// The name of our files, before the process ID.
const NAME: &str = "weir-swap-";
const PAGE: u64 = 4096;
/// swapon(2): a priority is given, and this one.
const PREFER: libc::c_int = 0x8000;
const HIGHEST: libc::c_int = 0x7fff;

/// A swap file in use; gone when dropped.
pub struct Swap {
    path: PathBuf,
}

impl Swap {
    /// A new one of so many bytes, used before all others.
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
        // SAFETY: a path that ends with a zero.
        if unsafe { libc::swapon(name.as_ptr(), flags) } != 0 {
            let error = io::Error::last_os_error();
            return Err(error)
                .with_context(|| format!("{} cannot be swap: this file system may not allow it", shown()));
        }
        Ok(swap)
    }

    /// The file.
    pub fn path(&self) -> std::path::Display<'_> {
        self.path.display()
    }
}

impl Drop for Swap {
    fn drop(&mut self) {
        off_and_gone(&self.path);
    }
}

/// A file without holes, with the header of a swap area (mkswap(8)).
fn fill(file: &File, bytes: u64) -> io::Result<()> {
    let zeros = vec![0; 1 << 20];
    let mut left = bytes;
    while left > 0 {
        let part = left.min(zeros.len() as u64) as usize;
        (&*file).write_all(&zeros[..part])?;
        left -= part as u64;
    }
    // Version 1, the last page, no bad pages; and the signature.
    let mut header = [0; 12];
    header[..4].copy_from_slice(&1u32.to_ne_bytes());
    header[4..8].copy_from_slice(&((bytes / PAGE - 1) as u32).to_ne_bytes());
    file.write_all_at(&header, 1024)?;
    file.write_all_at(b"SWAPSPACE2", PAGE - 10)?;
    file.sync_all()
}

fn off_and_gone(path: &Path) {
    if let Ok(name) = CString::new(path.as_os_str().as_bytes()) {
        // SAFETY: a path that ends with a zero. It fails where it is no swap, which is as well.
        unsafe { libc::swapoff(name.as_ptr()) };
    }
    let _ = fs::remove_file(path);
}

/// What a run left that was killed.
fn remove_stale() {
    for path in fs::read_dir(FOLDER).into_iter().flatten().flatten().map(|entry| entry.path()) {
        let name = path.file_name().and_then(|name| name.to_str());
        if let Some(pid) = name.and_then(|name| name.strip_prefix(NAME))
            && !Path::new("/proc").join(pid).exists()
        {
            off_and_gone(&path);
        }
    }
}
