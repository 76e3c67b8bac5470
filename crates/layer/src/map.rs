//! A map from numbers to objects that live as long as the process, read without a lock.
//!
//! Each post and each completion looks up its QP. Writers hold a lock of the caller. When the table grows, the old one
//! stays allocated, because a reader may be in it; together the old ones are smaller than the new one.

use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering::*};

/// The map. Key 0 is not possible.
pub struct Map<T: 'static> {
    table: AtomicPtr<Table<T>>,
    /// Keys in the table, those of removed objects included.
    keys: AtomicUsize,
}

struct Table<T: 'static> {
    slots: Box<[Slot<T>]>,
}

/// A slot keeps its key for ever; its object can be removed.
struct Slot<T: 'static> {
    key: AtomicU64,
    object: AtomicPtr<T>,
}

impl<T> Map<T> {
    pub const fn new() -> Map<T> {
        Map { table: AtomicPtr::new(std::ptr::null_mut()), keys: AtomicUsize::new(0) }
    }

    /// The object with this key.
    #[inline]
    pub fn get(&self, key: u64) -> Option<&'static T> {
        let slot = self.table()?.find(key);
        // SAFETY: a slot has NULL or an object that lives as long as the process.
        if slot.key.load(Acquire) == key { unsafe { slot.object.load(Acquire).as_ref() } } else { None }
    }

    /// Enters an object in place of an earlier one. The caller holds the writers' lock.
    pub fn insert(&self, key: u64, object: &'static T) {
        let table = match self.table() {
            Some(table) if 2 * (self.keys.load(Relaxed) + 1) <= table.slots.len() => table,
            old => self.grow(old),
        };
        let slot = table.find(key);
        slot.object.store(std::ptr::from_ref(object).cast_mut(), Release);
        if slot.key.load(Relaxed) == 0 {
            slot.key.store(key, Release);
            self.keys.fetch_add(1, Relaxed);
        }
    }

    /// Removes an object. The caller holds the writers' lock.
    pub fn remove(&self, key: u64) -> Option<&'static T> {
        let slot = self.table()?.find(key);
        if slot.key.load(Relaxed) != key {
            return None;
        }
        // SAFETY: as in `get`.
        unsafe { slot.object.swap(std::ptr::null_mut(), AcqRel).as_ref() }
    }

    /// Visits all objects. The caller holds the writers' lock.
    pub fn each(&self, mut visit: impl FnMut(&'static T)) {
        for slot in self.table().map_or(&[][..], |table| &table.slots) {
            // SAFETY: as in `get`.
            if let Some(object) = unsafe { slot.object.load(Acquire).as_ref() } {
                visit(object);
            }
        }
    }

    /// Removes all objects.
    pub fn clear(&self) {
        for slot in self.table().map_or(&[][..], |table| &table.slots) {
            slot.object.store(std::ptr::null_mut(), Release);
        }
    }

    fn table(&self) -> Option<&'static Table<T>> {
        // SAFETY: tables are never freed.
        unsafe { self.table.load(Acquire).as_ref() }
    }

    fn grow(&self, old: Option<&'static Table<T>>) -> &'static Table<T> {
        let kept = |slot: &&Slot<T>| !slot.object.load(Relaxed).is_null();
        let slots = old.map_or(&[][..], |table| &table.slots);
        let count = slots.iter().filter(kept).count();
        let table: &'static Table<T> = Box::leak(Box::new(Table::new((4 * (count + 1)).next_power_of_two().max(64))));
        for slot in slots.iter().filter(kept) {
            let (key, object) = (slot.key.load(Relaxed), slot.object.load(Relaxed));
            let free = table.find(key);
            free.key.store(key, Relaxed);
            free.object.store(object, Relaxed);
        }
        self.keys.store(count, Relaxed);
        self.table.store(std::ptr::from_ref(table).cast_mut(), Release);
        table
    }
}

impl<T> Table<T> {
    fn new(slots: usize) -> Table<T> {
        let empty = |_| Slot { key: AtomicU64::new(0), object: AtomicPtr::new(std::ptr::null_mut()) };
        Table { slots: (0..slots).map(empty).collect() }
    }

    /// The slot of a key, or the free slot for it. There is a free one, because at most half of them have keys.
    #[inline]
    fn find(&self, key: u64) -> &Slot<T> {
        let mask = self.slots.len() - 1;
        // Keys are addresses and counted numbers: multiplication spreads their low bits over the high ones.
        let mut at = (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize & mask;
        loop {
            let found = self.slots[at].key.load(Acquire);
            if found == key || found == 0 {
                return &self.slots[at];
            }
            at = (at + 1) & mask;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(n: u64) -> &'static u64 {
        Box::leak(Box::new(n))
    }

    #[test]
    fn objects_are_found_until_they_are_removed() {
        let map = Map::new();
        assert!(map.get(1).is_none() && map.remove(1).is_none());
        (1..1000).for_each(|key| map.insert(key, object(key)));
        assert!((1..1000).all(|key| map.get(key) == Some(&key)));
        assert!(map.get(1000).is_none());
        (1..500).for_each(|key| assert_eq!(map.remove(key), Some(&key)));
        assert!((1..500).all(|key| map.get(key).is_none()));
        assert!((500..1000).all(|key| map.get(key) == Some(&key)));
        map.insert(7, object(8));
        assert_eq!(map.get(7), Some(&8));
        map.clear();
        assert!((1..1000).all(|key| map.get(key).is_none()));
    }

    #[test]
    fn removed_keys_leave_room() {
        let map = Map::new();
        for key in 1..100_000 {
            map.insert(key, object(key));
            map.remove(key);
        }
        assert!(map.table().unwrap().slots.len() <= 64, "{}", map.table().unwrap().slots.len());
    }

    #[test]
    fn readers_find_what_stays_while_a_writer_adds() {
        static MAP: Map<u64> = Map::new();
        MAP.insert(1, object(1));
        let reader = std::thread::spawn(|| (0..200_000).all(|_| MAP.get(1) == Some(&1)));
        (2..20_000).for_each(|key| MAP.insert(key, object(key)));
        assert!(reader.join().unwrap());
    }
}
