//! Collections behind a lock that grow outside of it.
//!
//! Memory hooks of the program run inside of malloc and free, and call back into `ibv_dereg_mr` from there, which waits
//! for the engine: nothing may be allocated or freed under a lock that deregistering or the engine takes.

use crate::Errno;
use std::alloc::{Layout, alloc_zeroed};
use std::collections::{HashMap, TryReserveError, VecDeque};
use std::hash::{BuildHasher, Hash};
use std::ops::DerefMut;

/// A collection that may be moved to a larger place.
pub trait Grow {
    /// An empty one for so many. Error: there is no memory for it.
    fn for_capacity(capacity: usize) -> Result<Self, TryReserveError>
    where
        Self: Sized;
    /// How many there are, and how many there may be without growing.
    fn room(&self) -> (usize, usize);
    /// Moves all of it to one that is empty and large enough.
    fn move_to(&mut self, larger: &mut Self);
}

/// Takes a lock so that `more` have room in the collection that `of` finds behind it. ENOMEM if there is none.
pub fn with_room<G: DerefMut, C: Grow>(
    more: usize,
    lock: impl Fn() -> G,
    of: impl for<'a> Fn(&'a mut G::Target) -> &'a mut C,
) -> Result<G, Errno> {
    loop {
        let mut held = lock();
        let (len, capacity) = of(&mut held).room();
        if len + more <= capacity {
            return Ok(held);
        }
        drop(held);
        let mut larger = C::for_capacity((2 * capacity).max(len + more).max(16))?;
        let mut held = lock();
        let collection = of(&mut held);
        if collection.room().1 < larger.room().1 {
            collection.move_to(&mut larger);
            std::mem::swap(collection, &mut larger);
        }
        drop(held);
    }
}

/// So many zeros, which take memory when they are touched. ENOMEM if there is none.
pub fn zeroed(bytes: usize) -> Result<Box<[u8]>, Errno> {
    let layout = Layout::array::<u8>(bytes).map_err(|_| Errno(libc::ENOMEM))?;
    if bytes == 0 {
        return Ok(Box::default());
    }
    // SAFETY: not of zero bytes.
    let at = unsafe { alloc_zeroed(layout) };
    if at.is_null() {
        return Err(Errno(libc::ENOMEM));
    }
    // SAFETY: so many bytes of the allocator that boxes have, all of them zero, and nobody else's.
    Ok(unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(at, bytes)) })
}

impl<T> Grow for Vec<T> {
    fn for_capacity(capacity: usize) -> Result<Self, TryReserveError> {
        let mut empty = Vec::new();
        empty.try_reserve_exact(capacity).map(|()| empty)
    }
    fn room(&self) -> (usize, usize) {
        (self.len(), self.capacity())
    }
    fn move_to(&mut self, larger: &mut Self) {
        larger.append(self);
    }
}

impl<T> Grow for VecDeque<T> {
    fn for_capacity(capacity: usize) -> Result<Self, TryReserveError> {
        let mut empty = VecDeque::new();
        empty.try_reserve_exact(capacity).map(|()| empty)
    }
    fn room(&self) -> (usize, usize) {
        (self.len(), self.capacity())
    }
    fn move_to(&mut self, larger: &mut Self) {
        larger.append(self);
    }
}

impl<K: Eq + Hash, V, S: BuildHasher + Default> Grow for HashMap<K, V, S> {
    fn for_capacity(capacity: usize) -> Result<Self, TryReserveError> {
        let mut empty = HashMap::with_hasher(S::default());
        empty.try_reserve(capacity).map(|()| empty)
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
            let mut held = with_room(1, || map.lock().unwrap(), |map| map).unwrap();
            let before = held.capacity();
            held.insert(n, n);
            assert_eq!(held.capacity(), before, "room was there");
        }
        assert!((0..1000).all(|n| map.lock().unwrap().get(&n) == Some(&n)));
        let queue = Mutex::new(VecDeque::from([1, 2, 3]));
        let held = with_room(100, || queue.lock().unwrap(), |queue| queue).unwrap();
        assert!(held.capacity() >= 103 && *held == [1, 2, 3]);
    }
}
