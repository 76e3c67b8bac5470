//! The descriptors of rdma_cm files: one end of a pair of sockets. The other end makes it readable, and tells when the
//! last descriptor of a file is closed, in whatever way and process.
//!
//! A table says which descriptor numbers may be such files. The interposed functions look there, without a lock and at
//! any time. The inode of the socket tells whether the number still stands for the file: the program may have closed it
//! by a system call that Weir does not see.

use crate::events::Signal;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use weir_device::{Errno, descriptors};

/// The inode of the file that a descriptor number stands for, 0 for other files. Pages of the table without a file take
/// no memory.
static INODES: [AtomicU64; NUMBERS] = [const { AtomicU64::new(0) }; NUMBERS];
/// The default of fs.nr_open.
const NUMBERS: usize = 1 << 20;
/// The process that entered a descriptor last.
static OWNER: AtomicU32 = AtomicU32::new(0);
/// Entries of the table.
static OPEN: AtomicUsize = AtomicUsize::new(0);

/// The inode of the file that a descriptor stands for, if it is an rdma_cm file. One load if there are none.
#[inline]
pub fn inode_of(descriptor: RawFd) -> Option<u64> {
    if OPEN.load(Ordering::Relaxed) == 0 { None } else { look(descriptor) }
}

#[cold]
fn look(descriptor: RawFd) -> Option<u64> {
    let entry = INODES.get(usize::try_from(descriptor).ok()?)?;
    let inode = entry.load(Ordering::Acquire);
    if inode == 0 {
        return None;
    }
    if socket_inode(descriptor) == Some(inode) {
        return Some(inode);
    }
    // The number stands for another file now.
    forget_if(entry, inode);
    None
}

/// A new descriptor stands for the same file as an old one, if that is an rdma_cm file.
pub fn duplicated(from: RawFd, to: RawFd) {
    if let Some(inode) = inode_of(from) {
        enter(to, inode);
    }
}

/// A descriptor is about to be closed. Returns the inode of its file, if that is an rdma_cm file.
pub fn closing(descriptor: RawFd) -> Option<u64> {
    let inode = inode_of(descriptor)?;
    forget_if(&INODES[descriptor as usize], inode);
    Some(inode)
}

fn enter(descriptor: RawFd, inode: u64) {
    let Some(entry) = usize::try_from(descriptor).ok().and_then(|number| INODES.get(number)) else {
        tracing::error!(
            "descriptor {descriptor} cannot be an rdma_cm file: its number is too large. Lower `ulimit -n`"
        );
        return;
    };
    OWNER.store(std::process::id(), Ordering::Relaxed);
    if entry.swap(inode, Ordering::AcqRel) == 0 {
        OPEN.fetch_add(1, Ordering::Relaxed);
    }
}

/// A child of vfork has descriptors of its own, but its parent's memory: what it closes is still open in the parent.
/// An entry that stays is harmless, because the inode tells what a number stands for.
fn forget_if(entry: &AtomicU64, inode: u64) {
    if OWNER.load(Ordering::Relaxed) != std::process::id() {
        return;
    }
    if entry.compare_exchange(inode, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
        OPEN.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The inode of a socket; `None` for other files. A raw system call, because the program calls this library's `fstat`.
fn socket_inode(descriptor: RawFd) -> Option<u64> {
    // SAFETY: plain integers, for which zero is valid; the kernel fills the structure.
    let mut about: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: a structure on the stack. On 64-bit machines that of the C library is the kernel's.
    let result = unsafe { libc::syscall(libc::SYS_fstat, descriptor, &raw mut about) };
    (result == 0 && about.st_mode & libc::S_IFMT == libc::S_IFSOCK).then_some(about.st_ino)
}

/// Makes a file's descriptor for the program, and the end by which it is made readable. `flags`: those of open(2);
/// O_CLOEXEC and O_NONBLOCK count.
pub fn open(flags: i32) -> Result<(RawFd, u64, OwnedFd), Errno> {
    let _opening = descriptors::DescriptorGuard::begin();
    let (program, own) = UnixStream::pair()?;
    // SAFETY: flags of descriptors of this function.
    unsafe {
        if flags & libc::O_CLOEXEC == 0 {
            libc::fcntl(program.as_raw_fd(), libc::F_SETFD, 0);
        }
        if flags & libc::O_NONBLOCK != 0 {
            libc::fcntl(program.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK);
        }
    }
    own.set_nonblocking(true)?;
    let inode = socket_inode(program.as_raw_fd()).ok_or(Errno(libc::EMFILE))?;
    descriptors::register(&[own.as_raw_fd()]);
    let descriptor = program.into_raw_fd();
    if descriptor as usize >= NUMBERS {
        // SAFETY: the descriptor was just made.
        drop(unsafe { OwnedFd::from_raw_fd(descriptor) });
        return Err(Errno(libc::EMFILE));
    }
    enter(descriptor, inode);
    Ok((descriptor, inode, own.into()))
}

/// Bytes that wait in a file's socket, so that the program's poll finds it readable. There is one for each event, up to
/// this number: a program that uses edge-triggered epoll sees each of the first events.
const MOST_BYTES: usize = 64;

/// The end that makes a file readable.
pub struct Readable {
    own: OwnedFd,
    /// A descriptor of the program for the file: that of the last command.
    descriptor: RawFd,
    inode: u64,
    bytes: usize,
}

impl Readable {
    /// The file has no events yet.
    pub fn new(own: OwnedFd, descriptor: RawFd, inode: u64) -> Readable {
        Readable { own, descriptor, inode, bytes: 0 }
    }
}

impl Signal for Readable {
    fn used_by(&mut self, descriptor: RawFd) {
        self.descriptor = descriptor;
    }

    fn show(&mut self, count: usize) {
        let wanted = count.min(MOST_BYTES);
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        while self.bytes < wanted {
            // SAFETY: one byte of a constant.
            let sent = unsafe { libc::send(self.own.as_raw_fd(), [1u8].as_ptr().cast(), 1, flags) };
            if sent != 1 {
                return;
            }
            self.bytes += 1;
        }
        while self.bytes > wanted {
            let mut bytes = [0u8; MOST_BYTES];
            let len = self.bytes - wanted;
            // The program's end of the pair, if its number still stands for it.
            if socket_inode(self.descriptor) != Some(self.inode) {
                return;
            }
            // SAFETY: room for `len` bytes, which is at most `MOST_BYTES`.
            let got = unsafe { libc::recv(self.descriptor, bytes.as_mut_ptr().cast(), len, flags) };
            match usize::try_from(got) {
                Ok(got @ 1..) => self.bytes -= got,
                _ => return,
            }
        }
    }
}

impl Drop for Readable {
    fn drop(&mut self) {
        descriptors::forget(&[self.own.as_raw_fd()]);
        // No descriptor stands for the file any more, or this number does not.
        if let Some(entry) = usize::try_from(self.descriptor).ok().and_then(|number| INODES.get(number)) {
            forget_if(entry, self.inode);
        }
    }
}

/// Returns whether no descriptor of the program stands for a file any more.
pub fn is_closed(own: RawFd) -> bool {
    let mut poll = libc::pollfd { fd: own, events: 0, revents: 0 };
    // SAFETY: a structure on the stack. A raw system call, because the C library's function is a cancellation point.
    let result = unsafe {
        let nowait = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        libc::syscall(libc::SYS_ppoll, &raw mut poll, 1, &raw const nowait, std::ptr::null::<libc::sigset_t>(), 0)
    };
    result == 1 && poll.revents & libc::POLLHUP != 0
}
