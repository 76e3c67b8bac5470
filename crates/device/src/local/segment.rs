//! The memory that two processes share: a sealed memfd of a fixed size, and its mapping.
//!
//! The seals keep the peer from shrinking the file under this process's mapping, which would raise SIGBUS. A file of
//! another kind than a memfd of ordinary pages is refused: huge pages may run out at an access. The peer can change
//! every byte at any time, so readers of the memory check what they read after they have copied it.

use std::ffi::c_void;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64};

/// Bytes of packets in one ring: more than the windows of requests, of READ responses and of UC together, with what
/// they take in a ring.
pub const RING: usize = 2 << 20;
/// Bytes before the first ring: the control words of both.
pub const CONTROL: usize = 4096;
/// Bytes of a segment.
pub const LEN: usize = CONTROL + 2 * RING;
/// Distance of the control words of the two rings, and of the two words of a ring: each has cache lines of its own,
/// also where the processor fetches pairs of lines.
const CONTROL_OF_RING: usize = 256;
const ARMED: usize = 128;

const SEALS: i32 = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
/// Linux 6.3: the memory can never be made executable. Some systems allow no other memfd.
const MFD_NOEXEC_SEAL: u32 = 8;

/// A mapped segment. Unmapped when it is dropped.
pub struct Segment {
    base: NonNull<u8>,
}

// SAFETY: the mapping belongs to no thread. All access to it is by atomics and by pointers.
unsafe impl Send for Segment {}
// SAFETY: as above.
unsafe impl Sync for Segment {}

impl Segment {
    /// A new segment of zeros, and its file for the peer. Error: no memory, no descriptors, a sandbox.
    pub fn create() -> io::Result<(Segment, OwnedFd)> {
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        let file = memfd(flags | MFD_NOEXEC_SEAL).or_else(|_| memfd(flags))?;
        // SAFETY: calls on an own descriptor.
        unsafe {
            check(libc::ftruncate(file.as_raw_fd(), LEN as libc::off_t))?;
            check(libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, SEALS))?;
        }
        Ok((Segment::map(&file)?, file))
    }

    /// Maps the segment that a peer has handed over. `InvalidData` if the file is no sealed segment.
    pub fn open(file: &OwnedFd) -> io::Result<Segment> {
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
        if !sealed || status.st_size != LEN as libc::off_t || system.f_type != libc::TMPFS_MAGIC {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Segment::map(file)
    }

    fn map(file: &OwnedFd) -> io::Result<Segment> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // As raw system calls: the interposed functions are for memory of the program.
        // SAFETY: a new mapping of a file of this length; a forked child does not get it.
        unsafe {
            let at = libc::syscall(libc::SYS_mmap, 0usize, LEN, protection, libc::MAP_SHARED, file.as_raw_fd(), 0usize);
            let base = (at != -1).then(|| NonNull::new(at as *mut u8)).flatten();
            let segment = Segment { base: base.ok_or_else(io::Error::last_os_error)? };
            check(libc::syscall(libc::SYS_madvise, at, LEN, libc::MADV_DONTFORK) as i32)?;
            Ok(segment)
        }
    }

    /// The first byte of a ring's packets; there are [`RING`] bytes. `ring`: 0 from the maker to its peer, 1 back.
    pub fn packets(&self, ring: usize) -> NonNull<u8> {
        // SAFETY: within the mapping.
        unsafe { self.base.add(CONTROL + (ring & 1) * RING) }
    }

    /// How far the consumer of a ring has read.
    pub fn consumed(&self, ring: usize) -> &AtomicU64 {
        // SAFETY: within the mapping, aligned, and accessed by atomics only.
        unsafe { self.base.add((ring & 1) * CONTROL_OF_RING).cast().as_ref() }
    }

    /// Whether the consumer of a ring wants to be woken (`local/arming.rs`).
    pub fn armed(&self, ring: usize) -> &AtomicU32 {
        // SAFETY: within the mapping, aligned, and accessed by atomics only.
        unsafe { self.base.add((ring & 1) * CONTROL_OF_RING + ARMED).cast().as_ref() }
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // SAFETY: the mapping of this value; nothing refers to it any more.
        unsafe { libc::syscall(libc::SYS_munmap, self.base.as_ptr().cast::<c_void>(), LEN) };
    }
}

fn memfd(flags: u32) -> io::Result<OwnedFd> {
    // SAFETY: a name that ends with 0; a new descriptor, owned from here on.
    unsafe {
        let file = libc::syscall(libc::SYS_memfd_create, c"weir".as_ptr(), flags) as i32;
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
    use std::sync::atomic::Ordering;

    #[test]
    fn both_sides_see_one_memory() {
        let (made, file) = Segment::create().unwrap();
        let mapped = Segment::open(&file).unwrap();
        made.consumed(1).store(7, Ordering::Relaxed);
        made.armed(0).store(1, Ordering::Relaxed);
        assert_eq!((mapped.consumed(0).load(Ordering::Relaxed), mapped.consumed(1).load(Ordering::Relaxed)), (0, 7));
        assert_eq!((mapped.armed(0).load(Ordering::Relaxed), mapped.armed(1).load(Ordering::Relaxed)), (1, 0));
        // SAFETY: the last byte of the last ring, of this test's own segment.
        unsafe {
            made.packets(1).add(RING - 1).write_volatile(9);
            assert_eq!(mapped.packets(1).add(RING - 1).read_volatile(), 9);
        }
    }

    #[test]
    fn a_segment_cannot_be_resized() {
        let (_made, file) = Segment::create().unwrap();
        for len in [0, LEN - 1, LEN + 1] {
            // SAFETY: a call on an own descriptor.
            assert_eq!(unsafe { libc::ftruncate(file.as_raw_fd(), len as libc::off_t) }, -1, "{len}");
        }
    }

    #[test]
    fn other_files_are_refused() {
        let memfd_of = |flags, len: usize, seals: i32| {
            let file = memfd(libc::MFD_CLOEXEC | flags).unwrap();
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
            assert!(Segment::open(&file).is_err());
        }
        // Without seals that other code would need: it may be written, which the protocol expects.
        assert!(Segment::open(&memfd_of(sealing, LEN, SEALS)).is_ok());
    }

    #[test]
    fn a_forked_child_has_no_mapping() {
        let (made, _file) = Segment::create().unwrap();
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
