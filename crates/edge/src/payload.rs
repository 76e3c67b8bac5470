//! What is kept of a packet's payload.

use std::cell::Cell;
use std::sync::{Arc, Mutex, PoisonError};
use weir_guarded::copy::{self, Fault};
use weir_link::Iovec;

/// Buffers that are kept for later packets, at most.
const KEPT: usize = 1024;
/// The smallest page of a machine: a page is mapped as a whole, or not.
const PAGE: usize = 4096;

/// The payload of a packet.
#[derive(Debug)]
pub enum Payload {
    Nothing,
    /// In memory of the program, which may have been unmapped.
    Place(Iovec),
    /// In the inbox. It is used by the call that made it, and not later.
    Arrived(Iovec),
    Kept(Kept),
}

impl Payload {
    /// Where its bytes are.
    pub fn iovec(&self) -> Iovec {
        match self {
            Payload::Nothing => Iovec { addr: 0, len: 0 },
            Payload::Place(iovec) | Payload::Arrived(iovec) => *iovec,
            Payload::Kept(kept) => Iovec { addr: kept.bytes.as_ptr().expose_provenance(), len: kept.bytes.len() },
        }
    }

    /// Whether its bytes can be read.
    pub fn is_readable(&self, seen: &Seen) -> bool {
        match self {
            Payload::Place(iovec) => seen.is_readable(*iovec),
            _ => true,
        }
    }
}

/// The page that was looked at last. The next packet often begins there, and a look at memory that is in no cache takes as
/// long as the protocol takes for a packet. It is for one turn: a page may vanish later.
#[derive(Debug, Default)]
pub struct Seen(Cell<Option<usize>>);

impl Seen {
    /// Whether each page of a range can be read.
    pub fn is_readable(&self, Iovec { addr, len }: Iovec) -> bool {
        let Some(last) = len.checked_sub(1) else { return true };
        let Some(last) = addr.checked_add(last) else { return false };
        (addr / PAGE..=last / PAGE).all(|page| {
            if self.0.get() == Some(page) {
                return true;
            }
            let (at, mut byte) = (addr.max(page * PAGE), 0u8);
            prefetch((page + 1).wrapping_mul(PAGE));
            // SAFETY: a byte on the stack, and one in memory of the program, in any state. `Owner::current` has installed
            // the handler.
            let can = unsafe { copy::copy(&raw mut byte, std::ptr::with_exposed_provenance(at), 1) }.is_ok();
            self.0.set(Some(page).filter(|_| can));
            can
        })
    }
}

/// The memory at an address will be looked at soon: it need not be there.
#[inline]
fn prefetch(addr: usize) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    // SAFETY: a prefetch has no effect but on the caches, whatever the address is.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::with_exposed_provenance(addr)) }
}

/// Bytes in a buffer of a pool.
#[derive(Debug)]
pub struct Kept {
    bytes: Vec<u8>,
    pool: Pool,
}

/// Buffers for payloads.
#[derive(Clone, Debug, Default)]
pub struct Pool(Arc<Mutex<Vec<Vec<u8>>>>);

impl Pool {
    /// Copies bytes out of memory of the program, in any state.
    pub fn copy(&self, Iovec { addr, len }: Iovec) -> Result<Payload, Fault> {
        let free = self.0.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut kept = Kept { bytes: free.unwrap_or_default(), pool: self.clone() };
        kept.bytes.clear();
        kept.bytes.reserve(len);
        // SAFETY: the buffer has room for `len` bytes. `Owner::current` has installed the handler.
        unsafe {
            copy::copy(kept.bytes.as_mut_ptr(), std::ptr::with_exposed_provenance(addr), len)?;
            kept.bytes.set_len(len);
        }
        Ok(Payload::Kept(kept))
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        let mut free = self.pool.0.lock().unwrap_or_else(PoisonError::into_inner);
        if free.len() < KEPT {
            free.push(std::mem::take(&mut self.bytes));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::Owner;

    #[test]
    fn a_range_is_readable_if_each_of_its_pages_is() {
        Owner::current();
        // SAFETY: a new mapping, of which the second page is made inaccessible.
        let addr = unsafe {
            let (rights, kind) = (libc::PROT_READ, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            let map = libc::mmap(std::ptr::null_mut(), 3 * PAGE, rights, kind, -1, 0);
            assert_eq!(libc::mprotect(map.add(PAGE), PAGE, libc::PROT_NONE), 0);
            map.expose_provenance()
        };
        let readable = |from: usize, len: usize| Seen::default().is_readable(Iovec { addr: addr + from, len });
        assert!(readable(0, PAGE) && readable(2 * PAGE, PAGE) && readable(5, 0) && readable(PAGE - 1, 1));
        assert!(!readable(PAGE - 1, 2) && !readable(0, 3 * PAGE) && !readable(PAGE, 1) && !readable(2 * PAGE - 1, 2));
        let seen = Seen::default();
        assert!(!seen.is_readable(Iovec { addr: usize::MAX, len: 1 }));
        assert!(!seen.is_readable(Iovec { addr: usize::MAX, len: 2 }) && !seen.is_readable(Iovec { addr: 0, len: 1 }));
        let reads = [(0, 10), (10, PAGE), (PAGE, 1), (PAGE, 1), (PAGE - 1, 1), (2 * PAGE, 9)];
        let readable = reads.map(|(from, len)| seen.is_readable(Iovec { addr: addr + from, len }));
        assert_eq!(readable, [true, false, false, false, true, true], "with one memory for all");
        let pool = Pool::default();
        assert!(pool.copy(Iovec { addr: addr + 10, len: PAGE }).is_err());
        let kept = pool.copy(Iovec { addr, len: PAGE }).unwrap();
        assert_eq!(kept.iovec().len, PAGE);
        drop(kept);
        assert_eq!(pool.0.lock().unwrap().len(), 1, "one buffer, used twice");
    }
}
