//! Having the kernel bring pages in, which reports what touching them would signal.

/// What became of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Populated {
    /// All of the pages are there, and may be used that way.
    There,
    /// At least one is not, or may not.
    NotThere,
    /// A kernel before 5.14, which does not know the advice: nothing was done.
    Unknown,
}

/// Brings in `len` bytes at `start`, both of whole pages, for writing or for reading.
pub fn populate(start: u64, len: u64, write: bool) -> Populated {
    let advice = if write { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ };
    loop {
        // SAFETY: populating faults pages in, as touching them would, and reports instead of signalling.
        if unsafe { libc::madvise(start as *mut libc::c_void, len as usize, advice) } == 0 {
            return Populated::There;
        }
        match std::io::Error::last_os_error().raw_os_error() {
            Some(libc::EINTR | libc::EAGAIN) => {}
            Some(libc::EINVAL) if !is_known(advice) => return Populated::Unknown,
            _ => return Populated::NotThere,
        }
    }
}

fn is_known(advice: libc::c_int) -> bool {
    // SAFETY: no bytes.
    unsafe { libc::madvise(std::ptr::without_provenance_mut(4096), 0, advice) == 0 }
}
