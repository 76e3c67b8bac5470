//! Memory regions and windows by key: bounds and permissions.

use crate::Errno;
use crate::memory::window::Window;
use crate::paging::Paged;
use crate::room::with_room;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use weir_transport::{Access, Denied};

/// Maximum number of regions of an adapter, and separately of windows.
pub const MAX_KEYS_OF_A_KIND: usize = 1 << 20;

/// The memory and the permissions that a key grants.
#[derive(Clone, Copy, Debug)]
pub struct Region {
    /// The complete key: lkey and rkey are equal.
    pub key: u32,
    /// Protection domain.
    pub pd: u32,
    /// Address of the first byte in this process.
    pub addr: u64,
    /// Address of the first byte as users of the key give it.
    pub iova: u64,
    /// Length in bytes.
    pub len: u64,
    /// Permitted accesses.
    pub access: Access,
    /// Type of the object that the key belongs to.
    pub kind: Kind,
    /// The page table of an ODP region; `None` for pinned memory.
    pub paged: Option<Paged>,
}

/// Type of the object that the key of a [`Region`] belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A memory region.
    Memory,
    /// A null region: reads return zeros, writes are discarded.
    Null,
    /// A bound window. `qp` is the only QP that may use it, or `None` for all QPs of its PD.
    Window { qp: Option<u32> },
}

/// Target of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessTarget {
    /// This address in the process.
    Memory(u64),
    /// No memory: a null region.
    Null,
}

impl Region {
    /// The target of `len` bytes at `va` for a work request of this process, if PD, bounds and permissions allow the
    /// access.
    pub fn local(&self, pd: u32, va: u64, len: u64, access: Access) -> Result<AccessTarget, Denied> {
        match self.kind {
            Kind::Memory => self.address_of(pd, va, len, access).map(AccessTarget::Memory),
            Kind::Null => self.address_of(pd, va, len, access).map(|_| AccessTarget::Null),
            Kind::Window { .. } => Err(Denied::Protection),
        }
    }

    /// The address of `len` bytes at `va` for the peer of QP `qp`, if PD, bounds and permissions allow the access.
    pub fn remote(&self, pd: u32, qp: u32, va: u64, len: u64, access: Access) -> Result<u64, Denied> {
        match self.kind {
            Kind::Null => Err(Denied::Protection),
            // IBTA 10.6.7.2.2: only the QP that a type 2B window is bound to may use it.
            Kind::Window { qp: Some(own) } if own != qp => Err(Denied::Protection),
            Kind::Memory | Kind::Window { .. } => self.address_of(pd, va, len, access),
        }
    }

    fn address_of(&self, pd: u32, va: u64, len: u64, access: Access) -> Result<u64, Denied> {
        if self.pd == pd && self.holds(va, len) && self.access.contains(access) {
            Ok(self.addr.wrapping_add(va - self.iova))
        } else {
            Err(Denied::Protection)
        }
    }

    /// Whether the `len` bytes at `va` are within the region.
    pub fn holds(&self, va: u64, len: u64) -> bool {
        va >= self.iova && len <= self.len && va - self.iova <= self.len - len
    }
}

/// All regions and windows of an adapter. Keys are random, so that a peer cannot guess further keys from a key that
/// it was given.
#[derive(Default)]
pub struct Regions {
    table: RwLock<Table>,
    version: AtomicU64,
}

/// Entries by the upper 24 bits of their keys.
#[derive(Default)]
pub(super) struct Table {
    pub(super) entries: Entries,
    /// Number of entries that are windows.
    pub(super) windows: usize,
}

type Entries = HashMap<u32, Entry, BuildHasherDefault<KeyHasher>>;

/// The object that has a key.
pub(super) enum Entry {
    /// A region, and the number of windows bound to it.
    Region { region: Region, windows: u32 },
    /// A window, bound or unbound.
    Window(Window),
}

/// The region that was used last. It is valid while the version of the table stays the same.
#[derive(Default)]
pub struct Cached {
    version: u64,
    region: Option<Region>,
}

impl Regions {
    /// Calls `look` with the region that `key` grants, under the read lock. `None` for an invalid key.
    pub fn with<T>(&self, key: u32, look: impl FnOnce(&Region) -> T) -> Option<T> {
        let table = self.read();
        match table.entries.get(&(key >> 8))? {
            Entry::Region { region, .. } => (region.key == key).then(|| look(region)),
            Entry::Window(window) => window.opened().filter(|view| view.key == key).map(|view| look(&view)),
        }
    }

    /// Inserts a region under a new key and returns the key. ENOMEM beyond `max_mr`.
    pub fn insert(&self, region: Region) -> Result<u32, Errno> {
        self.enter(|key| Entry::Region { region: Region { key, ..region }, windows: 0 })
    }

    /// Replaces the region of a key. EBUSY while windows are bound to it, EINVAL if no region has that key.
    pub fn replace(&self, key: u32, with: Region) -> Result<(), Errno> {
        match self.write().entries.get_mut(&(key >> 8)) {
            Some(Entry::Region { windows: 1.., .. }) => Err(Errno(libc::EBUSY)),
            Some(Entry::Region { region, .. }) => {
                *region = Region { key, ..with };
                Ok(())
            }
            _ => Err(Errno(libc::EINVAL)),
        }
    }

    /// Removes a region. EBUSY while windows are bound to it, EINVAL if no region has that key. Accesses that are
    /// under way end later: the caller waits for the engine.
    pub fn remove(&self, key: u32) -> Result<(), Errno> {
        let mut table = self.write();
        match table.entries.get(&(key >> 8)) {
            Some(Entry::Region { windows: 1.., .. }) => Err(Errno(libc::EBUSY)),
            Some(Entry::Region { .. }) => {
                table.entries.remove(&(key >> 8));
                Ok(())
            }
            _ => Err(Errno(libc::EINVAL)),
        }
    }

    /// The region that `key` grants now, from the cache if it is still valid.
    pub fn find(&self, key: u32, cached: &mut Cached) -> Result<Region, Denied> {
        let version = self.version.load(Ordering::Acquire);
        if let Some(region) = cached.region
            && region.key == key
            && cached.version == version
        {
            return Ok(region);
        }
        let table = self.read();
        let found = match table.entries.get(&(key >> 8)) {
            Some(Entry::Region { region, .. }) => Some(*region),
            Some(Entry::Window(window)) => window.opened(),
            None => None,
        };
        let region = found.filter(|region| region.key == key).ok_or(Denied::Protection)?;
        *cached = Cached { version, region: Some(region) };
        Ok(region)
    }

    /// Inserts the entry that `make` returns for a new key. ENOMEM if there are too many entries of its type.
    pub(super) fn enter(&self, make: impl FnOnce(u32) -> Entry) -> Result<u32, Errno> {
        let mut table = with_room(1, || self.write(), |table| &mut table.entries)?;
        let key = loop {
            let key = getrandom::u32().map_err(|_| Errno(libc::EAGAIN))?;
            // The low byte is the part that the owner of a memory window may choose; the rest is the index. Indices
            // of zero and of all ones stay unused, because programs use such keys for "no key".
            let index = key >> 8;
            if index != 0 && index != 0xff_ffff && !table.entries.contains_key(&index) {
                break key;
            }
        };
        let entry = make(key);
        let window = matches!(entry, Entry::Window(_));
        let of_its_kind = if window { table.windows } else { table.entries.len() - table.windows };
        if of_its_kind >= MAX_KEYS_OF_A_KIND {
            return Err(Errno(libc::ENOMEM));
        }
        table.windows += usize::from(window);
        table.entries.insert(key >> 8, entry);
        Ok(key)
    }

    /// Removes a window.
    pub(super) fn leave(&self, key: u32) -> Option<Window> {
        let mut table = self.write();
        if !matches!(table.entries.get(&(key >> 8)), Some(Entry::Window(_))) {
            return None;
        }
        table.windows -= 1;
        let Some(Entry::Window(window)) = table.entries.remove(&(key >> 8)) else { return None };
        table.unbound(&window);
        Some(window)
    }

    pub(super) fn read(&self) -> RwLockReadGuard<'_, Table> {
        self.table.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the table for writing and invalidates all cached regions.
    pub(super) fn write(&self) -> RwLockWriteGuard<'_, Table> {
        let table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        // A reader that loads the new version waits for the lock. A caller that must exclude users of a region that
        // was cached before waits for the engine itself.
        self.version.fetch_add(1, Ordering::Release);
        table
    }
}

/// Cheap hash: keys are random already.
#[derive(Default)]
pub(super) struct KeyHasher(u64);

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
        Region { key: 0, pd: 1, addr: 0x1000, iova, len, access: Access::REMOTE_READ, kind: Kind::Memory, paged: None }
    }

    #[test]
    fn bounds_hold_at_the_edges_of_the_address_space() {
        let r = region(u64::MAX - 99, 100);
        let read = |pd, va, len| r.remote(pd, 9, va, len, Access::REMOTE_READ);
        assert_eq!(read(1, u64::MAX - 99, 100), Ok(0x1000));
        assert_eq!(read(1, u64::MAX, 1), Ok(0x1000 + 99));
        for (va, len) in [(u64::MAX, 2), (u64::MAX - 100, 1), (0, 1), (u64::MAX - 99, 101), (5, u64::MAX)] {
            assert_eq!(read(1, va, len), Err(Denied::Protection), "{va:#x} {len}");
        }
        assert_eq!(read(2, u64::MAX, 1), Err(Denied::Protection));
        assert_eq!(r.remote(1, 9, u64::MAX, 1, Access::REMOTE_WRITE), Err(Denied::Protection));
    }

    #[test]
    fn a_cached_region_is_not_used_after_its_key_is_removed() {
        let regions = Regions::default();
        let mut cached = Cached::default();
        let key = regions.insert(region(0, 10)).unwrap();
        assert!(regions.find(key, &mut cached).is_ok());
        assert!(regions.find(key ^ 1, &mut cached).is_err());
        assert!(regions.find(key, &mut cached).is_ok());
        regions.remove(key).unwrap();
        assert!(regions.find(key, &mut cached).is_err());
    }

    #[test]
    fn a_null_region_denies_remote_access() {
        let null = Region { kind: Kind::Null, ..region(0, u64::MAX) };
        assert_eq!(null.local(1, 12345, 1 << 40, Access::REMOTE_READ), Ok(AccessTarget::Null));
        assert_eq!(null.local(2, 0, 1, Access::empty()), Err(Denied::Protection));
        assert_eq!(null.remote(1, 9, 0, 1, Access::REMOTE_READ), Err(Denied::Protection));
    }

    #[test]
    fn a_growing_table_keeps_every_region() {
        let regions = Regions::default();
        let keys: Vec<u32> = (0..1000).map(|n| regions.insert(region(n, 10)).unwrap()).collect();
        for (n, key) in keys.iter().enumerate() {
            assert_eq!(regions.find(*key, &mut Cached::default()).unwrap().iova, n as u64);
            assert_eq!(regions.remove(*key), Ok(()));
        }
        assert!(regions.read().entries.is_empty());
    }
}
