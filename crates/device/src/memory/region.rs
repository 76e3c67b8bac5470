//! Memory regions: keys, bounds and permissions.

use crate::Errno;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::RwLock;
use std::sync::atomic::{AtomicU64, Ordering};
use weir_transport::{Access, Denied};

/// What a key stands for.
#[derive(Clone, Copy, Debug)]
pub struct Region {
    /// The whole key, lkey and rkey alike.
    pub key: u32,
    /// Protection domain.
    pub pd: u32,
    /// First byte in this process.
    pub addr: u64,
    /// The address by which keys' users know the first byte.
    pub iova: u64,
    /// Bytes.
    pub len: u64,
    /// What may be done.
    pub access: Access,
}

impl Region {
    /// Where `len` bytes at `va` lie in this process, if all of this allows it.
    pub fn locate(&self, pd: u32, va: u64, len: u64, access: Access) -> Result<u64, Denied> {
        let inside = va >= self.iova && len <= self.len && va - self.iova <= self.len - len;
        if self.pd == pd && inside && self.access.contains(access) {
            Ok(self.addr + (va - self.iova))
        } else {
            Err(Denied::Protection)
        }
    }
}

/// All regions of an adapter. Keys are random: nobody reaches memory by guessing on from a key that he was given.
#[derive(Default)]
pub struct Regions {
    table: RwLock<HashMap<u32, Region, BuildHasherDefault<KeyHasher>>>,
    version: AtomicU64,
}

/// The region that was used last; right as long as the table's version is the same.
#[derive(Default)]
pub struct Cached {
    version: u64,
    region: Option<Region>,
}

impl Regions {
    /// Enters a region under a new key, which is returned.
    pub fn insert(&self, mut region: Region) -> Result<u32, Errno> {
        let mut table = self.table.write().expect("no panic under this lock");
        loop {
            region.key = getrandom::u32().map_err(|_| Errno(libc::EAGAIN))?;
            // The low byte is the part that memory windows may choose; the rest names the region. Zero and all ones
            // stay free: programs use them for "no key".
            let index = region.key >> 8;
            if index != 0 && index != 0xff_ffff && !table.contains_key(&index) {
                table.insert(index, region);
                self.version.fetch_add(1, Ordering::Release);
                return Ok(region.key);
            }
        }
    }

    /// Takes a key back. Accesses that run now end first if the caller then waits for the engine.
    pub fn remove(&self, key: u32) {
        self.table.write().expect("no panic under this lock").remove(&(key >> 8));
        self.version.fetch_add(1, Ordering::Release);
    }

    /// What a key stands for now.
    pub fn find(&self, key: u32, cached: &mut Cached) -> Result<Region, Denied> {
        let version = self.version.load(Ordering::Acquire);
        if let Some(region) = cached.region
            && region.key == key
            && cached.version == version
        {
            return Ok(region);
        }
        let table = self.table.read().expect("no panic under this lock");
        let region = table.get(&(key >> 8)).filter(|region| region.key == key).copied().ok_or(Denied::Protection)?;
        *cached = Cached { version, region: Some(region) };
        Ok(region)
    }
}

/// Keys are random already.
#[derive(Default)]
struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, _: &[u8]) {
        unreachable!("keys are u32")
    }
    fn write_u32(&mut self, key: u32) {
        self.0 = u64::from(key).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(iova: u64, len: u64) -> Region {
        Region { key: 0, pd: 1, addr: 0x1000, iova, len, access: Access::REMOTE_READ }
    }

    #[test]
    fn bounds_hold_at_the_edges_of_the_address_space() {
        let r = region(u64::MAX - 99, 100);
        assert_eq!(r.locate(1, u64::MAX - 99, 100, Access::REMOTE_READ), Ok(0x1000));
        assert_eq!(r.locate(1, u64::MAX, 1, Access::REMOTE_READ), Ok(0x1000 + 99));
        for (va, len) in [(u64::MAX, 2), (u64::MAX - 100, 1), (0, 1), (u64::MAX - 99, 101), (5, u64::MAX)] {
            assert_eq!(r.locate(1, va, len, Access::REMOTE_READ), Err(Denied::Protection), "{va:#x} {len}");
        }
        assert_eq!(r.locate(2, u64::MAX, 1, Access::REMOTE_READ), Err(Denied::Protection));
        assert_eq!(r.locate(1, u64::MAX, 1, Access::REMOTE_WRITE), Err(Denied::Protection));
    }

    #[test]
    fn a_removed_key_is_gone_for_the_cache_too() {
        let regions = Regions::default();
        let mut cached = Cached::default();
        let key = regions.insert(region(0, 10)).unwrap();
        assert!(regions.find(key, &mut cached).is_ok());
        assert!(regions.find(key ^ 1, &mut cached).is_err());
        assert!(regions.find(key, &mut cached).is_ok());
        regions.remove(key);
        assert!(regions.find(key, &mut cached).is_err());
    }
}
