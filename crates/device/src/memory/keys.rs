//! The keys of an adapter: its regions and windows by key.

use crate::Errno;
use crate::memory::region::Region;
use crate::memory::window::Window;
use crate::os::grow::with_room;
use crate::os::locks::{RankedReadGuard, RankedRwLock, RankedWriteGuard, rank};
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use weir_transport::Denied;

/// Maximum number of regions of an adapter, and separately of windows.
pub const MAX_KEYS_OF_A_KIND: usize = 1 << 20;

/// All regions and windows of an adapter. Keys are random, so that a peer cannot guess further keys from a key that
/// it was given.
#[derive(Default)]
pub struct Regions {
    table: RankedRwLock<Table, { rank::LEAF }>,
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

    /// Locks the table for reading.
    pub(super) fn read(&self) -> RankedReadGuard<'_, Table, { rank::LEAF }> {
        self.table.read()
    }

    /// Locks the table for writing and invalidates all cached regions.
    pub(super) fn write(&self) -> RankedWriteGuard<'_, Table, { rank::LEAF }> {
        let table = self.table.write();
        // A reader that loads the new version waits for the lock. A caller that must exclude users of a region that
        // was cached before waits for the engine itself.
        self.version.fetch_add(1, Ordering::Release);
        table
    }
}

impl Table {
    /// Decrements the count of windows bound to the region of this window.
    pub(super) fn unbound(&mut self, window: &Window) {
        if let Some(mr) = window.bound_to()
            && let Some(Entry::Region { windows, .. }) = self.entries.get_mut(&(mr >> 8))
        {
            *windows -= 1;
        }
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
    use crate::memory::region::tests::region;

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
