//! A map from numbers to objects that live as long as the process, read without a lock.
//!
//! Each post and each completion looks up its QP. Writers hold a lock of the caller. When the table grows, the old one
//! stays allocated, because a reader may be in it; together the old ones are smaller than the new one. So the table
//! grows by its objects only: a program may make and destroy any number of QPs, each with a new number. The slots of
//! removed objects are used again, and become free where no chain of slots continues.

use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering::*};

/// The map. Key 0 is not possible.
pub struct Map<T: 'static> {
    table: AtomicPtr<Table<T>>,
    /// Slots with a key, those of removed objects included.
    keys: AtomicUsize,
}

struct Table<T: 'static> {
    slots: Box<[Slot<T>]>,
}

/// A slot without an object may keep its key: the chains of other keys pass it. An object is stored after its key, and
/// removed before it. Only if a slot gets another key, and then its own again, in the middle of a look-up, the look-up
/// can return the other key's object.
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
        let object = slot.object.load(Acquire);
        // A writer may have given the slot to another key before it stored the object.
        // SAFETY: a slot has NULL or an object that lives as long as the process.
        if slot.key.load(Relaxed) == key { unsafe { object.as_ref() } } else { None }
    }

    /// Enters an object in place of an earlier one. The caller holds the writers' lock.
    pub fn insert(&self, key: u64, object: &'static T) {
        let table = match self.table() {
            Some(table) if 2 * (self.keys.load(Relaxed) + 1) <= table.slots.len() => table,
            old => self.grow(old),
        };
        let slot = table.place(key);
        match slot.key.load(Relaxed) {
            0 => _ = self.keys.fetch_add(1, Relaxed),
            old if old == key => return slot.object.store(std::ptr::from_ref(object).cast_mut(), Release),
            _ => {}
        }
        slot.key.store(key, Release);
        slot.object.store(std::ptr::from_ref(object).cast_mut(), Release);
    }

    /// Removes an object. The caller holds the writers' lock.
    pub fn remove(&self, key: u64) -> Option<&'static T> {
        let table = self.table()?;
        let slot = table.find(key);
        if slot.key.load(Relaxed) != key {
            return None;
        }
        // SAFETY: as in `get`.
        let object = unsafe { slot.object.swap(std::ptr::null_mut(), AcqRel).as_ref() };
        self.keys.fetch_sub(table.tidy(key), Relaxed);
        object
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

    /// Removes all objects. The caller holds the writers' lock.
    pub fn clear(&self) {
        for slot in self.table().map_or(&[][..], |table| &table.slots) {
            slot.object.store(std::ptr::null_mut(), Release);
            slot.key.store(0, Release);
        }
        self.keys.store(0, Relaxed);
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

    /// The slot of a key, or the free slot at the end of its chain. There is a free one, because at most half of them
    /// have keys.
    #[inline]
    fn find(&self, key: u64) -> &Slot<T> {
        &self.slots[self.search(key, |slot_key, _| slot_key == key)]
    }

    /// The slot for a new object: that of its key, else the first in its chain without an object.
    fn place(&self, key: u64) -> &Slot<T> {
        let found = self.find(key);
        if found.key.load(Relaxed) == key {
            return found;
        }
        &self.slots[self.search(key, |_, slot| slot.object.load(Relaxed).is_null())]
    }

    /// Frees the slots without an object at the end of a key's chain; returns their number. The key's object is
    /// removed.
    fn tidy(&self, key: u64) -> usize {
        let mask = self.slots.len() - 1;
        let mut at = self.search(key, |slot_key, _| slot_key == key);
        if self.slots[(at + 1) & mask].key.load(Relaxed) != 0 {
            return 0;
        }
        let mut freed = 0;
        while self.slots[at].key.load(Relaxed) != 0 && self.slots[at].object.load(Relaxed).is_null() {
            self.slots[at].key.store(0, Release);
            freed += 1;
            at = at.wrapping_sub(1) & mask;
        }
        freed
    }

    /// The first slot in a key's chain that is free or that `ends` accepts.
    #[inline]
    fn search(&self, key: u64, ends: impl Fn(u64, &Slot<T>) -> bool) -> usize {
        let mask = self.slots.len() - 1;
        // Keys are addresses and counted numbers: multiplication spreads their low bits over the high ones.
        let mut at = (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize & mask;
        loop {
            let found = self.slots[at].key.load(Acquire);
            if found == 0 || ends(found, &self.slots[at]) {
                return at;
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

    /// Adds and removes objects with new keys while 30 others stay; the oldest, the newest or one in between is
    /// removed.
    #[test]
    fn new_keys_in_place_of_removed_ones_need_no_new_table() {
        let map = Map::new();
        let table = || map.table().map(std::ptr::from_ref);
        let (mut live, mut tables, mut last): (Vec<u64>, _, _) = (vec![], 0, None);
        for key in 1..200_000u64 {
            map.insert(key, object(key));
            live.push(key);
            if live.len() > 30 {
                let key = live.remove(match key % 3 {
                    0 => 0,
                    1 => 30,
                    _ => (key / 3 % 31) as usize,
                });
                assert_eq!(map.remove(key), Some(&key));
            }
            if table() != last {
                (tables, last) = (tables + 1, table());
            }
            assert!(live.iter().all(|key| map.get(*key) == Some(key)), "{key}");
        }
        assert!(tables <= 3 && map.table().unwrap().slots.len() <= 256, "{tables} tables");
        live.iter().for_each(|key| assert_eq!(map.remove(*key), Some(key)));
        let free = |slot: &Slot<u64>| slot.key.load(Relaxed) == 0;
        assert!(map.keys.load(Relaxed) == 0 && map.table().unwrap().slots.iter().all(free));
    }

    #[test]
    fn readers_find_what_stays_while_a_writer_adds() {
        static MAP: Map<u64> = Map::new();
        MAP.insert(1, object(1));
        let reader = std::thread::spawn(|| (0..200_000).all(|_| MAP.get(1) == Some(&1)));
        (2..20_000).for_each(|key| MAP.insert(key, object(key)));
        // Slots change their keys; a reader finds the object of its own key or none.
        let other = std::thread::spawn(|| (0..200_000u64).all(|key| MAP.get(key + 2).is_none_or(|n| *n == key + 2)));
        for key in 20_000..100_000 {
            MAP.remove(key - 19_000);
            MAP.insert(key, object(key));
        }
        assert!(other.join().unwrap());
        assert!(reader.join().unwrap());
    }
}
