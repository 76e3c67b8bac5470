//! Device memory as the verbs see it.

use crate::Errno;
use crate::adapter::Adapter;
use crate::context::Context;
use crate::memory::device_memory::DeviceMemory;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// A piece of device memory.
pub struct Dm {
    adapter: Arc<Adapter>,
    pub(crate) memory: DeviceMemory,
    /// Regions of it.
    users: AtomicU32,
}

impl Context {
    /// `len` bytes of device memory at a multiple of `1 << log_align`. ENOMEM if there are not so many left, EINVAL for
    /// no bytes and for more than an address can be aligned to. A forked child may have some, too.
    pub fn alloc_dm(&self, len: u64, log_align: u32) -> Result<Arc<Dm>, Errno> {
        let align = 1usize.checked_shl(log_align).filter(|align| *align <= 1 << 30).ok_or(Errno(libc::EINVAL))?;
        if len == 0 {
            return Err(Errno(libc::EINVAL));
        }
        let memory = DeviceMemory::alloc(&self.adapter.device_memory, len, align)?;
        Ok(Arc::new(Dm { adapter: self.adapter.clone(), memory, users: AtomicU32::new(0) }))
    }
}

impl Dm {
    /// Copies from the application's memory. EFAULT out of bounds or if that is not there, EINVAL unless offset and
    /// length are multiples of 4.
    pub fn write(&self, offset: u64, from: *const u8, len: u64) -> Result<(), Errno> {
        self.memory.write(offset, from, len)
    }

    /// Copies to the application's memory; errors as [`Dm::write`].
    pub fn read(&self, to: *mut u8, offset: u64, len: u64) -> Result<(), Errno> {
        self.memory.read(to, offset, len)
    }

    /// EBUSY while a region of it is registered.
    pub fn free(&self) -> Result<(), Errno> {
        if self.users.load(Ordering::Acquire) > 0 { Err(Errno(libc::EBUSY)) } else { Ok(()) }
    }

    pub(crate) fn attach(&self) {
        self.users.fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn detach(&self) {
        self.users.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Drop for Dm {
    fn drop(&mut self) {
        self.adapter.device_memory.give_back(self.memory.len());
    }
}
