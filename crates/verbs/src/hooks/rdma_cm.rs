//! The C library's functions that use rdma_cm files (`weir_rdmacm`): write runs a command, fstat shows a character
//! device, close and the dup family keep track of the descriptors.
//!
//! They may be called at any time, for any descriptor. As long as no rdma_cm file is open they cost one load.

use super::errno::{fail_enosys, keeping_errno};
use super::guarded::with_signals_blocked;
use super::next::Next;
use crate::ffi::{guard, set_errno};
use crate::log;
use crate::shortage::explain;
use libc::{c_int, c_long, c_void, size_t, ssize_t};
use weir_device::{Errno, descriptors};
use weir_rdmacm::{DEVICE_NUMBER, Written};

type Stat = *mut libc::stat;

static WRITE: Next<unsafe extern "C-unwind" fn(c_int, *const c_void, size_t) -> ssize_t> = Next::new(c"write");
static CLOSE: Next<unsafe extern "C-unwind" fn(c_int) -> c_int> = Next::new(c"close");
static FSTAT: Next<unsafe extern "C" fn(c_int, Stat) -> c_int> = Next::new(c"fstat");
static FXSTAT: Next<unsafe extern "C" fn(c_int, c_int, Stat) -> c_int> = Next::new(c"__fxstat");
static DUP: Next<unsafe extern "C" fn(c_int) -> c_int> = Next::new(c"dup");
static DUP2: Next<unsafe extern "C" fn(c_int, c_int) -> c_int> = Next::new(c"dup2");
static DUP3: Next<unsafe extern "C" fn(c_int, c_int, c_int) -> c_int> = Next::new(c"dup3");
static FCNTL: Next<unsafe extern "C-unwind" fn(c_int, c_int, c_long) -> c_int> = Next::new(c"fcntl");

/// Looks up the next definition of each function.
pub(super) fn look_up() {
    WRITE.look_up();
    CLOSE.look_up();
    FSTAT.look_up();
    FXSTAT.look_up();
    DUP.look_up();
    DUP2.look_up();
    DUP3.look_up();
    FCNTL.look_up();
}

/// Opens an rdma_cm file, for the hook that opens paths. Returns a descriptor, or -1 and errno.
pub(super) fn open(flags: c_int) -> c_int {
    static NUMBER_OF: fn(&weir_device::DeviceInfo) -> u32 = |info| crate::device::number_of(info) as u32;
    let opened = guard(Err(Errno(libc::EIO)), || {
        log::start();
        weir_rdmacm::set_device_number(&NUMBER_OF);
        weir_rdmacm::open(flags).inspect_err(explain)
    });
    opened.unwrap_or_else(|errno| {
        set_errno(errno);
        -1
    })
}

/// As write(2). A cancelled thread unwinds from here, so this function and its callee have nothing with a destructor
/// while they wait.
///
/// # Safety
/// As write(2).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn write(fd: c_int, bytes: *const c_void, len: size_t) -> ssize_t {
    if let Some(inode) = weir_rdmacm::inode_of(fd) {
        // SAFETY: guaranteed by the caller.
        return unsafe { command(fd, inode, bytes, len) };
    }
    // SAFETY: the caller's own call.
    unsafe {
        match WRITE.found() {
            Some(next) => next(fd, bytes, len),
            None => libc::syscall(libc::SYS_write, fd, bytes, len) as ssize_t,
        }
    }
}

/// # Safety
/// As write(2), for an rdma_cm file.
#[cold]
unsafe extern "C-unwind" fn command(fd: c_int, inode: u64, bytes: *const c_void, len: size_t) -> ssize_t {
    let mut waited = false;
    loop {
        let written = guard(Err(Errno(libc::EIO)), || {
            // SAFETY: guaranteed by the caller.
            let written = || unsafe { weir_rdmacm::write(fd, inode, bytes.cast(), len) };
            keeping_errno(|| with_signals_blocked(|| written().inspect_err(explain)))
        });
        match written {
            Ok(Written::Done(len)) => return len as ssize_t,
            // Another thread has closed the file meanwhile. In the kernel this thread still waits, and rping relies on
            // it: its thread for events would report an error while the program ends.
            // SAFETY: waits for a signal.
            Err(Errno(libc::EBADF)) if waited => return unsafe { pause() } as ssize_t,
            Err(errno) => {
                set_errno(errno);
                return -1;
            }
            // SAFETY: a descriptor of the program.
            Ok(Written::Wait) => match unsafe { wait(fd) } {
                1.. => waited = true,
                // As above.
                // SAFETY: waits for a signal.
                0 => return unsafe { pause() } as ssize_t,
                failed => return failed,
            },
        }
    }
}

unsafe extern "C-unwind" {
    // The libc crate declares it as a function that does not unwind; a cancelled thread does unwind from it.
    fn recv(fd: c_int, to: *mut c_void, len: size_t, flags: c_int) -> ssize_t;
    fn pause() -> c_int;
}

/// Waits until there is an event. As the kernel does: EAGAIN if the program has made the descriptor non-blocking, EINTR
/// or a restart after a signal, and a cancellation point.
unsafe extern "C-unwind" fn wait(fd: c_int) -> ssize_t {
    let mut byte = 0u8;
    // SAFETY: one byte of the stack; the byte stays in the socket.
    unsafe { recv(fd, (&raw mut byte).cast(), 1, libc::MSG_PEEK) }
}

/// As close(2).
///
/// # Safety
/// As close(2).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn close(fd: c_int) -> c_int {
    // For the program the number is not open. Weir itself forgets a descriptor before it closes it.
    if keeping_errno(|| descriptors::is_spared(fd)) {
        set_errno(Errno(libc::EBADF));
        return -1;
    }
    let inode = weir_rdmacm::before_close(fd);
    // SAFETY: the caller's own call.
    let result = unsafe {
        match CLOSE.found() {
            Some(next) => next(fd),
            None => libc::syscall(libc::SYS_close, fd) as c_int,
        }
    };
    if let Some(inode) = inode {
        keeping_errno(|| with_signals_blocked(|| guard((), || weir_rdmacm::closed(inode))));
    }
    result
}

/// As fstat(2).
///
/// # Safety
/// As fstat(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fstat(fd: c_int, to: Stat) -> c_int {
    // SAFETY: the caller's own call.
    let result = unsafe {
        match FSTAT.found() {
            Some(next) => next(fd, to),
            None => libc::syscall(libc::SYS_fstat, fd, to) as c_int,
        }
    };
    // SAFETY: filled by the call.
    unsafe { show_device(fd, to, result) }
}

/// As fstat(2). On 64-bit machines there is one structure.
///
/// # Safety
/// As fstat(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fstat64(fd: c_int, to: Stat) -> c_int {
    // SAFETY: the caller's own call.
    unsafe { fstat(fd, to) }
}

/// As fstat(2), where the C library's header calls it.
///
/// # Safety
/// As fstat(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __fxstat(version: c_int, fd: c_int, to: Stat) -> c_int {
    // SAFETY: the caller's own call.
    let result = unsafe { FXSTAT.found().map_or_else(fail_enosys, |next| next(version, fd, to)) };
    // SAFETY: filled by the call.
    unsafe { show_device(fd, to, result) }
}

/// As fstat(2), where the C library's header calls it.
///
/// # Safety
/// As fstat(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __fxstat64(version: c_int, fd: c_int, to: Stat) -> c_int {
    // SAFETY: the caller's own call.
    unsafe { __fxstat(version, fd, to) }
}

/// An rdma_cm file is a character device.
///
/// # Safety
/// `to` was filled if `result` is 0.
unsafe fn show_device(fd: c_int, to: Stat, result: c_int) -> c_int {
    if result == 0 && weir_rdmacm::inode_of(fd).is_some() {
        let (major, minor) = DEVICE_NUMBER;
        // SAFETY: guaranteed by the caller.
        unsafe {
            (*to).st_mode = libc::S_IFCHR | 0o666;
            (*to).st_rdev = libc::makedev(major, minor);
        }
    }
    result
}

/// As dup(2).
///
/// # Safety
/// As dup(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup(fd: c_int) -> c_int {
    // SAFETY: the caller's own call.
    let new = unsafe { DUP.found().map_or_else(|| libc::syscall(libc::SYS_dup, fd) as c_int, |next| next(fd)) };
    duplicated(fd, new)
}

/// As dup2(2).
///
/// # Safety
/// As dup2(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup2(fd: c_int, to: c_int) -> c_int {
    // SAFETY: the caller's own call.
    replaced(fd, to, || unsafe { DUP2.found().map_or_else(fail_enosys, |next| next(fd, to)) })
}

/// As dup3(2).
///
/// # Safety
/// As dup3(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup3(fd: c_int, to: c_int, flags: c_int) -> c_int {
    // SAFETY: the caller's own call.
    replaced(fd, to, || unsafe {
        DUP3.found().map_or_else(|| libc::syscall(libc::SYS_dup3, fd, to, flags) as c_int, |next| next(fd, to, flags))
    })
}

/// As fcntl(2). The C function is variadic; reading the third argument is safe even if the caller passed only two.
///
/// # Safety
/// As fcntl(2).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn fcntl(fd: c_int, command: c_int, argument: c_long) -> c_int {
    // SAFETY: the caller's own call.
    let result = unsafe {
        match FCNTL.found() {
            Some(next) => next(fd, command, argument),
            None => libc::syscall(libc::SYS_fcntl, fd, command, argument) as c_int,
        }
    };
    if matches!(command, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC) { duplicated(fd, result) } else { result }
}

/// As fcntl(2).
///
/// # Safety
/// As fcntl(2).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn fcntl64(fd: c_int, command: c_int, argument: c_long) -> c_int {
    // SAFETY: the caller's own call.
    unsafe { fcntl(fd, command, argument) }
}

/// A descriptor was duplicated, unless `to` is negative.
fn duplicated(from: c_int, to: c_int) -> c_int {
    if to >= 0 && weir_rdmacm::inode_of(from).is_some() {
        keeping_errno(|| weir_rdmacm::duplicated(from, to));
    }
    to
}

/// A call that closes `to` first, if it is open and another descriptor.
fn replaced(from: c_int, to: c_int, call: impl FnOnce() -> c_int) -> c_int {
    // As the kernel does while another thread opens a file of this number.
    if from != to && keeping_errno(|| descriptors::is_spared(to)) {
        set_errno(Errno(libc::EBUSY));
        return -1;
    }
    let before = if from == to { None } else { weir_rdmacm::inode_of(to) };
    let result = call();
    if let Some(inode) = before.filter(|_| result >= 0) {
        keeping_errno(|| with_signals_blocked(|| guard((), || weir_rdmacm::closed(inode))));
    }
    duplicated(from, result)
}
