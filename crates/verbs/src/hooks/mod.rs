//! The C library's functions that change what addresses mean, with invalidation of on-demand memory before them; and
//! those that end the process (`ends`).
//!
//! A program that is linked with this library calls ours instead of the C library's; one that opens the library later
//! calls the C library's, and `userfaultfd` is left (`weir_device::userfault`). Each of them goes on to whoever comes
//! next: another library that stands before the function, or the C library, whose code UCX changes in place.
//!
//! They may be called from anywhere: before this library was initialised, within malloc, in a signal handler. As long as
//! there is no on-demand region they cost one load. Afterwards they allocate nothing, let no signal handler in while they
//! hold a lock, and leave errno as the call itself has set it.

mod ends;
mod next;
mod shm;
mod signals;

use libc::{c_int, c_ulong, c_void, off_t, size_t};
use next::Next;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
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

/// Looks for the next ones when the library is loaded, and not within malloc or a signal handler.
#[used]
#[unsafe(link_section = ".init_array")]
static LOOK: extern "C" fn() = look;

extern "C" fn look() {
    MUNMAP.look();
    MMAP.look();
    MREMAP.look();
    MADVISE.look();
    MPROTECT.look();
    PKEY_MPROTECT.look();
    SHMDT.look();
    BRK.look();
    SBRK.look();
    IOCTL.look();
    ends::look();
    signals::look();
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

/// As mmap(2): MAP_FIXED takes the place of what is there.
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
    // MAP_FIXED_NOREPLACE has a bit of its own.
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

/// As mremap(2). The new address is there to be read, if need be, in a register or on the stack like any argument.
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
    let there = if flags & libc::MREMAP_FIXED != 0 { bytes(new, new_len) } else { NONE };
    let here = if flags & libc::MREMAP_MAYMOVE != 0 {
        bytes(old, old_len)
    } else {
        // In place: what is cut off, if anything.
        bytes(
            old.wrapping_byte_add(new_len.checked_next_multiple_of(PAGE).unwrap_or(old_len)),
            old_len.saturating_sub(new_len),
        )
    };
    changing([here, there], Change::Unmaps, call)
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
    if !takes_pages(advice) {
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
    let Some(next) = BRK.found_or_look() else { return refused() };
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
        /// The C library's own name for it: there is no system call, and its idea of the break must stay true.
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
    // SAFETY: asks for a number.
    let now = unsafe { libc::syscall(libc::SYS_brk, 0) } as u64;
    changing([now.saturating_add_signed(increment as i64)..now, NONE], Change::Unmaps, call)
}

/// As ioctl(2). One mapping has one userfaultfd: where the program wants its own, ours makes room.
///
/// # Safety
/// As ioctl(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, argument: Addr) -> c_int {
    if request == userfault::UFFDIO_REGISTER && invalidate::needed() {
        // SAFETY: as the kernel would read it: two numbers, of a structure of four.
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

/// What a call does to its addresses.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Change {
    /// What is there afterwards, if anything, is another mapping.
    Unmaps,
    /// The mapping stays; its pages go, or may be used otherwise.
    Empties,
}

const PAGE: usize = 4096;
const NONE: Range<u64> = 0..0;

/// Calls, with the invalidation of what it changes around it.
#[inline]
fn changing<T>(addresses: [Range<u64>; 2], change: Change, call: impl FnOnce() -> T) -> T {
    if invalidate::needed() { invalidating(addresses, change, call) } else { call() }
}

#[cold]
fn invalidating<T>(addresses: [Range<u64>; 2], change: Change, call: impl FnOnce() -> T) -> T {
    if !userfault::regions_are_ours() {
        // A child that was forked past the C library: locks may be held there for ever.
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

/// The program's own call goes on after a panic; the adapters do not.
fn caught<T>(work: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(work)).inspect_err(|_| weir_device::panicked()).ok()
}

fn bytes(addr: Addr, len: usize) -> Range<u64> {
    addr as u64..(addr as u64).saturating_add(len as u64)
}

/// What lies between an address and the end of the heap.
fn until_break(addr: u64) -> Range<u64> {
    if !invalidate::needed() {
        return NONE;
    }
    // SAFETY: asks for a number.
    let now = unsafe { libc::syscall(libc::SYS_brk, 0) } as u64;
    if addr != 0 && addr < now { addr..now } else { NONE }
}

/// Advice after which pages are not, or may soon not be, what they were. <asm-generic/mman-common.h>
fn takes_pages(advice: c_int) -> bool {
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

fn refused() -> c_int {
    // SAFETY: this thread's own errno.
    unsafe { *libc::__errno_location() = libc::ENOSYS };
    -1
}

fn keeping_errno<T>(work: impl FnOnce() -> T) -> T {
    // SAFETY: this thread's own errno.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let before = unsafe { *errno };
    let result = work();
    // SAFETY: as above.
    unsafe { *errno = before };
    result
}

/// A handler of the program may call us; faults stay open, for the guarded copy needs them.
fn with_signals_blocked<T>(work: impl FnOnce() -> T) -> T {
    // SAFETY: masks on the stack, which the calls fill.
    let before = unsafe {
        let mut all = MaybeUninit::<libc::sigset_t>::uninit();
        let mut before = MaybeUninit::<libc::sigset_t>::uninit();
        libc::sigfillset(all.as_mut_ptr());
        for fault in [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL] {
            libc::sigdelset(all.as_mut_ptr(), fault);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
        before.assume_init()
    };
    let result = work();
    // SAFETY: the mask that was.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut()) };
    result
}
