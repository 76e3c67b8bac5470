//! The C library's functions that close many descriptors: they spare those of Weir. close and the dup family do so in
//! `rdma_cm`.

use super::errno::keeping_errno;
use super::next::Next;
use libc::{c_int, c_long, c_uint};
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
    // SAFETY: asks for a number.
    let open_max = unsafe { libc::sysconf(libc::_SC_OPEN_MAX) }.clamp(0, c_long::from(c_int::MAX)) as c_int;
    for number in lowest as c_int..open_max {
        // SAFETY: the caller's own call.
        keeping_errno(|| unsafe { super::rdma_cm::close(number) });
    }
}
