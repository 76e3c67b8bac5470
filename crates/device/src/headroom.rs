//! Whether there is memory for a call that makes something.
//!
//! What a call allocates falls into two parts. The large part depends on its arguments or on how many objects there are:
//! rings, tables. It is asked for by `try_reserve`, and is ENOMEM where there is not enough. The small part, a few
//! kilobytes in many pieces, is asked for as any Rust code does, which aborts the program. So a call begins only where
//! there is room for more than all of that; then it ends well, and nothing is to be undone.

use crate::Errno;

/// Bytes that must be free for a call that makes one object: far more than it takes, for the C library may want a whole
/// megabyte to give a few bytes of, and tables of as many objects as there may be double at some time.
pub const OBJECT: usize = 8 << 20;
/// The same for opening a device: buffers, tables and stacks of threads.
pub const DEVICE: usize = 32 << 20;

/// ENOMEM if this process cannot have so many bytes more, by its limits or the system's.
pub fn check(bytes: usize) -> Result<(), Errno> {
    let (protection, flags) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE);
    // SAFETY: a new mapping where the kernel likes it, which is touched by nothing and taken away again. The system calls
    // themselves, for functions of those names look for on-demand memory.
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
    fn what_no_process_can_have_is_not_there() {
        assert_eq!(check(OBJECT), Ok(()));
        assert_eq!(check(1 << 50), Err(Errno(libc::ENOMEM)));
    }
}
