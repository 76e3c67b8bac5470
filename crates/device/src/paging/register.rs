//! Registering memory on demand: nothing is brought in, and nothing need be there yet.

use crate::Errno;
use crate::adapter::Adapter;
use crate::paging::counters::{self, Pair};
use crate::paging::invalidate;
use crate::paging::region::{ADDRESS_SPACE, OnDemand, Paged};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// An on-demand region that invalidations see and faults are resolved for, until it is dropped.
pub(crate) struct Registered(Arc<OnDemand>);

impl Registered {
    /// For a range of address and length; all of memory for 0 and `u64::MAX`. EINVAL for an impossible length or, where `huge`
    /// promises huge pages, for memory that has none; ENOMEM without memory for its table; EAGAIN without threads.
    pub fn new(adapter: &Arc<Adapter>, range: (u64, u64), writable: bool, huge: bool) -> Result<Registered, Errno> {
        let (addr, len) = range;
        let implicit = addr == 0 && len == u64::MAX;
        let possible = len > 0 && len <= ADDRESS_SPACE && addr.checked_add(len).is_some();
        if !(implicit || possible) || (huge && (implicit || !is_huge(addr))) {
            return Err(Errno(libc::EINVAL));
        }
        let resolver = adapter.resolver()?;
        let counters = Pair::new(counters::of_device(&adapter.device.name));
        let region = OnDemand::new(addr, len, writable, counters, resolver).ok_or(Errno(libc::ENOMEM))?;
        let region = Arc::new(region);
        invalidate::enter(&region)?;
        Ok(Registered(region))
    }

    /// It has its key.
    pub fn name(&self, key: u32) {
        self.0.key.store(key, Ordering::Relaxed);
    }

    /// What its keys know of it. They must not be found any more, and the engine be quiet, before it is dropped.
    pub fn paged(&self) -> Paged {
        Paged::of(&self.0)
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        invalidate::leave(&self.0);
        self.0.resolver.cancel(&self.0);
        if Adapter::is_inside() {
            // A memory hook of the program, with the engine at work beneath us: it may be looking at the table.
            std::mem::forget(self.0.clone());
        }
    }
}

/// Whether the mapping that `addr` is in consists of huge pages.
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
