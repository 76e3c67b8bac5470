//! Collections behind a lock that grow outside of the lock.
//!
//! Memory hooks of the program run inside malloc and free, and call `ibv_dereg_mr`, which waits for the engine. So
//! nothing may be allocated or freed under a lock that deregistration or the engine takes.

use crate::Errno;
use std::alloc::{Layout, alloc_zeroed};
use std::collections::{HashMap, TryReserveError, VecDeque};
use std::hash::{BuildHasher, Hash};
use std::ops::DerefMut;

/// A collection that can be moved to a larger allocation.
pub trait Grow {
    /// An empty collection for `capacity` elements. Error: there is no memory for it.
    fn for_capacity(capacity: usize) -> Result<Self, TryReserveError>
    where
        Self: Sized;
    /// The number of elements, and the capacity.
    fn room(&self) -> (usize, usize);
    /// Moves all elements to `larger`, which is empty and has the capacity.
    fn move_to(&mut self, larger: &mut Self);
}

/// Takes a lock, with capacity for `more` further elements in the collection that `of` returns. ENOMEM without
/// memory.
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

/// `bytes` zero bytes, which the kernel backs with memory when they are first touched. ENOMEM if there is no memory.
pub fn zeroed(bytes: usize) -> Result<Box<[u8]>, Errno> {
    let layout = Layout::array::<u8>(bytes).map_err(|_| Errno(libc::ENOMEM))?;
    if bytes == 0 {
        return Ok(Box::default());
    }
    // SAFETY: the layout is not of zero bytes.
    let at = unsafe { alloc_zeroed(layout) };
    if at.is_null() {
        return Err(Errno(libc::ENOMEM));
    }
    // SAFETY: `bytes` bytes of the global allocator, which boxes use, all of them zero, with no other owner.
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
    fn a_collection_grows_and_keeps_its_elements() {
        let map = Mutex::new(HashMap::<u32, u32>::new());
        for n in 0..1000 {
            let mut held = with_room(1, || map.lock().unwrap(), |map| map).unwrap();
            let before = held.capacity();
            held.insert(n, n);
            assert_eq!(held.capacity(), before, "the capacity was reserved");
        }
        assert!((0..1000).all(|n| map.lock().unwrap().get(&n) == Some(&n)));
        let queue = Mutex::new(VecDeque::from([1, 2, 3]));
        let held = with_room(100, || queue.lock().unwrap(), |queue| queue).unwrap();
        assert!(held.capacity() >= 103 && *held == [1, 2, 3]);
    }
}
