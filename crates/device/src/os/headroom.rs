//! Checks before a call that creates an object whether there is memory for it.
//!
//! What a call allocates falls into two parts. The large part depends on its arguments or on the number of objects:
//! rings and tables. It is allocated by `try_reserve`, which yields ENOMEM if there is not enough. The small part, a
//! few kilobytes in many allocations, is allocated as in any Rust code, where a failure aborts the program. So a call
//! begins only if there is room for more than all of the small part, and then has nothing to undo.

use crate::Errno;

/// Bytes that must be free for a call that creates one object. That is far more than it takes, because the C library
/// may map a whole megabyte for a small allocation, and a table of the maximum number of objects may exist twice while
/// it grows.
pub const OBJECT: usize = 8 << 20;
/// The same for opening a device: buffers, tables and thread stacks.
pub const DEVICE: usize = 32 << 20;

/// ENOMEM if this process cannot have `bytes` more, by its own limits or the system's.
pub fn check(bytes: usize) -> Result<(), Errno> {
    let (protection, flags) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE);
    // SAFETY: a new mapping at an address that the kernel chooses, which is never touched and is unmapped again. Raw
    // system calls, because the library's own mmap and munmap look for ODP memory.
    unsafe {
        let mapping = libc::syscall(libc::SYS_mmap, 0usize, bytes, protection, flags, -1, 0usize);
        if mapping == -1 {
            return Err(Errno(libc::ENOMEM));
        }
        libc::syscall(libc::SYS_munmap, mapping, bytes);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_that_no_process_can_have_is_refused() {
        assert_eq!(check(OBJECT), Ok(()));
        assert_eq!(check(1 << 50), Err(Errno(libc::ENOMEM)));
    }
}
