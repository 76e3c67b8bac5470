//! The C library's functions that change what addresses mean, each preceded by an invalidation of ODP memory,
//! those that end the process (`ends`), those that take the path of a file (`paths`), those that use the files of
//! connection management (`rdma_cm`), those that close descriptors (`rdma_cm`, `ranges`), and those of sockets, for
//! questions to the kernel's RDMA subsystem (`rdma_netlink`).
//!
//! A program that is linked with this library calls these functions instead of the C library's. A program that opens
//! the library later calls the C library's, and only `userfaultfd` reports changes (`weir_device::userfault`). Each
//! function calls the next definition of its name: that of another interposing library, or that of the C library,
//! which UCX patches.
//!
//! They may be called from anywhere: before this library is initialised, within malloc, in a signal handler. As long
//! as there is no on-demand region they cost one load. Afterwards they allocate nothing, block signal handlers while
//! they hold a lock, and leave errno as the next definition has set it.

mod ends;
mod errno;
mod guarded;
mod next;
mod paths;
mod ranges;
mod rdma_cm;
mod rdma_netlink;
mod shm;
mod signals;

use errno::{fail_enosys, keeping_errno};
use guarded::{caught, with_signals_blocked};
use libc::{c_int, c_ulong, c_void, off_t, size_t};
use next::Next;
use std::ops::Range;
use weir_device::paging::invalidate;
use weir_device::userfault;

type Addr = *mut c_void;

static MUNMAP: Next<unsafe extern "C" fn(Addr, size_t) -> c_int> = Next::new(c"munmap");
static MMAP: Next<unsafe extern "C" fn(Addr, size_t, c_int, c_int, c_int, off_t) -> Addr> = Next::new(c"mmap");
static MREMAP: Next<unsafe extern "C" fn(Addr, size_t, size_t, c_int, Addr) -> Addr> = Next::new(c"mremap");
static MADVISE: Next<unsafe extern "C" fn(Addr, size_t, c_int) -> c_int> = Next::new(c"madvise");
static MPROTECT: Next<unsafe extern "C" fn(Addr, size_t, c_int) -> c_int> = Next::new(c"mprotect");
static PKEY_MPROTECT: Next<unsafe extern "C" fn(Addr, size_t, c_int, c_int) -> c_int> = Next::new(c"pkey_mprotect");
static SHMDT: Next<unsafe extern "C" fn(*const c_void) -> c_int> = Next::new(c"shmdt");
static BRK: Next<unsafe extern "C" fn(Addr) -> c_int> = Next::new(c"brk");
static SBRK: Next<unsafe extern "C" fn(isize) -> Addr> = Next::new(c"sbrk");
static IOCTL: Next<unsafe extern "C" fn(c_int, c_ulong, Addr) -> c_int> = Next::new(c"ioctl");

/// Looks up the next definitions when the library is loaded, not within malloc or a signal handler.
#[used]
#[unsafe(link_section = ".init_array")]
static LOOK_UP: extern "C" fn() = look_up;

extern "C" fn look_up() {
    MUNMAP.look_up();
    MMAP.look_up();
    MREMAP.look_up();
    MADVISE.look_up();
    MPROTECT.look_up();
    PKEY_MPROTECT.look_up();
    SHMDT.look_up();
    BRK.look_up();
    SBRK.look_up();
    IOCTL.look_up();
    ends::look_up();
    paths::look_up();
    ranges::look_up();
    rdma_netlink::look_up();
    rdma_cm::look_up();
    signals::look_up();
}

/// As munmap(2).
///
/// # Safety
/// As munmap(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn munmap(addr: Addr, len: size_t) -> c_int {
    // SAFETY: the caller's own call.
    let call = || unsafe {
        match MUNMAP.found() {
            Some(next) => next(addr, len),
            None => libc::syscall(libc::SYS_munmap, addr, len) as c_int,
        }
    };
    changing([bytes(addr, len), NONE], Change::Unmaps, call)
}

/// As mmap(2). MAP_FIXED replaces existing mappings, so it begins an invalidation.
///
/// # Safety
/// As mmap(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mmap(addr: Addr, len: size_t, prot: c_int, flags: c_int, fd: c_int, offset: off_t) -> Addr {
    // SAFETY: the caller's own call.
    let call = || unsafe {
        match MMAP.found() {
            Some(next) => next(addr, len, prot, flags, fd, offset),
            None => libc::syscall(libc::SYS_mmap, addr, len, prot, flags, fd, offset) as Addr,
        }
    };
    // Without MAP_FIXED existing mappings stay. MAP_FIXED_NOREPLACE has a bit of its own.
    if flags & libc::MAP_FIXED == 0 { call() } else { changing([bytes(addr, len), NONE], Change::Unmaps, call) }
}

/// As mmap(2).
///
/// # Safety
/// As mmap(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mmap64(addr: Addr, len: size_t, prot: c_int, flags: c_int, fd: c_int, offset: off_t) -> Addr {
    // SAFETY: the caller's own call.
    unsafe { mmap(addr, len, prot, flags, fd, offset) }
}

/// As mremap(2). The C function is variadic; reading the fifth argument is safe even if the caller passed only four.
///
/// # Safety
/// As mremap(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mremap(old: Addr, old_len: size_t, new_len: size_t, flags: c_int, new: Addr) -> Addr {
    // SAFETY: the caller's own call.
    let call = || unsafe {
        match MREMAP.found() {
            Some(next) => next(old, old_len, new_len, flags, new),
            None => libc::syscall(libc::SYS_mremap, old, old_len, new_len, flags, new) as Addr,
        }
    };
    let target = if flags & libc::MREMAP_FIXED != 0 { bytes(new, new_len) } else { NONE };
    let source = if flags & libc::MREMAP_MAYMOVE != 0 {
        bytes(old, old_len)
    } else {
        // In place: only the end that is cut off changes, if any.
        bytes(
            old.wrapping_byte_add(new_len.checked_next_multiple_of(PAGE).unwrap_or(old_len)),
            old_len.saturating_sub(new_len),
        )
    };
    changing([source, target], Change::Unmaps, call)
}

/// As madvise(2).
///
/// # Safety
/// As madvise(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn madvise(addr: Addr, len: size_t, advice: c_int) -> c_int {
    // SAFETY: the caller's own call.
    let call = || unsafe {
        match MADVISE.found() {
            Some(next) => next(addr, len, advice),
            None => libc::syscall(libc::SYS_madvise, addr, len, advice) as c_int,
        }
    };
    if !removes_pages(advice) {
        return call();
    }
    changing([bytes(addr, len), NONE], Change::Empties, call)
}

/// As mprotect(2).
///
/// # Safety
/// As mprotect(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mprotect(addr: Addr, len: size_t, prot: c_int) -> c_int {
    // SAFETY: the caller's own call.
    let call = || unsafe {
        match MPROTECT.found() {
            Some(next) => next(addr, len, prot),
            None => libc::syscall(libc::SYS_mprotect, addr, len, prot) as c_int,
        }
    };
    changing([bytes(addr, len), NONE], Change::Empties, call)
}

/// As pkey_mprotect(2).
///
/// # Safety
/// As pkey_mprotect(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pkey_mprotect(addr: Addr, len: size_t, prot: c_int, key: c_int) -> c_int {
    // SAFETY: the caller's own call.
    let call = || unsafe {
        match PKEY_MPROTECT.found() {
            Some(next) => next(addr, len, prot, key),
            None => libc::syscall(libc::SYS_pkey_mprotect, addr, len, prot, key) as c_int,
        }
    };
    changing([bytes(addr, len), NONE], Change::Empties, call)
}

/// As shmdt(2).
///
/// # Safety
/// As shmdt(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shmdt(addr: *const c_void) -> c_int {
    // SAFETY: the caller's own call.
    let call = || unsafe {
        match SHMDT.found() {
            Some(next) => next(addr),
            None => libc::syscall(libc::SYS_shmdt, addr) as c_int,
        }
    };
    if !invalidate::needed() {
        return call();
    }
    let len = keeping_errno(|| shm::segment(addr as u64));
    changing([bytes(addr.cast_mut(), len as usize), NONE], Change::Unmaps, call)
}

/// As brk(2).
///
/// # Safety
/// As brk(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brk(addr: Addr) -> c_int {
    let Some(next) = BRK.found_or_look_up() else { return fail_enosys() };
    // SAFETY: the caller's own call.
    let call = || unsafe { next(addr) };
    changing([until_break(addr as u64), NONE], Change::Unmaps, call)
}

/// As sbrk(2).
///
/// # Safety
/// As sbrk(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sbrk(increment: isize) -> Addr {
    unsafe extern "C" {
        /// The C library's internal name: there is no such system call, and the C library must keep its record of the
        /// break.
        fn __sbrk(increment: isize) -> Addr;
    }
    // SAFETY: the caller's own call.
    let call = || unsafe {
        match SBRK.found() {
            Some(next) => next(increment),
            None => __sbrk(increment),
        }
    };
    if increment >= 0 || !invalidate::needed() {
        return call();
    }
    // SAFETY: only returns a number.
    let now = unsafe { libc::syscall(libc::SYS_brk, 0) } as u64;
    changing([now.saturating_add_signed(increment as i64)..now, NONE], Change::Unmaps, call)
}

/// As ioctl(2). A mapping has only one userfaultfd: if the program registers its own, Weir unregisters the range
/// first.
///
/// # Safety
/// As ioctl(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, argument: Addr) -> c_int {
    if request == userfault::UFFDIO_REGISTER && invalidate::needed() {
        // SAFETY: reads what the kernel reads: the first two numbers of a structure of four.
        let [start, len] = unsafe { argument.cast::<[u64; 2]>().read_unaligned() };
        keeping_errno(|| with_signals_blocked(|| userfault::yield_to_program(start..start.saturating_add(len))));
    }
    // SAFETY: the caller's own call.
    unsafe {
        match IOCTL.found() {
            Some(next) => next(fd, request, argument),
            None => libc::syscall(libc::SYS_ioctl, fd, request, argument) as c_int,
        }
    }
}

/// What a call does to its address range.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Change {
    /// Another mapping, or none, is there afterwards.
    Unmaps,
    /// The mapping stays; its pages are removed or their use changes.
    Empties,
}

const PAGE: usize = 4096;
const NONE: Range<u64> = 0..0;

/// Runs `call` within an invalidation of the addresses that it changes.
#[inline]
fn changing<T>(addresses: [Range<u64>; 2], change: Change, call: impl FnOnce() -> T) -> T {
    if invalidate::needed() { invalidating(addresses, change, call) } else { call() }
}

#[cold]
fn invalidating<T>(addresses: [Range<u64>; 2], change: Change, call: impl FnOnce() -> T) -> T {
    if !userfault::regions_are_ours() {
        // A child of a raw fork or clone system call: locks may be held forever there.
        return call();
    }
    with_signals_blocked(|| {
        let begin = |range: Range<u64>| {
            let guard = invalidate::begin(range.start, range.end - range.start);
            if guard.is_some() && change == Change::Unmaps {
                userfault::release(range);
            }
            guard
        };
        let guards = keeping_errno(|| caught(|| addresses.map(begin)));
        let result = call();
        keeping_errno(|| caught(|| drop(guards)));
        result
    })
}

fn bytes(addr: Addr, len: usize) -> Range<u64> {
    addr as u64..(addr as u64).saturating_add(len as u64)
}

/// The range between an address and the end of the heap.
fn until_break(addr: u64) -> Range<u64> {
    if !invalidate::needed() {
        return NONE;
    }
    // SAFETY: only returns a number.
    let now = unsafe { libc::syscall(libc::SYS_brk, 0) } as u64;
    if addr != 0 && addr < now { addr..now } else { NONE }
}

/// Whether this advice removes or replaces pages, now or later. <asm-generic/mman-common.h>
fn removes_pages(advice: c_int) -> bool {
    const COLLAPSE: c_int = 25;
    const DONTNEED_LOCKED: c_int = 24;
    const GUARD_INSTALL: c_int = 102;
    matches!(
        advice,
        libc::MADV_DONTNEED
            | libc::MADV_FREE
            | libc::MADV_REMOVE
            | libc::MADV_COLD
            | libc::MADV_PAGEOUT
            | libc::MADV_HWPOISON
            | libc::MADV_SOFT_OFFLINE
            | DONTNEED_LOCKED
            | COLLAPSE
            | GUARD_INSTALL
    )
}
