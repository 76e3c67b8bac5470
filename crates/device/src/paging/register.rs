//! Registration of ODP memory: no page is populated, and none need be present yet.

use crate::Errno;
use crate::os::engine_hold::holds_engine;
use crate::paging::counters::{self, Pair};
use crate::paging::invalidate;
use crate::paging::region::{ADDRESS_SPACE, OnDemand, Paged};
use crate::paging::resolver::Resolver;
use crate::stat::publish;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// An on-demand region, entered for invalidations and page faults until it is dropped.
pub(crate) struct Registered(Arc<OnDemand>);

impl Registered {
    /// Registers a range of address and length; the whole address space for 0 and `u64::MAX`. EINVAL for an
    /// impossible length or, where `huge` promises huge pages, for memory without them; ENOMEM without memory for its
    /// table; EAGAIN if no thread can be started.
    pub fn new(
        device: &str,
        resolver: impl FnOnce() -> Result<Arc<Resolver>, Errno>,
        range: (u64, u64),
        writable: bool,
        huge: bool,
    ) -> Result<Registered, Errno> {
        let (addr, len) = range;
        let implicit = addr == 0 && len == u64::MAX;
        let possible = len > 0 && len <= ADDRESS_SPACE && addr.checked_add(len).is_some();
        if !(implicit || possible) || (huge && (implicit || !is_huge(addr))) {
            return Err(Errno(libc::EINVAL));
        }
        let resolver = resolver()?;
        publish::paging();
        let counters = Pair::new(counters::of_device(device));
        let region = OnDemand::new(addr, len, writable, counters, resolver).ok_or(Errno(libc::ENOMEM))?;
        let region = Arc::new(region);
        invalidate::enter(&region)?;
        Ok(Registered(region))
    }

    /// Records the key of the region.
    pub fn name(&self, key: u32) {
        self.0.key.store(key, Ordering::Relaxed);
    }

    /// The page handle for its keys. Before this object is dropped, the keys must be removed and the engine quiesced.
    pub fn paged(&self) -> Paged {
        Paged::of(&self.0)
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        invalidate::leave(&self.0);
        self.0.resolver.cancel(&self.0);
        if holds_engine() {
            // A memory hook of the program called this from within an engine turn, which may be reading the table: it
            // is leaked.
            std::mem::forget(self.0.clone());
        }
    }
}

/// Returns whether the mapping that contains `addr` consists of huge pages.
fn is_huge(addr: u64) -> bool {
    let Ok(maps) = std::fs::read_to_string("/proc/self/smaps") else { return false };
    let mut inside = false;
    for line in maps.lines() {
        let first = line.split_whitespace().next().unwrap_or_default();
        let range = first
            .split_once('-')
            .and_then(|(start, end)| Some(u64::from_str_radix(start, 16).ok()?..u64::from_str_radix(end, 16).ok()?));
        match range {
            Some(range) => inside = range.contains(&addr),
            None if inside && first == "KernelPageSize:" => {
                return line.split_whitespace().nth(1).is_some_and(|kib| kib != "4");
            }
            None => {}
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinary_memory_is_not_huge() {
        let byte = 0u8;
        assert!(!is_huge(&raw const byte as u64));
        assert!(!is_huge(16));
    }
}
