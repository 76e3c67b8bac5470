//! What on-demand paging has done: per memory region, per device, and for the whole process.

use crate::per_process::PerProcess;
use crate::stat::publish;
use std::ops::AddAssign;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

/// Declares the counters once, for the atomics and for what is read of them.
macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Live counters; each only grows.
        #[derive(Debug, Default)]
        pub struct Counters {
            $($(#[$doc])* pub(crate) $name: AtomicU64,)*
        }

        /// What counters were at a moment.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Values {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Counters {
            /// All of them now. They are not read at one instant.
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
    /// Of these, those that found the page being brought in already.
    page_faults_merged,
    /// Of these, those that ended, well or badly.
    page_faults_handled,
    /// Of these, those that ended badly: memory that is not there, or may not be used that way.
    page_faults_failed,
    /// Pages (of 4 KiB) entered into the table by faults.
    page_fault_pages,
    /// Time spent bringing them in, ns.
    page_fault_ns,
    /// Invalidations of a range that overlaps a region.
    page_invalidations,
    /// Of these, those that are over: nothing is read or written there any more.
    page_invalidations_handled,
    /// Pages (of 4 KiB) taken out of the table by invalidations.
    page_invalidation_pages,
    /// Time spent taking them out and waiting for accesses under way, ns.
    page_invalidation_ns,
    /// Times that a fault and an invalidation met: the fault waited, or what it had brought in was not entered.
    page_contentions,
    /// Prefetches that were asked for, each element of a list.
    page_prefetch,
    /// Of these, those that ended, well or badly.
    page_prefetch_handled,
    /// Pages (of 4 KiB) entered into the table by prefetches.
    page_prefetch_pages,
    /// Time spent bringing them in, ns.
    page_prefetch_ns,
}

/// A memory region's counters.
#[derive(Clone, Debug)]
pub struct OfRegion {
    /// Of its device.
    pub device: &'static str,
    pub lkey: u32,
    /// First byte; 0 if it is implicit.
    pub addr: u64,
    /// Bytes; `u64::MAX` if it is implicit.
    pub len: u64,
    /// Pages (of 4 KiB) that are in the table now.
    pub present: u64,
    pub values: Values,
}

/// Those of one device, which go on when its regions end.
pub struct OfDevice {
    pub name: &'static str,
    pub counters: Counters,
}

/// Counters of every device that has had an on-demand region in this process.
pub fn devices() -> Vec<&'static OfDevice> {
    registered().clone()
}

/// Of the whole process.
pub fn process() -> Values {
    let mut sum = Values::default();
    for device in devices() {
        sum += device.counters.read();
    }
    sum
}

/// Of every on-demand region that there is now.
pub fn regions() -> Vec<OfRegion> {
    super::invalidate::regions().iter().map(|region| region.describe()).collect()
}

/// Those of a device; they are never freed.
pub(crate) fn of_device(name: &str) -> &'static OfDevice {
    publish::paging();
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

/// One memory region's counters and its device's, which count together.
pub(crate) struct Pair {
    pub own: Counters,
    pub device: &'static OfDevice,
}

impl Pair {
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

static DEVICES: PerProcess<Mutex<Vec<&'static OfDevice>>> = PerProcess::new();

fn registered() -> MutexGuard<'static, Vec<&'static OfDevice>> {
    DEVICES.get().lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_counts_for_its_device_too() {
        let device = of_device("counters-test");
        assert!(std::ptr::eq(device, of_device("counters-test")));
        let (one, two) = (Pair::new(device), Pair::new(device));
        one.add(|c| &c.page_faults, 2);
        two.add(|c| &c.page_faults, 3);
        two.add_time(|c| &c.page_fault_ns, Duration::from_micros(1));
        assert_eq!((one.own.read().page_faults, two.own.read().page_faults), (2, 3));
        let of_device = device.counters.read();
        assert_eq!((of_device.page_faults, of_device.page_fault_ns), (5, 1000));
        assert_eq!(of_device.iter().next(), Some(("page_faults", 5)));
    }
}
