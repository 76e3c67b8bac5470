//! Memory of a fixed size that other processes can map: a sealed memfd, and its mapping.
//!
//! The seals keep other processes from shrinking the file under a mapping, which would raise SIGBUS. A file of another
//! kind than a memfd of ordinary pages is refused: huge pages may run out at an access. Another process that has the
//! file may change every byte at any time, so readers check what they read after they have copied it.

use std::ffi::{CStr, c_void};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;

const SEALS: i32 = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
/// Linux 6.3: the memory can never be made executable. Some systems allow no other memfd.
const MFD_NOEXEC_SEAL: u32 = 8;

/// Mapped memory. Unmapped when it is dropped.
pub struct Sealed {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping belongs to no thread. All access to it is by atomics and by pointers.
unsafe impl Send for Sealed {}
// SAFETY: as above.
unsafe impl Sync for Sealed {}

/// What a mapping allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rights {
    Read,
    ReadWrite,
}

impl Sealed {
    /// New memory of zeros, and its file, which has this name in /proc. Error: no memory, no descriptors, a sandbox.
    pub fn create(name: &CStr, len: usize) -> io::Result<(Sealed, OwnedFd)> {
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        let file = memfd(name, flags | MFD_NOEXEC_SEAL).or_else(|_| memfd(name, flags))?;
        // SAFETY: calls on an own descriptor.
        unsafe {
            check(libc::ftruncate(file.as_raw_fd(), len as libc::off_t))?;
            check(libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, SEALS))?;
        }
        Ok((Sealed::map(&file, len, Rights::ReadWrite)?, file))
    }

    /// Maps a file of another process. `InvalidData` if it is no sealed memory of this length.
    pub fn open(file: &impl AsRawFd, len: usize, rights: Rights) -> io::Result<Sealed> {
        // SAFETY: fills two structures on the stack.
        let (status, system) = unsafe {
            let (mut status, mut system) = (std::mem::zeroed::<libc::stat>(), std::mem::zeroed::<libc::statfs>());
            check(libc::fstat(file.as_raw_fd(), &mut status))?;
            check(libc::fstatfs(file.as_raw_fd(), &mut system))?;
            (status, system)
        };
        // SAFETY: asks for the seals; -1 for a file that has none.
        let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
        let sealed = seals >= 0 && seals & SEALS == SEALS;
        if !sealed || status.st_size != len as libc::off_t || system.f_type != libc::TMPFS_MAGIC {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Sealed::map(file, len, rights)
    }

    fn map(file: &impl AsRawFd, len: usize, rights: Rights) -> io::Result<Sealed> {
        let protection = match rights {
            Rights::Read => libc::PROT_READ,
            Rights::ReadWrite => libc::PROT_READ | libc::PROT_WRITE,
        };
        // As raw system calls: the interposed functions are for memory of the program.
        // SAFETY: a new mapping of a file of this length; a forked child does not get it.
        unsafe {
            let at = libc::syscall(libc::SYS_mmap, 0usize, len, protection, libc::MAP_SHARED, file.as_raw_fd(), 0usize);
            let base = (at != -1).then(|| NonNull::new(at as *mut u8)).flatten();
            let memory = Sealed { base: base.ok_or_else(io::Error::last_os_error)?, len };
            check(libc::syscall(libc::SYS_madvise, at, len, libc::MADV_DONTFORK) as i32)?;
            Ok(memory)
        }
    }

    /// The first byte. The mapping begins with a page.
    #[inline]
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Has the kernel map all pages now, so that no first access to a page takes a fault.
    pub fn populate(&self) {
        /// Linux 5.14; without it, pages come one by one.
        const MADV_POPULATE_WRITE: i32 = 23;
        // SAFETY: advice on the mapping of this value; it changes no byte.
        unsafe { libc::syscall(libc::SYS_madvise, self.base.as_ptr(), self.len, MADV_POPULATE_WRITE) };
    }
}

impl Drop for Sealed {
    fn drop(&mut self) {
        // SAFETY: the mapping of this value; nothing refers to it any more.
        unsafe { libc::syscall(libc::SYS_munmap, self.base.as_ptr().cast::<c_void>(), self.len) };
    }
}

fn memfd(name: &CStr, flags: u32) -> io::Result<OwnedFd> {
    // SAFETY: a name that ends with 0; a new descriptor, owned from here on.
    unsafe {
        let file = libc::syscall(libc::SYS_memfd_create, name.as_ptr(), flags) as i32;
        check(file)?;
        Ok(OwnedFd::from_raw_fd(file))
    }
}

fn check(result: i32) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEN: usize = 16 << 10;

    #[test]
    fn sealed_memory_cannot_be_resized() {
        let (_made, file) = Sealed::create(c"weir-test", LEN).unwrap();
        for len in [0, LEN - 1, LEN + 1] {
            // SAFETY: a call on an own descriptor.
            assert_eq!(unsafe { libc::ftruncate(file.as_raw_fd(), len as libc::off_t) }, -1, "{len}");
        }
    }

    #[test]
    fn other_files_are_refused() {
        let memfd_of = |flags, len: usize, seals: i32| {
            let file = memfd(c"weir-test", libc::MFD_CLOEXEC | flags).unwrap();
            // SAFETY: calls on an own descriptor.
            unsafe {
                assert_eq!(libc::ftruncate(file.as_raw_fd(), len as libc::off_t), 0);
                libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals);
            }
            file
        };
        let sealing = libc::MFD_ALLOW_SEALING;
        for file in [
            memfd_of(sealing, LEN - 1, SEALS),
            memfd_of(sealing, LEN + 4096, SEALS),
            memfd_of(sealing, LEN, libc::F_SEAL_SHRINK),
            memfd_of(sealing, LEN, 0),
            memfd_of(0, LEN, SEALS),
            std::fs::File::open("/dev/zero").unwrap().into(),
            std::net::UdpSocket::bind("127.0.0.1:0").unwrap().into(),
        ] {
            assert!(Sealed::open(&file, LEN, Rights::ReadWrite).is_err());
        }
        // Without seals that other code would need: it may be written, which the protocol expects.
        assert!(Sealed::open(&memfd_of(sealing, LEN, SEALS), LEN, Rights::ReadWrite).is_ok());
    }

    #[test]
    fn a_forked_child_has_no_mapping() {
        let (made, _file) = Sealed::create(c"weir-test", LEN).unwrap();
        let mut present = 0u8;
        // SAFETY: the child makes one system call on an address, and ends.
        unsafe {
            let page = made.base.as_ptr().cast::<c_void>();
            assert_eq!(libc::mincore(page, 4096, &mut present), 0);
            let child = libc::fork();
            if child == 0 {
                let absent = libc::mincore(page, 4096, &mut present) == -1;
                libc::_exit(i32::from(!absent));
            }
            let mut status = 0;
            assert_eq!(libc::waitpid(child, &mut status, 0), child);
            assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "status {status:#x}");
        }
    }
}
