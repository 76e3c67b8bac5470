//! Pinning: the pages of a region are present, and stay so as far as RLIMIT_MEMLOCK permits.
//!
//! `munlock` does not nest and regions overlap. So regions are counted for each page, and a page is unlocked when its
//! last region goes.

use crate::Errno;
use crate::config::Memlock;
use crate::memory::counts::{COUNTS, Spare};
use crate::memory::populate::populate;

/// Populates and locks `len` bytes at `addr`. Errors: EFAULT if they are not mapped with the needed access; ENOMEM
/// beyond the limit if `memlock` is strict.
pub fn pin(addr: u64, len: u64, write: bool, memlock: Memlock) -> Result<Pinned, Errno> {
    let (start, end) = pages(addr, len);
    if start < end && !populate(start, end - start, write) {
        return Err(Errno(libc::EFAULT));
    }
    let mut spare = Spare::new();
    let mut counts = COUNTS.get().lock();
    // SAFETY: locking pages does not change their contents or mapping.
    let locked = start < end && unsafe { libc::mlock(start as *const libc::c_void, (end - start) as usize) } == 0;
    if locked {
        counts.add(start, end, &mut spare);
    }
    drop(counts);
    if !locked && memlock == Memlock::Strict && start < end {
        return Err(Errno(libc::ENOMEM));
    }
    Ok(Pinned { start, end, spare: locked.then_some(spare) })
}

/// The pages that a region pins; dropping it unpins them.
pub struct Pinned {
    start: u64,
    end: u64,
    /// For locked pages: the edges that unlocking needs, so that it does not allocate.
    spare: Option<Spare>,
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if let Some(mut spare) = self.spare.take() {
            let mut counts = COUNTS.get().lock();
            counts.remove(self.start, self.end, &mut spare, |start, end| {
                // SAFETY: unlocking pages, mapped or not, touches no memory.
                unsafe { libc::munlock(start as *const libc::c_void, (end - start) as usize) };
            });
            // The unlock comes first: the spare edges are freed after it.
            drop(counts);
        }
    }
}

const PAGE: u64 = 4096;

fn pages(addr: u64, len: u64) -> (u64, u64) {
    let end = addr.saturating_add(len).div_ceil(PAGE).saturating_mul(PAGE);
    if len == 0 { (addr & !(PAGE - 1), addr & !(PAGE - 1)) } else { (addr & !(PAGE - 1), end) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::copy;

    #[test]
    fn unmapped_memory_cannot_be_pinned() {
        copy::install_handler();
        assert_eq!(pin(4096, 10, true, Memlock::Lax).err(), Some(Errno(libc::EFAULT)));
    }

    #[test]
    fn unmapped_memory_cannot_be_pinned_on_an_old_kernel() {
        copy::install_handler();
        let pinned = || {
            weir_stage::old_kernel::install(true).unwrap();
            let mut mine = [7u8; 10];
            assert!(pin(mine.as_mut_ptr() as u64, 10, true, Memlock::Lax).is_ok());
            assert_eq!(mine, [7; 10]);
            pin(4096, 10, true, Memlock::Lax).err()
        };
        assert_eq!(std::thread::spawn(pinned).join().unwrap(), Some(Errno(libc::EFAULT)));
    }
}
