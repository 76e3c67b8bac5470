//! Counters of on-demand paging: per memory region, per device, and for the whole process.

use crate::os::locks::{RankedGuard, RankedMutex, rank};
use crate::os::per_process::PerProcess;
use std::ops::AddAssign;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Declares the counters once, for the atomics and for their values.
macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Live counters; each only grows.
        #[derive(Debug, Default)]
        pub struct Counters {
            $($(#[$doc])* pub(crate) $name: AtomicU64,)*
        }

        /// Values of counters at a moment.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Values {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Counters {
            /// Reads all counters, not atomically as a whole.
            pub fn read(&self) -> Values {
                Values { $($name: self.$name.load(Ordering::Relaxed),)* }
            }
        }

        impl Values {
            /// Names and values, in the order of declaration.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name),)*].into_iter()
            }
        }

        impl AddAssign for Values {
            fn add_assign(&mut self, other: Values) {
                $(self.$name += other.$name;)*
            }
        }
    };
}

counters! {
    /// Network page faults: an access met a page that is not in the adapter's table.
    page_faults,
    /// Of these, faults on pages that were already being populated.
    page_faults_merged,
    /// Of these, faults that ended, with or without success.
    page_faults_handled,
    /// Of these, faults that failed: the memory is not mapped, or does not permit the access.
    page_faults_failed,
    /// Pages (of 4 KiB) entered into the table by faults.
    page_fault_pages,
    /// Time that the resolver's threads spent populating them, ns.
    page_fault_ns,
    /// From each page fault until its QP continues, ns: the sum of the five parts below.
    page_fault_wait_ns,
    /// Of this, until a thread of the resolver works on the fault.
    page_fault_notice_ns,
    /// Of this, until the operating system has populated the pages.
    page_fault_populate_ns,
    /// Of this, what the profile's adapter takes longer.
    page_fault_adapter_ns,
    /// Of this, until the pages are in the table.
    page_fault_table_ns,
    /// Of this, until the engine lets the QP continue.
    page_fault_resume_ns,
    /// Invalidations of a range that overlaps a region.
    page_invalidations,
    /// Of these, invalidations that have ended: the pages are out of the table and no longer accessed.
    page_invalidations_handled,
    /// Pages (of 4 KiB) removed from the table by invalidations.
    page_invalidation_pages,
    /// Time spent removing them and waiting for accesses under way, ns.
    page_invalidation_ns,
    /// Of this, removing pages from tables.
    page_invalidation_table_ns,
    /// Of this, waiting until no access is under way.
    page_invalidation_quiesce_ns,
    /// Of this, the rest: locks, and lists of what is under way.
    page_invalidation_rest_ns,
    /// Collisions of a fault and an invalidation: the fault waited, or its populated pages were not entered.
    page_contentions,
    /// Requested prefetches; each element of a list counts.
    page_prefetch,
    /// Of these, prefetches that ended, with or without success.
    page_prefetch_handled,
    /// Pages (of 4 KiB) entered into the table by prefetches.
    page_prefetch_pages,
    /// Time spent populating them, ns.
    page_prefetch_ns,
}

/// A memory region's counters.
#[derive(Clone, Debug)]
pub struct OfRegion {
    /// Name of its device.
    pub device: &'static str,
    pub lkey: u32,
    /// First byte; 0 for an implicit region.
    pub addr: u64,
    /// Length in bytes; `u64::MAX` for an implicit region.
    pub len: u64,
    /// Pages (of 4 KiB) that are in the table now.
    pub present: u64,
    pub values: Values,
}

/// The counters of a device. They outlive its regions.
#[derive(Debug)]
pub struct OfDevice {
    pub name: &'static str,
    pub counters: Counters,
}

/// Counters of every device that has had an on-demand region in this process.
pub fn devices() -> Vec<&'static OfDevice> {
    registered().clone()
}

/// The sum over all devices of the process.
pub fn process() -> Values {
    let mut sum = Values::default();
    for device in devices() {
        sum += device.counters.read();
    }
    sum
}

/// The counters of a device; they are never freed.
pub(crate) fn of_device(name: &str) -> &'static OfDevice {
    if let Some(found) = registered().iter().find(|device| device.name == name) {
        return found;
    }
    let new: &OfDevice = Box::leak(Box::new(OfDevice { name: name.to_owned().leak(), counters: Counters::default() }));
    let mut devices = registered();
    match devices.iter().find(|device| device.name == name) {
        Some(found) => found,
        None => {
            devices.push(new);
            new
        }
    }
}

/// The counters of a memory region and of its device, which are incremented together.
#[derive(Debug)]
pub(crate) struct Pair {
    pub own: Counters,
    pub device: &'static OfDevice,
}

impl Pair {
    /// The counters of a new region, and those of its device.
    pub fn new(device: &'static OfDevice) -> Pair {
        Pair { own: Counters::default(), device }
    }

    /// Adds to one counter.
    pub fn add(&self, which: impl Fn(&Counters) -> &AtomicU64, value: u64) {
        for counters in [&self.own, &self.device.counters] {
            which(counters).fetch_add(value, Ordering::Relaxed);
        }
    }

    /// Adds time to one counter.
    pub fn add_time(&self, which: impl Fn(&Counters) -> &AtomicU64, time: Duration) {
        self.add(which, time.as_nanos() as u64);
    }
}

type Devices = Vec<&'static OfDevice>;

static DEVICES: PerProcess<RankedMutex<Devices, { rank::PAGING_DEVICES }>> = PerProcess::new();

fn registered() -> RankedGuard<'static, Devices, { rank::PAGING_DEVICES }> {
    DEVICES.get().lock()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_also_increments_the_counters_of_its_device() {
        let device = of_device("counters-test");
        assert!(std::ptr::eq(device, of_device("counters-test")));
        let (first, second) = (Pair::new(device), Pair::new(device));
        first.add(|c| &c.page_faults, 2);
        second.add(|c| &c.page_faults, 3);
        second.add_time(|c| &c.page_fault_ns, Duration::from_micros(1));
        assert_eq!((first.own.read().page_faults, second.own.read().page_faults), (2, 3));
        let of_device = device.counters.read();
        assert_eq!((of_device.page_faults, of_device.page_fault_ns), (5, 1000));
        assert_eq!(of_device.iter().next(), Some(("page_faults", 5)));
    }
}
