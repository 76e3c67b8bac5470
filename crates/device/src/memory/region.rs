//! What keys stand for: memory regions and windows, their bounds and permissions.

use crate::Errno;
use crate::memory::window::Window;
use crate::paging::Paged;
use crate::room::with_room;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use weir_transport::{Access, Denied};

/// Regions, and as many windows again, that an adapter has at most.
pub const MAX_KEYS_OF_A_KIND: usize = 1 << 20;

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
    /// Whose key it is.
    pub kind: Kind,
    /// Its pages, if they are brought in on demand.
    pub paged: Option<Paged>,
}

/// Whose key a [`Region`] has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A memory region's.
    Memory,
    /// A null region's: zeros to read, and nobody keeps what is written.
    Null,
    /// A bound window's, for any QP of its PD or for one.
    Window { qp: Option<u32> },
}

/// Where an access goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// This address of the process.
    Memory(u64),
    /// Nowhere: a null region.
    Null,
}

impl Region {
    /// Where `len` bytes at `va` lie for this process's own work requests, if all of this allows it.
    pub fn local(&self, pd: u32, va: u64, len: u64, access: Access) -> Result<Place, Denied> {
        match self.kind {
            Kind::Memory => self.place(pd, va, len, access).map(Place::Memory),
            Kind::Null => self.place(pd, va, len, access).map(|_| Place::Null),
            Kind::Window { .. } => Err(Denied::Protection),
        }
    }

    /// Where `len` bytes at `va` lie for the peer of QP `qp`, if all of this allows it.
    pub fn remote(&self, pd: u32, qp: u32, va: u64, len: u64, access: Access) -> Result<u64, Denied> {
        match self.kind {
            Kind::Null => Err(Denied::Protection),
            // IBTA 10.6.7.2.2: a window of type 2B is its QP's alone.
            Kind::Window { qp: Some(own) } if own != qp => Err(Denied::Protection),
            Kind::Memory | Kind::Window { .. } => self.place(pd, va, len, access),
        }
    }

    fn place(&self, pd: u32, va: u64, len: u64, access: Access) -> Result<u64, Denied> {
        if self.pd == pd && self.holds(va, len) && self.access.contains(access) {
            Ok(self.addr.wrapping_add(va - self.iova))
        } else {
            Err(Denied::Protection)
        }
    }

    /// Whether `len` bytes at `va` are within it.
    pub fn holds(&self, va: u64, len: u64) -> bool {
        va >= self.iova && len <= self.len && va - self.iova <= self.len - len
    }
}

/// All regions and windows of an adapter. Keys are random: nobody reaches memory by guessing on from a key that he was
/// given.
#[derive(Default)]
pub struct Regions {
    table: RwLock<Table>,
    version: AtomicU64,
}

/// Keys' upper 24 bits and what they stand for.
#[derive(Default)]
pub(super) struct Table {
    pub(super) entries: Entries,
    /// How many of the entries are windows.
    pub(super) windows: usize,
}

type Entries = HashMap<u32, Entry, BuildHasherDefault<KeyHasher>>;

/// What a key may be.
pub(super) enum Entry {
    /// A region, and how many windows are bound to it.
    Region { region: Region, windows: u32 },
    /// A window, bound or not.
    Window(Window),
}

/// The region that was used last; right as long as the table's version is the same.
#[derive(Default)]
pub struct Cached {
    version: u64,
    region: Option<Region>,
}

impl Regions {
    /// Looks at what a key stands for, while nobody changes it.
    pub fn with<T>(&self, key: u32, look: impl FnOnce(&Region) -> T) -> Option<T> {
        let table = self.read();
        match table.entries.get(&(key >> 8))? {
            Entry::Region { region, .. } => (region.key == key).then(|| look(region)),
            Entry::Window(window) => window.opened().filter(|view| view.key == key).map(|view| look(&view)),
        }
    }

    /// Enters a region under a new key, which is returned. ENOMEM beyond `max_mr`.
    pub fn insert(&self, region: Region) -> Result<u32, Errno> {
        self.enter(|key| Entry::Region { region: Region { key, ..region }, windows: 0 })
    }

    /// Puts something else under a region's key. EBUSY while windows are bound to it, EINVAL if there is no such key.
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

    /// Takes a region's key back. EBUSY while windows are bound to it, EINVAL if there is no such key. Accesses that run now end first if the caller
    /// then waits for the engine.
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

    /// What a key stands for now.
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

    /// Enters what `make` makes of a new key. ENOMEM if there are too many of its kind.
    pub(super) fn enter(&self, make: impl FnOnce(u32) -> Entry) -> Result<u32, Errno> {
        let mut table = with_room(1, || self.write(), |table| &mut table.entries)?;
        let key = loop {
            let key = getrandom::u32().map_err(|_| Errno(libc::EAGAIN))?;
            // The low byte is the part that memory windows may choose; the rest names the region. Zero and all ones
            // stay free: programs use them for "no key".
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

    /// Takes a window out.
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

    /// The table to change: what was cached of it is void.
    pub(super) fn write(&self) -> RwLockWriteGuard<'_, Table> {
        let table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        // Readers that saw the new version wait for the lock; those that had a region cached are waited for by
        // whoever needs them gone.
        self.version.fetch_add(1, Ordering::Release);
        table
    }
}

/// Keys are random already.
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
    fn a_removed_key_is_gone_for_the_cache_too() {
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
    fn a_null_region_is_for_this_process_only() {
        let null = Region { kind: Kind::Null, ..region(0, u64::MAX) };
        assert_eq!(null.local(1, 12345, 1 << 40, Access::REMOTE_READ), Ok(Place::Null));
        assert_eq!(null.local(2, 0, 1, Access::empty()), Err(Denied::Protection));
        assert_eq!(null.remote(1, 9, 0, 1, Access::REMOTE_READ), Err(Denied::Protection));
    }

    #[test]
    fn the_table_grows_and_forgets_nothing() {
        let regions = Regions::default();
        let keys: Vec<u32> = (0..1000).map(|n| regions.insert(region(n, 10)).unwrap()).collect();
        for (n, key) in keys.iter().enumerate() {
            assert_eq!(regions.find(*key, &mut Cached::default()).unwrap().iova, n as u64);
            assert_eq!(regions.remove(*key), Ok(()));
        }
        assert!(regions.read().entries.is_empty());
    }
}
