//! userfaultfd(2): events of memory that is unmapped, removed or moved. Definitions of `<linux/userfaultfd.h>`, and its
//! system calls; no faults are requested.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// The way in which the kernel permits opening a userfaultfd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opened {
    /// `/dev/userfaultfd`.
    Device,
    /// The system call, with privilege or `vm.unprivileged_userfaultfd`.
    SystemCall,
    /// The system call, for faults of user mode only. That suffices, as no faults are requested.
    UserModeOnly,
}

impl Opened {
    /// The name to show to users.
    pub fn name(self) -> &'static str {
        match self {
            Opened::Device => "/dev/userfaultfd",
            Opened::SystemCall => "userfaultfd(2)",
            Opened::UserModeOnly => "userfaultfd(2) with UFFD_USER_MODE_ONLY",
        }
    }
}

/// A change of covered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// `start..end` is not mapped any more. The thread that unmapped it waits until this is read.
    Unmap { start: u64, end: u64 },
    /// The pages of `start..end` are removed as soon as this is read.
    Remove { start: u64, end: u64 },
    /// The memory was moved, and is covered at the new address.
    Remap { from: u64, to: u64, len: u64 },
    /// An event that was not requested.
    Other,
}

/// A userfaultfd with events of unmapping, removal and moves.
pub struct Userfaultfd {
    fd: OwnedFd,
    /// Device and inode: an application that closes all descriptors may open another file with the same number.
    identity: (u64, u64),
}

impl Userfaultfd {
    /// Opens it in the first way that is permitted. Errors: that of the last way; EINVAL on a kernel without these
    /// events, EOPNOTSUPP on a kernel without the write-protect mode (before Linux 5.7).
    pub fn open() -> io::Result<(Userfaultfd, Opened)> {
        let (fd, opened) = from_device()
            .map(|fd| (fd, Opened::Device))
            .or_else(|_| from_call(0).map(|fd| (fd, Opened::SystemCall)))
            .or_else(|_| from_call(UFFD_USER_MODE_ONLY).map(|fd| (fd, Opened::UserModeOnly)))?;
        let mut api = Api { api: UFFD_API, features: FEATURES, ioctls: 0 };
        ioctl(fd.as_raw_fd(), UFFDIO_API, &mut api)?;
        if !has_write_protect_mode(api.features) {
            return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
        }
        let identity = identity(fd.as_raw_fd()).ok_or(io::Error::from_raw_os_error(libc::EBADF))?;
        Ok((Userfaultfd { fd, identity }, opened))
    }

    /// Requests events on `start..end`, whole pages; may be repeated. EBUSY if another userfaultfd covers the memory,
    /// EINVAL for memory that cannot be covered (files), ENOMEM if nothing is mapped there.
    pub fn register(&self, start: u64, end: u64) -> io::Result<()> {
        let mut register = Register { start, len: end - start, mode: UFFDIO_REGISTER_MODE_WP, ioctls: 0 };
        ioctl(self.raw(), UFFDIO_REGISTER, &mut register)
    }

    /// Requests no more events on `start..end`.
    pub fn unregister(&self, start: u64, end: u64) -> io::Result<()> {
        ioctl(self.raw(), UFFDIO_UNREGISTER, &mut Range { start, len: end - start })
    }

    /// Whether a change of covered memory is under way, with an event that has not been read: the memory may be gone, and
    /// may already be other memory of another thread.
    pub fn is_changing(&self) -> bool {
        // The kernel looks at this first of all, before it finds that the range is none.
        let mut nothing = WriteProtect { start: 0, len: 0, mode: 0 };
        let result = ioctl(self.raw(), UFFDIO_WRITEPROTECT, &mut nothing);
        result.is_err_and(|error| error.raw_os_error() == Some(libc::EAGAIN))
    }

    /// Returns whether the descriptor number still refers to the file that was opened.
    pub fn is_ours(&self) -> bool {
        identity(self.raw()) == Some(self.identity)
    }

    /// Reads the oldest event, which releases the thread that waits for it. `None` if there is none. Does not
    /// allocate.
    pub fn read(&self) -> io::Result<Option<Event>> {
        let mut message = [0u64; 4];
        // SAFETY: as many bytes as the array has.
        let read = unsafe { libc::read(self.raw(), message.as_mut_ptr().cast(), size_of::<[u64; 4]>()) };
        if read < 0 {
            let error = io::Error::last_os_error();
            return match error.raw_os_error() {
                Some(libc::EAGAIN | libc::EINTR) => Ok(None),
                _ => Err(error),
            };
        }
        let [head, a, b, c] = message;
        Ok(Some(match head as u8 {
            UFFD_EVENT_REMAP => Event::Remap { from: a, to: b, len: c },
            UFFD_EVENT_REMOVE => Event::Remove { start: a, end: b },
            UFFD_EVENT_UNMAP => Event::Unmap { start: a, end: b },
            _ => Event::Other,
        }))
    }

    /// The descriptor, which stays owned by this.
    pub fn raw(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

fn from_device() -> io::Result<OwnedFd> {
    let device = std::fs::File::options().read(true).write(true).open("/dev/userfaultfd")?;
    // SAFETY: an ioctl with an integer argument.
    owned(unsafe { libc::ioctl(device.as_raw_fd(), USERFAULTFD_IOC_NEW, libc::O_CLOEXEC | libc::O_NONBLOCK) })
}

fn from_call(flags: libc::c_int) -> io::Result<OwnedFd> {
    // SAFETY: a system call with an integer argument.
    let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, flags | libc::O_CLOEXEC | libc::O_NONBLOCK) };
    owned(fd as RawFd)
}

fn owned(fd: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: a new descriptor, which nothing else owns.
    if fd < 0 { Err(io::Error::last_os_error()) } else { Ok(unsafe { OwnedFd::from_raw_fd(fd) }) }
}

fn identity(fd: RawFd) -> Option<(u64, u64)> {
    // SAFETY: fills a structure of the right type, for which zeros are valid.
    unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        (libc::fstat(fd, &mut stat) == 0).then_some((stat.st_dev, stat.st_ino))
    }
}

/// Makes an ioctl with its structure.
fn ioctl<T>(fd: RawFd, request: libc::c_ulong, argument: &mut T) -> io::Result<()> {
    // A raw system call, because the library function may be interposed and lead back to Weir.
    // SAFETY: callers pass the structure of the request, and keep it alive.
    if unsafe { libc::syscall(libc::SYS_ioctl, fd, request, argument) } == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// The request by which a program registers memory with its own userfaultfd.
pub const UFFDIO_REGISTER: libc::c_ulong = request(3, 0x00, size_of::<Register>());
const UFFDIO_API: libc::c_ulong = request(3, 0x3f, size_of::<Api>());
const UFFDIO_UNREGISTER: libc::c_ulong = request(2, 0x01, size_of::<Range>());
const UFFDIO_WRITEPROTECT: libc::c_ulong = request(3, 0x06, size_of::<WriteProtect>());
const USERFAULTFD_IOC_NEW: libc::c_ulong = request(0, 0x00, 0);

/// _IO, _IOR (2) and _IOWR (3) of <asm/ioctl.h>.
const fn request(direction: libc::c_ulong, number: libc::c_ulong, size: usize) -> libc::c_ulong {
    direction << 30 | (size as libc::c_ulong) << 16 | UFFD_API << 8 | number
}

const UFFD_API: u64 = 0xaa;
const UFFD_USER_MODE_ONLY: libc::c_int = 1;
const UFFDIO_REGISTER_MODE_WP: u64 = 1 << 1;
const UFFD_EVENT_REMAP: u8 = 0x14;
const UFFD_EVENT_REMOVE: u8 = 0x15;
const UFFD_EVENT_UNMAP: u8 = 0x16;
/// Events of remapping, removal and unmapping. Not WP_ASYNC, which would permit files too: a registered mapping loses
/// fault-around, and populating 64 MiB of a shared file was measured to take 63 ms rather than 4 ms.
const FEATURES: u64 = 1 << 2 | 1 << 3 | 1 << 6;

/// Returns whether a kernel that offers these features registers memory in write-protect mode.
fn has_write_protect_mode(offered: u64) -> bool {
    const UFFD_FEATURE_PAGEFAULT_FLAG_WP: u64 = 1 << 0;
    offered & UFFD_FEATURE_PAGEFAULT_FLAG_WP != 0
}

#[repr(C)]
struct Api {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
struct Register {
    start: u64,
    len: u64,
    mode: u64,
    ioctls: u64,
}

#[repr(C)]
struct WriteProtect {
    start: u64,
    len: u64,
    mode: u64,
}

#[repr(C)]
struct Range {
    start: u64,
    len: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_with_events_but_no_write_protect_mode_is_refused() {
        // Linux 4.18 to 5.6: EVENT_FORK to SIGBUS. Linux 5.7: write-protection as well.
        assert!(!has_write_protect_mode(0x1fe) && has_write_protect_mode(0x1ff));
    }

    #[test]
    fn an_old_kernel_has_neither_the_device_nor_the_flag() {
        let opened = std::thread::spawn(|| {
            weir_stage::old_kernel::install(true).unwrap();
            (from_device().err(), from_call(UFFD_USER_MODE_ONLY).err())
        });
        let (device, call) = opened.join().unwrap();
        let invalid = call.as_ref().and_then(io::Error::raw_os_error) == Some(libc::EINVAL);
        assert!(device.is_some() && invalid, "{device:?} {call:?}");
    }
}
