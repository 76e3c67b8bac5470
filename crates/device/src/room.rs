//! Collections behind a lock that grow outside of it.
//!
//! Memory hooks of the program run inside of malloc and free, and call back into `ibv_dereg_mr` from there, which waits
//! for the engine: nothing may be allocated or freed under a lock that deregistering or the engine takes.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, Hash};
use std::ops::DerefMut;

/// A collection that may be moved to a larger place.
pub trait Grow {
    /// An empty one for so many.
    fn for_capacity(capacity: usize) -> Self;
    /// How many there are, and how many there may be without growing.
    fn room(&self) -> (usize, usize);
    /// Moves all of it to one that is empty and large enough.
    fn move_to(&mut self, larger: &mut Self);
}

/// Takes a lock so that `more` have room in the collection that `of` finds behind it.
pub fn with_room<G: DerefMut, C: Grow>(
    more: usize,
    lock: impl Fn() -> G,
    of: impl for<'a> Fn(&'a mut G::Target) -> &'a mut C,
) -> G {
    loop {
        let mut held = lock();
        let (len, capacity) = of(&mut held).room();
        if len + more <= capacity {
            return held;
        }
        drop(held);
        let mut larger = C::for_capacity((2 * capacity).max(len + more).max(16));
        let mut held = lock();
        let collection = of(&mut held);
        if collection.room().1 < larger.room().1 {
            collection.move_to(&mut larger);
            std::mem::swap(collection, &mut larger);
        }
        drop(held);
    }
}

impl<T> Grow for Vec<T> {
    fn for_capacity(capacity: usize) -> Self {
        Vec::with_capacity(capacity)
    }
    fn room(&self) -> (usize, usize) {
        (self.len(), self.capacity())
    }
    fn move_to(&mut self, larger: &mut Self) {
        larger.append(self);
    }
}

impl<T> Grow for VecDeque<T> {
    fn for_capacity(capacity: usize) -> Self {
        VecDeque::with_capacity(capacity)
    }
    fn room(&self) -> (usize, usize) {
        (self.len(), self.capacity())
    }
    fn move_to(&mut self, larger: &mut Self) {
        larger.append(self);
    }
}

impl<K: Eq + Hash, V, S: BuildHasher + Default> Grow for HashMap<K, V, S> {
    fn for_capacity(capacity: usize) -> Self {
        HashMap::with_capacity_and_hasher(capacity, S::default())
    }
    fn room(&self) -> (usize, usize) {
        (self.len(), self.capacity())
    }
    fn move_to(&mut self, larger: &mut Self) {
        larger.extend(self.drain());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    #[test]
    fn it_grows_and_keeps_what_is_in_it() {
        let map = Mutex::new(HashMap::<u32, u32>::new());
        for n in 0..1000 {
            let mut held = with_room(1, || map.lock().unwrap(), |map| map);
            let before = held.capacity();
            held.insert(n, n);
            assert_eq!(held.capacity(), before, "room was there");
        }
        assert!((0..1000).all(|n| map.lock().unwrap().get(&n) == Some(&n)));
        let queue = Mutex::new(VecDeque::from([1, 2, 3]));
        let held = with_room(100, || queue.lock().unwrap(), |queue| queue);
        assert!(held.capacity() >= 103 && *held == [1, 2, 3]);
    }
}
