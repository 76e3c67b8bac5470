//! Pinning: the pages of a region are present, and stay so as far as RLIMIT_MEMLOCK permits.
//!
//! `munlock` does not nest and regions overlap. So regions are counted for each page, and a page is unlocked when its
//! last region goes. The same counts say how many bytes the process has pinned.

use crate::Errno;
use crate::config::Memlock;
use crate::memory::counts::{Counts, Spare};
use crate::memory::populate::populate;
use crate::memory::totals::Totals;
use crate::os::locks::LeafMutex;
use crate::os::per_process::PerProcess;
use crate::stat::sheet;

/// What the regions of this process pin. A forked child inherits no locked pages, and no region of its own.
static PINNING: PerProcess<LeafMutex<Pinning>> = PerProcess::new();

#[derive(Default)]
struct Pinning {
    counts: Counts,
    totals: Totals,
    /// Where other processes see the totals, once there is a sheet.
    shown: Option<&'static sheet::Memory>,
}

/// Populates and locks `len` bytes at `addr`. Errors: EFAULT if they are not mapped with the needed access; ENOMEM
/// beyond the limit if `memlock` is strict.
pub fn pin(addr: u64, len: u64, write: bool, memlock: Memlock) -> Result<Pinned, Errno> {
    let (start, end) = pages(addr, len);
    if start < end && !populate(start, end - start, write) {
        return Err(Errno(libc::EFAULT));
    }
    let mut spare = Spare::new();
    let mut pinning = PINNING.get().lock();
    // SAFETY: locking pages does not change their contents or mapping.
    let locked = start < end && unsafe { libc::mlock(start as *const libc::c_void, (end - start) as usize) } == 0;
    if !locked && memlock == Memlock::Strict && start < end {
        return Err(Errno(libc::ENOMEM));
    }
    pinning.add(start, end, locked, &mut spare);
    drop(pinning);
    Ok(Pinned { start, end, locked, spare })
}

/// A registration has succeeded: of memory that is pinned, or on-demand.
pub fn count_registration(on_demand: bool) {
    PINNING.get().lock().change(|totals| totals.register(on_demand));
}

/// What this process has pinned and registered.
pub fn totals() -> Totals {
    PINNING.get().lock().totals
}

/// Other processes see the totals of this process here from now on.
pub fn show(shown: &'static sheet::Memory) {
    PINNING.get().lock().show(shown);
}

impl Pinning {
    fn show(&mut self, shown: &'static sheet::Memory) {
        self.shown = Some(shown);
        self.change(|_| ());
    }

    fn add(&mut self, start: u64, end: u64, locked: bool, spare: &mut Spare) {
        let bytes = self.counts.add(start, end, locked, spare);
        self.change(|totals| totals.pin(bytes));
    }

    fn remove(&mut self, start: u64, end: u64, locked: bool, spare: &mut Spare, unlock: impl FnMut(u64, u64)) {
        let bytes = self.counts.remove(start, end, locked, spare, unlock);
        self.change(|totals| totals.unpin(bytes));
    }

    fn change(&mut self, how: impl FnOnce(&mut Totals)) {
        how(&mut self.totals);
        if let Some(shown) = self.shown {
            self.totals.show(shown);
        }
    }
}

/// The pages that a region pins; dropping it unpins them.
pub struct Pinned {
    start: u64,
    end: u64,
    /// Whether the kernel has locked them.
    locked: bool,
    /// The edges that unpinning needs, so that it does not allocate.
    spare: Spare,
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let mut pinning = PINNING.get().lock();
        pinning.remove(self.start, self.end, self.locked, &mut self.spare, |start, end| {
            // SAFETY: unlocking pages, mapped or not, touches no memory.
            unsafe { libc::munlock(start as *const libc::c_void, (end - start) as usize) };
        });
        // The mutex is unlocked before the spare edges are freed.
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
    use crate::stat::publish::private_sheet;

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

    #[test]
    fn overlapping_regions_count_once_and_the_peak_stays() {
        let memory = &private_sheet().memory;
        let mut pinning = Pinning::default();
        let [mut one, mut two] = [Spare::new(), Spare::new()];
        pinning.add(0, 3 * PAGE, true, &mut one);
        pinning.show(memory);
        assert_eq!(memory.pinned_bytes.get(), 3 * PAGE, "pinned before there was a sheet");
        pinning.add(2 * PAGE, 4 * PAGE, false, &mut two);
        pinning.change(|totals| totals.register(false));
        pinning.change(|totals| totals.register(true));
        let both =
            Totals { pinned_bytes: 4 * PAGE, pinned_peak: 4 * PAGE, registrations: 2, registrations_on_demand: 1 };
        assert_eq!(pinning.totals, both);
        pinning.remove(0, 3 * PAGE, true, &mut one, |_, _| ());
        assert_eq!(pinning.totals, Totals { pinned_bytes: 2 * PAGE, ..both });
        pinning.remove(2 * PAGE, 4 * PAGE, false, &mut two, |_, _| ());
        assert_eq!(pinning.totals, Totals { pinned_bytes: 0, ..both });
        assert_eq!((memory.pinned_bytes.get(), memory.pinned_peak.get()), (0, 4 * PAGE));
        assert_eq!((memory.registrations.get(), memory.registrations_on_demand.get()), (2, 1));
    }

    #[test]
    fn memory_is_counted_as_long_as_it_is_pinned() {
        copy::install_handler();
        let mine = [7u8; 10];
        // Other tests of this process pin memory at the same time: at least this page is counted.
        let pinned = pin(mine.as_ptr() as u64, 10, false, Memlock::Lax).unwrap();
        let now = totals();
        assert!(now.pinned_bytes >= PAGE && now.pinned_peak >= now.pinned_bytes, "{now:?}");
        drop(pinned);
        count_registration(true);
        assert!(totals().registrations > 0 && totals().registrations_on_demand > 0);
    }
}
