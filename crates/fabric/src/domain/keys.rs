//! Registered memory by key: for atomics, which this process performs itself, and for endpoints that prefetch it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use weir_msg::{Errno, Operator, Update, result};

/// The registered memory of a domain by key, for atomics, which this process performs itself.
#[derive(Default)]
pub struct Keys {
    memory: Mutex<HashMap<u32, Registered>>,
    /// Endpoints of the domain.
    listeners: Mutex<Vec<Weak<dyn Listener>>>,
}

/// Hears of registered memory.
pub trait Listener: Send + Sync {
    /// The program has registered memory that peers may use.
    fn registered(&self, memory: &Registered);
    /// The registration with this key has ended.
    fn deregistered(&self, lkey: u32);
}

/// Memory that peers may use.
#[derive(Clone, Copy, Debug)]
pub struct Registered {
    pub lkey: u32,
    pub addr: u64,
    pub len: u64,
    pub readable: bool,
    pub writable: bool,
}

impl Keys {
    /// Adds memory with this key.
    pub fn add(&self, rkey: u32, memory: Registered) {
        if let Ok(mut keys) = self.memory.lock() {
            keys.insert(rkey, memory);
        }
        self.listeners().iter().for_each(|listener| listener.registered(&memory));
    }

    /// Removes the memory with this key.
    pub fn remove(&self, rkey: u32) {
        let removed = self.memory.lock().ok().and_then(|mut keys| keys.remove(&rkey));
        if let Some(memory) = removed {
            self.listeners().iter().for_each(|listener| listener.deregistered(memory.lkey));
        }
    }

    /// Tells a listener of all memory, and from now on of changes. It may hear twice of the same memory.
    pub fn listen(&self, listener: &Arc<impl Listener + 'static>) {
        if let Ok(mut listeners) = self.listeners.lock() {
            listeners.retain(|known| known.strong_count() > 0);
            let weak: Weak<dyn Listener> = Arc::downgrade(listener) as Weak<dyn Listener>;
            listeners.push(weak);
        }
        let known: Vec<Registered> =
            self.memory.lock().map(|keys| keys.values().copied().collect()).unwrap_or_default();
        for memory in known {
            listener.registered(&memory);
            // Its registration may have ended meanwhile.
            if self.memory.lock().is_ok_and(|keys| keys.values().all(|known| known.lkey != memory.lkey)) {
                listener.deregistered(memory.lkey);
            }
        }
    }

    fn listeners(&self) -> Vec<Arc<dyn Listener>> {
        self.listeners.lock().map(|all| all.iter().filter_map(Weak::upgrade).collect()).unwrap_or_default()
    }

    /// Performs an atomic on behalf of a peer, and returns the value before. EACCES: the key does not permit it.
    pub fn update(&self, update: &Update) -> Result<u64, Errno> {
        let denied = Errno(libc::EACCES);
        let size = update.datatype.size() as u64;
        // Memory stays registered meanwhile: closing it takes the lock.
        let keys = self.memory.lock().map_err(|_| denied)?;
        let memory = keys.get(&update.rkey).ok_or(denied)?;
        let inside = update.addr >= memory.addr
            && update.addr.checked_add(size).is_some_and(|end| end <= memory.addr + memory.len);
        let reads = update.operator == Operator::Read;
        let permitted = (reads || memory.writable) && (memory.readable || !(reads || update.fetches));
        if !inside || !permitted || !update.addr.is_multiple_of(size) {
            return Err(denied);
        }
        let next = |old| result(update.operator, update.datatype, old, update.operand, update.compare);
        // SAFETY: aligned memory of the program, which it has registered for this.
        Ok(unsafe { exchange(update.addr, size, |old| (!reads).then(|| next(old))) })
    }
}

/// Replaces an element by `next` of it, atomically, and returns the element before. `None`: it is only read, and its memory
/// need not be writable.
///
/// # Safety
/// The element is in the program's memory, and aligned.
unsafe fn exchange(addr: u64, size: u64, next: impl Fn(u64) -> Option<u64>) -> u64 {
    macro_rules! exchange {
        ($atomic:ty, $plain:ty) => {{
            // SAFETY: the caller's element.
            let element = unsafe { <$atomic>::from_ptr(std::ptr::with_exposed_provenance_mut(addr as usize)) };
            let update = |old: $plain| next(u64::from(old)).map(|next| next as $plain);
            let updated = element.fetch_update(Ordering::AcqRel, Ordering::Acquire, update);
            u64::from(updated.unwrap_or_else(|old| old))
        }};
    }
    match size {
        1 => exchange!(AtomicU8, u8),
        2 => exchange!(AtomicU16, u16),
        4 => exchange!(AtomicU32, u32),
        _ => exchange!(AtomicU64, u64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_msg::Datatype;

    /// Memory that is registered to be read need not be writable, nor may a read change what it reads: here a signalling NaN.
    #[test]
    fn a_read_writes_nothing() {
        let bytes = 4096;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: new memory.
        let page = unsafe {
            libc::mmap(std::ptr::null_mut(), bytes, protection, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0)
        };
        assert_ne!(page, libc::MAP_FAILED);
        let number = 0x7fa0_0001u32;
        // SAFETY: the memory is this test's.
        unsafe { page.cast::<u32>().write(number) };
        // SAFETY: as above.
        assert_eq!(unsafe { libc::mprotect(page, bytes, libc::PROT_READ) }, 0);
        let addr = page as u64;
        let keys = Keys::default();
        keys.add(7, Registered { lkey: 7, addr, len: bytes as u64, readable: true, writable: false });
        let read = |datatype| {
            let operator = Operator::Read;
            keys.update(&Update { addr, rkey: 7, operator, datatype, fetches: true, operand: 0, compare: 0 })
        };
        assert_eq!(read(Datatype::F32).unwrap(), u64::from(number));
        for datatype in [Datatype::U8, Datatype::U16, Datatype::U64] {
            assert!(read(datatype).is_ok());
        }
        // SAFETY: the memory is this test's.
        unsafe { libc::munmap(page, bytes) };
    }
}
