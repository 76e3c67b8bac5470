//! The C library's functions of sockets, for sockets of NETLINK_RDMA: a kernel without RDMA modules does not have
//! them, and UCX prints errors. Weir answers in the kernel's place ([`crate::netlink`]).
//!
//! Such a socket is one of a pair. What the program sends is answered at once, within its call. All other sockets cost
//! one load.

use super::errno::{fail_enosys, keeping_errno};
use super::guarded::{caught, with_signals_blocked};
use super::next::Next;
use crate::netlink;
use libc::{c_int, c_void, iovec, msghdr, size_t, sockaddr, sockaddr_nl, socklen_t, ssize_t};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use weir_device::{PerProcess, Uncancelled};

const NETLINK_RDMA: c_int = 20;
/// The longest request that is answered, bytes.
const LONGEST: usize = 16 << 10;

type Options = unsafe extern "C" fn(c_int, c_int, c_int, *const c_void, socklen_t) -> c_int;
type SendTo = unsafe extern "C-unwind" fn(c_int, *const c_void, size_t, c_int, *const sockaddr, socklen_t) -> ssize_t;
type ReceiveFrom =
    unsafe extern "C-unwind" fn(c_int, *mut c_void, size_t, c_int, *mut sockaddr, *mut socklen_t) -> ssize_t;

static SOCKET: Next<unsafe extern "C" fn(c_int, c_int, c_int) -> c_int> = Next::new(c"socket");
static BIND: Next<unsafe extern "C" fn(c_int, *const sockaddr, socklen_t) -> c_int> = Next::new(c"bind");
static GETSOCKNAME: Next<unsafe extern "C" fn(c_int, *mut sockaddr, *mut socklen_t) -> c_int> =
    Next::new(c"getsockname");
static SETSOCKOPT: Next<Options> = Next::new(c"setsockopt");
static SEND: Next<unsafe extern "C-unwind" fn(c_int, *const c_void, size_t, c_int) -> ssize_t> = Next::new(c"send");
static SENDTO: Next<SendTo> = Next::new(c"sendto");
static SENDMSG: Next<unsafe extern "C-unwind" fn(c_int, *const msghdr, c_int) -> ssize_t> = Next::new(c"sendmsg");
static RECVFROM: Next<ReceiveFrom> = Next::new(c"recvfrom");
static RECVMSG: Next<unsafe extern "C-unwind" fn(c_int, *mut msghdr, c_int) -> ssize_t> = Next::new(c"recvmsg");

/// The number of one such socket of this process, or -1; -2 if there have been several.
static ONE: AtomicI32 = AtomicI32::new(-1);
const SEVERAL: RawFd = -2;

/// A socket of the program, with the other end of its pair.
struct Pair {
    program: RawFd,
    /// The program may have closed its end: then another file may have the number.
    inode: u64,
    kernel: OwnedFd,
}

static PAIRS: PerProcess<Mutex<Vec<Pair>>> = PerProcess::new();

/// Looks up the next definitions.
pub(super) fn look_up() {
    SOCKET.look_up();
    BIND.look_up();
    GETSOCKNAME.look_up();
    SETSOCKOPT.look_up();
    SEND.look_up();
    SENDTO.look_up();
    SENDMSG.look_up();
    RECVFROM.look_up();
    RECVMSG.look_up();
}

/// As socket(2).
///
/// # Safety
/// As socket(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    let Some(next) = SOCKET.found_or_look_up() else { return fail_enosys() };
    // The kernel would tell of its own devices, if it has any, and this library does not show those.
    if domain == libc::AF_NETLINK && protocol == NETLINK_RDMA {
        let _uncancelled = Uncancelled::new();
        let flags = kind & (libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK);
        if let Some(socket) = keeping_errno(|| with_signals_blocked(|| caught(|| pair(flags)).flatten())) {
            return socket;
        }
    }
    // SAFETY: the caller's own call.
    unsafe { next(domain, kind, protocol) }
}

/// A new pair; `None` if there are no descriptors.
fn pair(flags: c_int) -> Option<RawFd> {
    let mut ends = [-1; 2];
    // SAFETY: fills both ends, which are owned from here on.
    let (program, kernel) = unsafe {
        if libc::socketpair(libc::AF_UNIX, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0, ends.as_mut_ptr()) != 0 {
            return None;
        }
        (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1]))
    };
    // SAFETY: sets flags of a descriptor.
    unsafe {
        if flags & libc::SOCK_CLOEXEC == 0 {
            libc::fcntl(program.as_raw_fd(), libc::F_SETFD, 0);
        }
        if flags & libc::SOCK_NONBLOCK != 0 {
            libc::fcntl(program.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK);
        }
    }
    let inode = inode(program.as_raw_fd())?;
    let program = std::os::fd::IntoRawFd::into_raw_fd(program);
    let mut pairs = pairs();
    pairs.retain(|pair| self::inode(pair.program) == Some(pair.inode));
    pairs.push(Pair { program, inode, kernel });
    ONE.store(if pairs.len() == 1 { program } else { SEVERAL }, Ordering::Release);
    Some(program)
}

fn pairs() -> MutexGuard<'static, Vec<Pair>> {
    PAIRS.get().lock().unwrap_or_else(PoisonError::into_inner)
}

fn inode(descriptor: RawFd) -> Option<u64> {
    // SAFETY: zeros are a valid stat; the call fills it.
    unsafe {
        let mut found: libc::stat = std::mem::zeroed();
        (libc::fstat(descriptor, &mut found) == 0).then_some(found.st_ino)
    }
}

/// Whether a descriptor is such a socket.
#[inline]
fn is_ours(descriptor: c_int) -> bool {
    match ONE.load(Ordering::Acquire) {
        -1 => false,
        SEVERAL => looked_up(descriptor),
        one => one == descriptor && looked_up(descriptor),
    }
}

#[cold]
fn looked_up(descriptor: c_int) -> bool {
    let found = || pairs().iter().any(|pair| pair.program == descriptor && inode(descriptor) == Some(pair.inode));
    keeping_errno(|| with_signals_blocked(|| caught(found))).unwrap_or(false)
}

/// As bind(2).
///
/// # Safety
/// As bind(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bind(socket: c_int, address: *const sockaddr, len: socklen_t) -> c_int {
    match BIND.found_or_look_up() {
        _ if is_ours(socket) => 0,
        // SAFETY: the caller's own call.
        Some(next) => unsafe { next(socket, address, len) },
        None => fail_enosys(),
    }
}

/// As getsockname(2).
///
/// # Safety
/// As getsockname(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getsockname(socket: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int {
    // SAFETY: the caller's own call and arguments.
    unsafe {
        match GETSOCKNAME.found_or_look_up() {
            _ if is_ours(socket) => {
                put_address(address, len, std::process::id());
                0
            }
            Some(next) => next(socket, address, len),
            None => fail_enosys(),
        }
    }
}

/// As setsockopt(2).
///
/// # Safety
/// As setsockopt(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn setsockopt(
    socket: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> c_int {
    match SETSOCKOPT.found_or_look_up() {
        _ if level == libc::SOL_NETLINK && is_ours(socket) => 0,
        // SAFETY: the caller's own call.
        Some(next) => unsafe { next(socket, level, name, value, len) },
        None => fail_enosys(),
    }
}

/// As send(2).
///
/// # Safety
/// As send(2).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn send(socket: c_int, bytes: *const c_void, len: size_t, flags: c_int) -> ssize_t {
    // SAFETY: the caller's own call and arguments.
    unsafe {
        match SEND.found_or_look_up() {
            _ if is_ours(socket) => take(socket, &[iovec { iov_base: bytes.cast_mut(), iov_len: len }]),
            Some(next) => next(socket, bytes, len, flags),
            None => fail_enosys() as ssize_t,
        }
    }
}

/// As sendto(2).
///
/// # Safety
/// As sendto(2).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn sendto(
    socket: c_int,
    bytes: *const c_void,
    len: size_t,
    flags: c_int,
    address: *const sockaddr,
    address_len: socklen_t,
) -> ssize_t {
    // SAFETY: the caller's own call and arguments.
    unsafe {
        match SENDTO.found_or_look_up() {
            _ if is_ours(socket) => take(socket, &[iovec { iov_base: bytes.cast_mut(), iov_len: len }]),
            Some(next) => next(socket, bytes, len, flags, address, address_len),
            None => fail_enosys() as ssize_t,
        }
    }
}

/// As sendmsg(2).
///
/// # Safety
/// As sendmsg(2).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn sendmsg(socket: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    // SAFETY: the caller's own call and arguments.
    unsafe {
        match SENDMSG.found_or_look_up() {
            _ if is_ours(socket) => {
                let message = &*message;
                take(socket, std::slice::from_raw_parts(message.msg_iov, message.msg_iovlen))
            }
            Some(next) => next(socket, message, flags),
            None => fail_enosys() as ssize_t,
        }
    }
}

/// As recvfrom(2).
///
/// # Safety
/// As recvfrom(2).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn recvfrom(
    socket: c_int,
    bytes: *mut c_void,
    len: size_t,
    flags: c_int,
    address: *mut sockaddr,
    address_len: *mut socklen_t,
) -> ssize_t {
    let Some(next) = RECVFROM.found_or_look_up() else { return fail_enosys() as ssize_t };
    // SAFETY: the caller's own call and arguments. The kernel writes the length of the address, so its room is read
    // before.
    unsafe {
        if address.is_null() || address_len.is_null() || !is_ours(socket) {
            return next(socket, bytes, len, flags, address, address_len);
        }
        let room = *address_len;
        let received = next(socket, bytes, len, flags, address, address_len);
        if received >= 0 {
            *address_len = room;
            put_address(address, address_len, 0);
        }
        received
    }
}

/// As recvmsg(2).
///
/// # Safety
/// As recvmsg(2).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn recvmsg(socket: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    let Some(next) = RECVMSG.found_or_look_up() else { return fail_enosys() as ssize_t };
    // SAFETY: the caller's own call and arguments. The kernel writes the length of the name, so its room is read before.
    unsafe {
        if !is_ours(socket) {
            return next(socket, message, flags);
        }
        let room = (*message).msg_namelen;
        let received = next(socket, message, flags);
        if received >= 0 && !(*message).msg_name.is_null() {
            (*message).msg_namelen = room;
            put_address((*message).msg_name.cast(), &raw mut (*message).msg_namelen, 0);
        }
        received
    }
}

/// Writes the netlink address of a port, as far as there is room.
///
/// # Safety
/// `address` has `*len` writable bytes.
unsafe fn put_address(address: *mut sockaddr, len: *mut socklen_t, port: u32) {
    // SAFETY: zeros are a valid address; guaranteed by the caller.
    unsafe {
        let mut own: sockaddr_nl = std::mem::zeroed();
        own.nl_family = libc::AF_NETLINK as libc::sa_family_t;
        own.nl_pid = port;
        let size = size_of_val(&own);
        let room = (*len as usize).min(size);
        address.cast::<u8>().copy_from_nonoverlapping((&raw const own).cast(), room);
        *len = size as socklen_t;
    }
}

/// Takes a request, and queues the answers at the program's end.
///
/// # Safety
/// The parts are readable.
unsafe fn take(socket: c_int, parts: &[iovec]) -> ssize_t {
    let _uncancelled = Uncancelled::new();
    let work = || {
        let mut request = vec![];
        for part in parts {
            // SAFETY: guaranteed by the caller.
            let bytes = unsafe { std::slice::from_raw_parts(part.iov_base.cast::<u8>(), part.iov_len) };
            request.extend(bytes.iter().take(LONGEST - request.len()));
        }
        let devices = weir_device::devices().unwrap_or_default();
        let answers = netlink::answer(&request, std::process::id(), &devices);
        if let Some(pair) = pairs().iter().find(|pair| pair.program == socket) {
            for answer in answers {
                let (bytes, flags) = (answer.as_ptr(), libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL);
                // SAFETY: valid bytes. A program that reads no answers loses them, as with the kernel.
                unsafe { libc::syscall(libc::SYS_sendto, pair.kernel.as_raw_fd(), bytes, answer.len(), flags, 0, 0) };
            }
        }
        parts.iter().map(|part| part.iov_len).sum::<usize>()
    };
    let taken = keeping_errno(|| with_signals_blocked(|| caught(work)));
    taken.map_or_else(|| fail_enosys() as ssize_t, |len| len as ssize_t)
}
