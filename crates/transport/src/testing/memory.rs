//! A process's memory: one range of bytes with regions in it, and canaries outside of all regions.

use super::paging::Paging;
use crate::{Access, Denied, Sge, Side};
use std::collections::BTreeMap;

/// The value of all bytes outside of the regions.
pub const CANARY: u8 = 0xa5;

/// A memory region; its key is both lkey and rkey.
#[derive(Clone, Copy, Debug)]
pub struct Region {
    pub key: u32,
    pub addr: u64,
    pub len: u64,
    pub access: Access,
    /// False: the application unmapped it.
    pub mapped: bool,
}

/// The bytes from address `base`.
#[derive(Clone, Debug)]
pub struct Memory {
    base: u64,
    bytes: Vec<u8>,
    regions: Vec<Region>,
    /// Keys that belong to one protection domain only.
    pub owners: BTreeMap<u32, u32>,
    /// The protection domain of the current request.
    pub pd: u32,
    /// The translation table, if the memory is ODP memory.
    pub paging: Option<Paging>,
}

impl Memory {
    /// `len` canary bytes from address `base`.
    pub fn new(base: u64, len: usize) -> Self {
        Memory { base, bytes: vec![CANARY; len], regions: Vec::new(), owners: BTreeMap::new(), pd: 0, paging: None }
    }

    /// Registers a region and fills it with `fill(index)`.
    pub fn register(&mut self, region: Region, mut fill: impl FnMut(usize) -> u8) {
        let start = (region.addr - self.base) as usize;
        for (i, byte) in self.bytes[start..start + region.len as usize].iter_mut().enumerate() {
            *byte = fill(i);
        }
        self.regions.push(region);
    }

    /// The regions, so that tests can change their access rights.
    pub fn regions(&mut self) -> &mut Vec<Region> {
        &mut self.regions
    }

    /// The raw bytes, without any region check.
    ///
    /// # Panics
    /// If the range lies outside of the memory.
    pub fn bytes(&self, addr: u64, len: usize) -> &[u8] {
        &self.bytes[(addr - self.base) as usize..][..len]
    }

    /// As `bytes`, writable.
    pub fn bytes_mut(&mut self, addr: u64, len: usize) -> &mut [u8] {
        &mut self.bytes[(addr - self.base) as usize..][..len]
    }

    /// Whether all bytes outside of the regions are unchanged.
    pub fn canaries_live(&self) -> bool {
        let mut regions: Vec<(u64, u64)> = self.regions.iter().map(|r| (r.addr, r.addr + r.len)).collect();
        regions.sort_unstable();
        regions.push((self.base + self.bytes.len() as u64, u64::MAX));
        let mut outside = self.base;
        regions.into_iter().all(|(start, end)| {
            let gap = self.bytes(outside, start.saturating_sub(outside) as usize);
            outside = outside.max(end);
            gap.iter().all(|&byte| byte == CANARY)
        })
    }

    /// Checks an access to the region of `key` for the current request.
    pub fn check(&self, key: u32, addr: u64, len: u64, access: Access) -> Result<(), Denied> {
        self.check_within(self.pd, key, addr, len, access)
    }

    /// Checks an access to the region of `key` within a protection domain.
    pub fn check_within(&self, pd: u32, key: u32, addr: u64, len: u64, access: Access) -> Result<(), Denied> {
        if self.owners.get(&key).is_some_and(|owner| *owner != pd) {
            return Err(Denied::Protection);
        }
        let region = self.regions.iter().find(|region| region.key == key).ok_or(Denied::Protection)?;
        let end = addr.checked_add(len).ok_or(Denied::Protection)?;
        if addr < region.addr || end > region.addr + region.len || !region.access.contains(access) {
            return Err(Denied::Protection);
        }
        if region.mapped { Ok(()) } else { Err(Denied::Unmapped) }
    }

    /// The number of bytes from `addr` that an access reaches, and the error that stops it.
    pub fn reach(&mut self, addr: u64, len: usize, write: bool, side: Side) -> (usize, Result<(), Denied>) {
        let Some(paging) = &mut self.paging else { return (len, Ok(())) };
        let (reach, result) = paging.reach(addr, len as u64, write, side);
        (reach as usize, result)
    }

    /// As `reach`, for `len` bytes from `offset` of the SGEs' concatenation. An error concerns all of them.
    pub fn ensure_sges_present(
        &mut self,
        sges: &[Sge],
        offset: u64,
        len: usize,
        write: bool,
        side: Side,
    ) -> Result<(), Denied> {
        let mut result = Ok(());
        Memory::for_each_segment(sges, offset, len, |addr, len| {
            result = result.and_then(|()| self.reach(addr, len, write, side).1);
        });
        result
    }

    /// Checks every SGE that is not empty.
    pub fn check_sges(&self, sges: &[Sge], access: Access) -> Result<(), Denied> {
        let filled = sges.iter().filter(|sge| sge.length > 0);
        filled.clone().try_for_each(|sge| self.check(sge.lkey, sge.addr, u64::from(sge.length), access))
    }

    /// Calls `each` with the address and length of every segment of the SGEs' concatenation in `offset..offset + len`.
    ///
    /// # Panics
    /// If the SGEs are shorter than that: the protocol never exceeds them.
    pub fn for_each_segment(sges: &[Sge], mut offset: u64, len: usize, mut each: impl FnMut(u64, usize)) {
        let mut left = len;
        for sge in sges {
            let length = u64::from(sge.length);
            if offset >= length {
                offset -= length;
                continue;
            }
            let take = left.min((length - offset) as usize);
            if take > 0 {
                each(sge.addr + offset, take);
            }
            left -= take;
            offset = 0;
        }
        assert_eq!(left, 0, "{len} bytes exceed the SGEs {sges:?}");
    }
}
