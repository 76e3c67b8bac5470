//! The memory of a process, its registrations, and the pages that the adapter has.

use crate::port::{Errno, Registered, Registration};
use std::collections::HashMap;
use std::ops::Range;
use std::time::Duration;

pub const PAGE: u64 = 4096;
const EFAULT: Errno = Errno(14);
const ENOMEM: Errno = Errno(12);

/// What memory has before anything is written to it.
pub const CANARY: u8 = 0xa5;

/// The memory of a process from address `base` on. Whatever is beyond it does not exist.
#[derive(Debug)]
pub struct Memory {
    pub base: u64,
    bytes: Vec<u8>,
    allocated: u64,
    regions: HashMap<u32, Region>,
    next_key: u32,
    /// Most registrations.
    pub most_regions: usize,
    /// Pages of which the adapter has an on-demand mapping.
    present: Vec<bool>,
    /// Prefetches on the way: when they end, and which pages.
    prefetches: Vec<(Duration, Range<usize>)>,
    /// How long a prefetch takes.
    pub prefetch_takes: Duration,
    /// On-demand pages that the adapter needed and did not have.
    pub faults: u64,
    /// Pages that the adapter has lost.
    pub invalidations: u64,
}

#[derive(Clone, Copy, Debug)]
struct Region {
    addr: u64,
    len: u64,
    how: Registration,
}

impl Memory {
    /// `len` bytes from `base` on; both are whole pages.
    pub fn new(base: u64, len: u64) -> Memory {
        assert!(base.is_multiple_of(PAGE) && len.is_multiple_of(PAGE));
        Memory {
            base,
            bytes: vec![CANARY; len as usize],
            allocated: 0,
            regions: HashMap::new(),
            next_key: 1,
            most_regions: usize::MAX,
            present: vec![false; (len / PAGE) as usize],
            prefetches: Vec::new(),
            prefetch_takes: Duration::from_micros(1),
            faults: 0,
            invalidations: 0,
        }
    }

    /// The address of memory that nothing uses yet, behind some canary bytes.
    ///
    /// # Panics
    /// If none is left.
    pub fn allocate(&mut self, len: u64) -> u64 {
        let at = self.allocated + 16;
        self.allocated = at + len + 16;
        assert!(self.allocated <= self.bytes.len() as u64, "the memory of a test is used up");
        self.base + at
    }

    /// As [`Self::allocate`], in pages of its own.
    pub fn allocate_pages(&mut self, len: u64) -> u64 {
        self.allocated = (self.allocated + 16).next_multiple_of(PAGE) - 16;
        let addr = self.allocate(len);
        self.allocated = self.allocated.next_multiple_of(PAGE);
        addr
    }

    /// Forgets all allocations, and what was written.
    pub fn reset(&mut self) {
        self.bytes.fill(CANARY);
        self.allocated = 0;
    }

    /// Bytes of the program.
    ///
    /// # Panics
    /// If there are none at this address.
    pub fn bytes(&self, addr: u64, len: usize) -> &[u8] {
        let at = self.at(addr, len as u64).expect("an address of the process");
        &self.bytes[at..at + len]
    }

    /// As [`Self::bytes`], to be changed.
    pub fn bytes_mut(&mut self, addr: u64, len: usize) -> &mut [u8] {
        let at = self.at(addr, len as u64).expect("an address of the process");
        &mut self.bytes[at..at + len]
    }

    fn at(&self, addr: u64, len: u64) -> Option<usize> {
        let at = addr.checked_sub(self.base)?;
        (at.checked_add(len)? <= self.bytes.len() as u64).then_some(at as usize)
    }

    /// Registers memory.
    pub fn register(&mut self, addr: u64, len: u64, how: Registration) -> Result<Registered, Errno> {
        let at = self.at(addr, len).ok_or(EFAULT)?;
        if self.regions.len() >= self.most_regions {
            return Err(ENOMEM);
        }
        assert!(len > 0, "nothing is registered");
        let key = self.next_key;
        self.next_key += 1;
        self.regions.insert(key, Region { addr, len, how });
        if !how.on_demand {
            let pages = pages(at, len);
            self.present[pages].fill(true);
        }
        Ok(Registered { lkey: key, rkey: key })
    }

    /// Ends a registration.
    ///
    /// # Panics
    /// If there is none.
    pub fn deregister(&mut self, key: u32) {
        assert!(self.regions.remove(&key).is_some(), "a registration ends once");
    }

    /// Registrations that there are.
    pub fn regions(&self) -> usize {
        self.regions.len()
    }

    /// Bytes that are pinned by registrations.
    pub fn pinned(&self) -> u64 {
        self.regions.values().filter(|region| !region.how.on_demand).map(|region| region.len).sum()
    }

    /// Asks for pages.
    ///
    /// # Panics
    /// If they are not registered.
    pub fn prefetch(&mut self, now: Duration, key: u32, addr: u64, len: u64) {
        let region = self.regions.get(&key).expect("a registration to prefetch");
        assert!(region.covers(addr, len) && region.how.on_demand, "a prefetch of memory that is registered on demand");
        let at = (addr - self.base) as usize;
        self.prefetches.push((now + self.prefetch_takes, pages(at, len)));
    }

    /// Pages go away, because the system has too few.
    pub fn drop_pages(&mut self, now: Duration, addr: u64, len: u64) {
        self.end_prefetches(now);
        let at = self.at(addr, len).expect("an address of the process");
        for page in pages(at, len) {
            self.invalidations += u64::from(std::mem::take(&mut self.present[page]));
        }
    }

    fn end_prefetches(&mut self, now: Duration) {
        let (ended, waiting) = std::mem::take(&mut self.prefetches).into_iter().partition(|(end, _)| *end <= now);
        self.prefetches = waiting;
        let ended: Vec<(Duration, Range<usize>)> = ended;
        ended.into_iter().for_each(|(_, pages)| self.present[pages].fill(true));
    }

    /// Whether a key gives access to memory.
    pub fn permits(&self, key: u32, addr: u64, len: u64) -> bool {
        self.regions.get(&key).is_some_and(|region| region.covers(addr, len))
    }

    /// What the adapter may use: on this side, or for a peer, which has the key for it. `None`: it may not.
    pub fn access(&mut self, now: Duration, key: u32, addr: u64, len: u64, writes: bool) -> Option<&mut [u8]> {
        let region = *self.regions.get(&key)?;
        if !region.covers(addr, len) || (writes && !region.how.writable) {
            return None;
        }
        let at = self.at(addr, len)?;
        self.end_prefetches(now);
        for page in pages(at, len) {
            if region.how.on_demand && !std::mem::replace(&mut self.present[page], true) {
                self.faults += 1;
            }
        }
        Some(&mut self.bytes[at..at + len as usize])
    }
}

impl Region {
    fn covers(&self, addr: u64, len: u64) -> bool {
        addr >= self.addr && addr.checked_add(len).is_some_and(|end| end <= self.addr + self.len)
    }
}

fn pages(at: usize, len: u64) -> Range<usize> {
    at / PAGE as usize..(at + len as usize).div_ceil(PAGE as usize)
}
