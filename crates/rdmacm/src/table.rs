//! Numbered objects. A new one gets the lowest free number, as in the kernel: librdmacm has room for 65,536 of them.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Objects by number.
pub struct Table<T> {
    entries: Vec<Option<T>>,
    free: BinaryHeap<Reverse<u32>>,
}

/// The numbers that librdmacm can manage.
const NUMBERS: usize = 1 << 16;

impl<T> Default for Table<T> {
    fn default() -> Self {
        Table { entries: Vec::new(), free: BinaryHeap::new() }
    }
}

impl<T> Table<T> {
    /// Adds an object; `None` if no number is free.
    pub fn insert(&mut self, entry: T) -> Option<u32> {
        if let Some(Reverse(number)) = self.free.pop() {
            self.entries[number as usize] = Some(entry);
            return Some(number);
        }
        if self.entries.len() == NUMBERS {
            return None;
        }
        self.entries.push(Some(entry));
        Some(self.entries.len() as u32 - 1)
    }

    pub fn get(&self, number: u32) -> Option<&T> {
        self.entries.get(number as usize)?.as_ref()
    }

    pub fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        self.entries.get_mut(number as usize)?.as_mut()
    }

    /// Removes an object; its number is free then.
    pub fn remove(&mut self, number: u32) -> Option<T> {
        let entry = self.entries.get_mut(number as usize)?.take()?;
        self.free.push(Reverse(number));
        Some(entry)
    }

    /// All objects with their numbers.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.entries.iter().enumerate().filter_map(|(number, entry)| Some((number as u32, entry.as_ref()?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_free_number_comes_first() {
        let mut table = Table::default();
        assert_eq!((0..5).map(|value| table.insert(value).unwrap()).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
        assert_eq!((table.remove(3), table.remove(1), table.remove(1)), (Some(3), Some(1), None));
        assert_eq!((table.insert(7), table.insert(8), table.insert(9)), (Some(1), Some(3), Some(5)));
        assert_eq!(table.iter().count(), 6);
        assert_eq!((table.get(1), table.get(99)), (Some(&7), None));
    }

    #[test]
    fn no_number_is_beyond_what_librdmacm_manages() {
        let mut table = Table::default();
        assert!((0..NUMBERS).all(|_| table.insert(()).is_some()));
        assert_eq!(table.insert(()), None);
    }
}
