//! The C library's functions that close many descriptors: they spare those of Weir. close and the dup family do so in
//! `rdma_cm`.

use super::errno::keeping_errno;
use super::next::Next;
use libc::{c_int, c_long, c_uint};
use std::ffi::CStr;
use weir_device::descriptors;

static CLOSE_RANGE: Next<unsafe extern "C" fn(c_uint, c_uint, c_int) -> c_int> = Next::new(c"close_range");

/// <linux/close_range.h>
const UNSHARE: c_int = 1 << 1;
const CLOEXEC: c_int = 1 << 2;

/// Looks up the next definition of each function.
pub(super) fn look_up() {
    CLOSE_RANGE.look_up();
}

/// As close_range(2). Descriptors of Weir stay open; all of them have the flag that CLOSE_RANGE_CLOEXEC sets.
///
/// # Safety
/// As close_range(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    // SAFETY: the caller's own call.
    let call = |first, last, flags| unsafe {
        match CLOSE_RANGE.found() {
            Some(next) => next(first, last, flags),
            None => libc::syscall(libc::SYS_close_range, first, last, flags) as c_int,
        }
    };
    let spared = |from: c_uint| keeping_errno(|| descriptors::next_spared(from)).filter(|number| *number <= last);
    if flags & CLOEXEC != 0 {
        return call(first, last, flags);
    }
    let (mut from, mut flags) = (first, flags);
    while let Some(number) = spared(from) {
        // A first call without a number to close: it copies the table, which the others must not do again, and fails as
        // the whole call would.
        let result = if number > from { call(from, number - 1, flags) } else { call(c_uint::MAX, c_uint::MAX, flags) };
        if result != 0 {
            return result;
        }
        flags &= !UNSHARE;
        if number == last {
            return 0;
        }
        from = number + 1;
    }
    call(from, last, flags)
}

/// As closefrom(3).
///
/// # Safety
/// As closefrom(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn closefrom(lowest: c_int) {
    let lowest = lowest.max(0) as c_uint;
    // SAFETY: the caller's own call.
    if keeping_errno(|| unsafe { close_range(lowest, c_uint::MAX, 0) }) == 0 {
        return;
    }
    // Before Linux 5.9.
    if keeping_errno(|| close_listed(lowest as c_int)) {
        return;
    }
    // Without /proc.
    // SAFETY: asks for a number.
    let open_max = unsafe { libc::sysconf(libc::_SC_OPEN_MAX) }.clamp(0, c_long::from(c_int::MAX)) as c_int;
    for number in lowest as c_int..open_max {
        // SAFETY: the caller's own call.
        keeping_errno(|| unsafe { super::rdma_cm::close(number) });
    }
}

/// Closes the descriptors from `lowest` on that /proc lists, as the C library does: a container may allow so many that
/// counting to the limit takes minutes. Returns whether /proc lists them. Allocates nothing, because programs call
/// closefrom between fork and exec.
fn close_listed(lowest: c_int) -> bool {
    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
    // System calls, because the C library's functions for directories allocate, and Weir replaces open and close.
    // SAFETY: reads a NUL-terminated path.
    let list = unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, c"/proc/self/fd".as_ptr(), flags) } as c_int;
    if list < 0 {
        return false;
    }
    let mut entries = [0u8; 1024];
    // The position in this directory is a number, so that no descriptor is left out because others are closed.
    let is_complete = loop {
        // SAFETY: writes at most the length of the array.
        let got = unsafe { libc::syscall(libc::SYS_getdents64, list, entries.as_mut_ptr(), entries.len()) };
        let Some(read) = usize::try_from(got).ok().and_then(|got| entries.get(..got)) else { break false };
        if read.is_empty() {
            break true;
        }
        each_number(read, |number| {
            if number >= lowest && number != list {
                // SAFETY: a descriptor that the caller of closefrom closes.
                unsafe { super::rdma_cm::close(number) };
            }
        });
    };
    // SAFETY: opened above.
    unsafe { libc::syscall(libc::SYS_close, list) };
    is_complete
}

/// Calls `found` for each entry of a getdents64 that has a number as its name.
fn each_number(mut entries: &[u8], mut found: impl FnMut(c_int)) {
    // struct linux_dirent64: the length of the entry is at 16, its NUL-terminated name at 19.
    while let Some(&[low, high]) = entries.get(16..18) {
        let length = u16::from_ne_bytes([low, high]) as usize;
        // An entry without a length would be read for ever.
        let Some((entry, rest)) = entries.split_at_checked(length).filter(|_| length > 0) else { return };
        let name = entry.get(19..).and_then(|name| CStr::from_bytes_until_nul(name).ok());
        if let Some(number) = name.and_then(|name| name.to_str().ok()?.parse().ok()) {
            found(number);
        }
        entries = rest;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listed_descriptors_are_closed_from_a_number_on() {
        // Other tests have descriptors below.
        // SAFETY: a duplicate, which this test closes.
        let number = unsafe { libc::fcntl(2, libc::F_DUPFD_CLOEXEC, 900) };
        // SAFETY: asks for flags.
        let is_open = |number| unsafe { libc::fcntl(number, libc::F_GETFD) } >= 0;
        assert!(number >= 900 && close_listed(number + 1) && is_open(number));
        assert!(close_listed(number) && !is_open(number) && is_open(2));
    }
}
