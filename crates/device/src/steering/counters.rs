//! Counters of flows: packets and bytes that the rules with these counters matched.

use crate::Errno;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// What a counter counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counter {
    Packets,
    Bytes,
}

/// Counters that rules can share.
#[derive(Debug, Default)]
pub struct Counters {
    packets: AtomicU64,
    bytes: AtomicU64,
    /// The places that a read returns counters at.
    points: Mutex<Vec<(Counter, u32)>>,
    /// Rules with these counters.
    users: AtomicU32,
}

/// Places in the array of a read.
const PLACES: u32 = 64;

impl Counters {
    /// A read returns a counter at this index from now on. EINVAL for an index that is too large, EBUSY for one in use.
    pub fn attach(&self, counter: Counter, index: u32) -> Result<(), Errno> {
        if index >= PLACES {
            return Err(Errno(libc::EINVAL));
        }
        let mut points = self.points.lock().unwrap_or_else(PoisonError::into_inner);
        if points.iter().any(|(_, taken)| *taken == index) {
            return Err(Errno(libc::EBUSY));
        }
        points.push((counter, index));
        Ok(())
    }

    /// Writes the counters to their places, and zero to others. EINVAL if a place is beyond the end.
    pub fn read(&self, values: &mut [u64]) -> Result<(), Errno> {
        let points = self.points.lock().unwrap_or_else(PoisonError::into_inner);
        if points.iter().any(|(_, index)| *index as usize >= values.len()) {
            return Err(Errno(libc::EINVAL));
        }
        values.fill(0);
        for (counter, index) in points.iter() {
            let value = match counter {
                Counter::Packets => &self.packets,
                Counter::Bytes => &self.bytes,
            };
            values[*index as usize] = value.load(Ordering::Relaxed);
        }
        Ok(())
    }

    /// EBUSY while a rule has them.
    pub fn check_unused(&self) -> Result<(), Errno> {
        if self.users.load(Ordering::Acquire) > 0 { Err(Errno(libc::EBUSY)) } else { Ok(()) }
    }

    /// A rule has them, or has them no longer.
    pub(crate) fn used(&self, by_one_more: bool) {
        if by_one_more {
            self.users.fetch_add(1, Ordering::AcqRel);
        } else {
            self.users.fetch_sub(1, Ordering::AcqRel);
        }
    }

    pub(super) fn count(&self, bytes: usize) {
        self.packets.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}
