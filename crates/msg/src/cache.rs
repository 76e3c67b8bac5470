//! Registrations of the program's buffers, kept for the next operation on the same memory (a pin-down cache).
//!
//! A registration that no operation uses stays until the limits are exceeded, least recently used first, until the memory
//! goes away, or until the adapter has no room for another.

use crate::port::Registered;
use crate::warm::Warm;
use std::collections::BTreeMap;

/// A registration in the cache.
pub type RegionId = usize;

/// Registrations by address. It registers nothing itself.
#[derive(Debug)]
pub struct Cache {
    regions: slab::Slab<Cached>,
    /// By first address, then in order of registration.
    by_start: BTreeMap<(u64, RegionId), u64>,
    /// No region is longer, bytes; so a search can end.
    longest: u64,
    clock: u64,
    idle_bytes: u64,
    idle: usize,
    max_bytes: u64,
    max_regions: usize,
}

/// What the cache knows of a registration.
#[derive(Debug)]
pub struct Cached {
    pub start: u64,
    /// Bytes.
    pub len: u64,
    pub registered: Registered,
    /// The adapter may write to it.
    pub writable: bool,
    /// Pages of it that the adapter need not be asked for.
    pub(crate) warm: Warm,
    users: u32,
    used: u64,
    /// The memory has gone: no other operation may use it.
    gone: bool,
}

impl Cache {
    /// Keeps at most so many bytes and regions that no operation uses.
    pub fn new(max_bytes: u64, max_regions: usize) -> Cache {
        Cache {
            regions: slab::Slab::new(),
            by_start: BTreeMap::new(),
            longest: 0,
            clock: 0,
            idle_bytes: 0,
            idle: 0,
            max_bytes,
            max_regions,
        }
    }

    /// A registration that covers the range, which the caller uses until [`Self::release`]. `writable`: the adapter will
    /// write to it.
    pub fn find(&mut self, addr: u64, len: u64, writable: bool) -> Option<RegionId> {
        let lowest = addr.saturating_sub(self.longest);
        let candidates = self.by_start.range((lowest, 0)..=(addr, RegionId::MAX)).rev();
        let covers = |&(&(start, id), &region_len): &(&(u64, RegionId), &u64)| {
            let region = &self.regions[id];
            start + region_len >= addr + len && !region.gone && (region.writable || !writable)
        };
        let id = candidates.into_iter().find(covers).map(|(&(_, id), _)| id)?;
        self.clock += 1;
        let region = &mut self.regions[id];
        region.used = self.clock;
        region.users += 1;
        if region.users == 1 {
            self.idle -= 1;
            self.idle_bytes -= region.len;
        }
        Some(id)
    }

    /// Adds a registration, which the caller uses until [`Self::release`].
    pub fn add(&mut self, start: u64, len: u64, writable: bool, registered: Registered) -> RegionId {
        self.clock += 1;
        let (users, used, gone, warm) = (1, self.clock, false, Warm::default());
        let id = self.regions.insert(Cached { start, len, registered, writable, warm, users, used, gone });
        self.by_start.insert((start, id), len);
        self.longest = self.longest.max(len);
        id
    }

    /// A registration that the caller uses ends with that use.
    pub fn use_once(&mut self, id: RegionId) {
        self.regions[id].gone = true;
    }

    /// A registration that the caller uses.
    pub fn get(&self, id: RegionId) -> &Cached {
        &self.regions[id]
    }

    /// Pages of a registration that the caller uses.
    pub(crate) fn warm(&mut self, id: RegionId) -> &mut Warm {
        &mut self.regions[id].warm
    }

    /// The caller uses it no longer. Calls `end` with each registration that must end now.
    pub fn release(&mut self, id: RegionId, mut end: impl FnMut(&Cached)) {
        let region = &mut self.regions[id];
        region.users -= 1;
        if region.users > 0 {
            return;
        }
        self.idle += 1;
        self.idle_bytes += region.len;
        if region.gone {
            self.remove(id, &mut end);
        }
        while self.idle_bytes > self.max_bytes || self.idle > self.max_regions {
            self.evict(&mut end);
        }
    }

    /// Ends the registration that was used least recently of those that no operation uses. False: there is none.
    pub fn evict(&mut self, mut end: impl FnMut(&Cached)) -> bool {
        let idle = self.regions.iter().filter(|(_, region)| region.users == 0);
        let Some((id, _)) = idle.min_by_key(|(_, region)| region.used) else { return false };
        self.remove(id, &mut end);
        true
    }

    /// Memory goes away, or becomes other memory: ends its registrations, those in use as soon as no operation uses them.
    pub fn invalidate(&mut self, addr: u64, len: u64, mut end: impl FnMut(&Cached)) {
        let overlaps = |region: &Cached| region.start < addr.saturating_add(len) && addr < region.start + region.len;
        let hit: Vec<RegionId> = self.regions.iter().filter(|(_, region)| overlaps(region)).map(|(id, _)| id).collect();
        for id in hit {
            self.regions[id].gone = true;
            if self.regions[id].users == 0 {
                self.remove(id, &mut end);
            }
        }
    }

    /// Ends all registrations, whether they are used or not.
    pub fn clear(&mut self, mut end: impl FnMut(&Cached)) {
        self.regions.drain().for_each(|region| end(&region));
        self.by_start.clear();
        (self.idle, self.idle_bytes, self.longest) = (0, 0, 0);
    }

    fn remove(&mut self, id: RegionId, end: &mut impl FnMut(&Cached)) {
        let region = self.regions.remove(id);
        self.by_start.remove(&(region.start, id));
        self.idle -= 1;
        self.idle_bytes -= region.len;
        end(&region);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Bed {
        cache: Cache,
        ended: Vec<u32>,
    }

    impl Bed {
        fn new(bytes: u64, regions: usize) -> Bed {
            Bed { cache: Cache::new(bytes, regions), ended: Vec::new() }
        }

        fn add(&mut self, start: u64, len: u64, key: u32) -> RegionId {
            self.cache.add(start, len, true, Registered { lkey: key, rkey: key })
        }

        fn release(&mut self, id: RegionId) -> Vec<u32> {
            self.cache.release(id, |region| self.ended.push(region.registered.lkey));
            std::mem::take(&mut self.ended)
        }
    }

    #[test]
    fn a_registration_that_covers_the_range_is_found() {
        let mut bed = Bed::new(1 << 20, 10);
        let wide = bed.add(0x1000, 0x9000, 1);
        let narrow = bed.add(0x4000, 0x1000, 2);
        assert_eq!(bed.cache.find(0x4800, 0x800, true), Some(narrow));
        assert_eq!(bed.cache.find(0x4800, 0x801, true), Some(wide));
        assert_eq!(bed.cache.find(0x9fff, 2, true), None);
        assert_eq!(bed.cache.find(0xfff, 2, true), None);
    }

    #[test]
    fn the_least_recently_used_ends_first_and_none_in_use() {
        let mut bed = Bed::new(0x3000, 10);
        let ids: Vec<_> = (0..4).map(|n| bed.add(n * 0x10000, 0x1000, n as u32)).collect();
        assert!(bed.release(ids[0]).is_empty() && bed.release(ids[1]).is_empty() && bed.release(ids[2]).is_empty());
        let again = bed.cache.find(0, 1, true).unwrap();
        assert!(bed.release(again).is_empty());
        assert_eq!(bed.release(ids[3]), [1]);
        assert!(bed.cache.find(0, 0x1000, true).is_some());
        let mut ended = Vec::new();
        while bed.cache.evict(|region| ended.push(region.registered.lkey)) {}
        assert_eq!(ended, [2, 3]);
    }

    #[test]
    fn memory_that_goes_away_ends_its_registrations() {
        let mut bed = Bed::new(1 << 20, 10);
        let used = bed.add(0x1000, 0x2000, 1);
        let idle = bed.add(0x2000, 0x1000, 2);
        let apart = bed.add(0x8000, 0x1000, 3);
        bed.release(idle);
        let mut ended = Vec::new();
        bed.cache.invalidate(0x2fff, 1, |region| ended.push(region.registered.lkey));
        assert_eq!(ended, [2]);
        assert_eq!(bed.cache.find(0x1000, 1, true), None);
        assert_eq!(bed.release(used), [1]);
        assert_eq!(bed.cache.find(0x8000, 1, true), Some(apart));
    }
}
