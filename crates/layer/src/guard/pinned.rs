//! Pinned memory for READs that started again, and the copy to the program's memory.
//!
//! The memory is registered for a protection domain in slabs. A slab is used by the READs of one start, and again when
//! all of them are over.

use crate::lock::Lock;
use crate::locked::Locked;
use crate::next::{DEREG_MR, REG_MR};
use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::Arc;
use weir_abi::*;

/// Bytes of all slabs together.
const MOST: usize = 64 << 20;
/// IBV_ACCESS_LOCAL_WRITE.
const LOCAL_WRITE: c_int = 1;
/// Bytes of the smallest slab.
const LEAST: usize = 64 << 10;

/// A fork takes its lock.
pub static SLABS: Locked<Vec<Arc<Slab>>, Lock> = Locked::new(Lock::new(), Vec::new());

/// Registered memory of a protection domain.
#[derive(Debug)]
pub struct Slab {
    pd: *mut ibv_pd,
    mr: *mut ibv_mr,
    base: *mut u8,
    len: usize,
    lkey: u32,
}

// SAFETY: the pointers are used for calls that threads may make at once; the memory is written by the adapter and read
// by the thread that has the piece.
unsafe impl Send for Slab {}
// SAFETY: as above.
unsafe impl Sync for Slab {}

/// A part of a slab.
#[derive(Debug)]
pub struct Piece {
    slab: Arc<Slab>,
    offset: usize,
    len: usize,
}

/// A slab with room for so many bytes, in which no piece is in use (a piece has a reference). `None`: there is no memory for it.
pub fn slab(pd: *mut ibv_pd, bytes: usize) -> Option<Arc<Slab>> {
    let mut slabs = SLABS.lock();
    let free = |slab: &&Arc<Slab>| slab.pd == pd && slab.len >= bytes && Arc::strong_count(slab) == 1;
    if let Some(slab) = slabs.iter().find(free) {
        return Some(slab.clone());
    }
    let len = bytes.max(LEAST).checked_next_power_of_two()?;
    if slabs.iter().map(|slab| slab.len).sum::<usize>() + len > MOST {
        return None;
    }
    let slab = Arc::new(Slab::register(pd, len)?);
    slabs.push(slab.clone());
    Some(slab)
}

/// The program releases a protection domain: slabs would keep it busy.
pub fn release(pd: *mut ibv_pd) {
    let mut slabs = SLABS.lock();
    // A piece, or a start that is about to take one, has another reference.
    slabs.retain(|slab| slab.pd != pd || Arc::strong_count(slab) != 1 || !slab.deregister());
}

/// In a forked child: the memory is the parent's.
pub fn forget() {
    SLABS.lock().drain(..).for_each(std::mem::forget);
}

impl Slab {
    fn register(pd: *mut ibv_pd, len: usize) -> Option<Slab> {
        let real = REG_MR.get()?;
        let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping; a PD of the program, because its QP exists.
        unsafe {
            let base = libc::mmap(ptr::null_mut(), len, prot, flags, -1, 0);
            if base == libc::MAP_FAILED {
                return None;
            }
            let mr = real(pd, base, len, LOCAL_WRITE);
            if mr.is_null() {
                libc::munmap(base, len);
                return None;
            }
            Some(Slab { pd, mr, base: base.cast(), len, lkey: (*mr).lkey })
        }
    }

    fn deregister(&self) -> bool {
        // SAFETY: the region of `register`, which no request uses.
        let done = DEREG_MR.get().is_some_and(|real| unsafe { real(self.mr) == 0 });
        if done {
            // SAFETY: the mapping of `register`.
            unsafe { libc::munmap(self.base.cast(), self.len) };
        }
        done
    }

    /// A part of it, which no other piece overlaps: the caller chooses the offset.
    pub fn piece(self: &Arc<Slab>, offset: usize, len: usize) -> Option<Piece> {
        if offset.checked_add(len)? > self.len {
            return None;
        }
        Some(Piece { slab: self.clone(), offset, len })
    }
}

impl Piece {
    /// The SGE of its first bytes.
    pub fn sge(&self, length: u32) -> ibv_sge {
        ibv_sge { addr: self.slab.base as u64 + self.offset as u64, length, lkey: self.slab.lkey }
    }

    /// Copies its bytes to memory of the program. False: the program has no such memory.
    pub fn copy_to(&self, sges: &[ibv_sge]) -> bool {
        let mut at = self.offset;
        let end = self.offset + self.len;
        for sge in sges {
            let length = (sge.length as usize).min(end - at);
            // SAFETY: within the mapping.
            let from = unsafe { self.slab.base.add(at) };
            if length > 0 && !copy(from, sge.addr as *mut u8, length) {
                return false;
            }
            at += length;
        }
        true
    }
}

/// Copies to memory that the program may have unmapped: the kernel does it, and reports that. Where a sandbox forbids
/// the call, this thread copies.
fn copy(from: *const u8, to: *mut u8, length: usize) -> bool {
    let mut done = 0;
    while done < length {
        let part =
            |base: *mut u8| libc::iovec { iov_base: base.wrapping_add(done).cast::<c_void>(), iov_len: length - done };
        let (local, remote) = (part(from.cast_mut()), part(to));
        // SAFETY: the kernel checks both ranges.
        let count = unsafe { libc::process_vm_writev(libc::getpid(), &local, 1, &remote, 1, 0) };
        match usize::try_from(count) {
            Ok(count) if count > 0 => done += count,
            _ if std::io::Error::last_os_error().raw_os_error() == Some(libc::EFAULT) => return false,
            _ => {
                // SAFETY: the program has given this memory to a READ, and so owns it until the completion.
                unsafe { ptr::copy_nonoverlapping(from.add(done), to.add(done), length - done) };
                return true;
            }
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_is_not_mapped_is_an_error() {
        let from = *b"data of a READ";
        let mut to = [0; 14];
        assert!(copy(from.as_ptr(), to.as_mut_ptr(), 14) && to == from);
        assert!(!copy(from.as_ptr(), ptr::without_provenance_mut(4096), 14));
    }
}
