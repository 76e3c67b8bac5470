//! Device memory of the verbs.

use crate::Errno;
use crate::adapter::Adapter;
use crate::memory::device_memory::DeviceMemory;
use crate::objects::context::Context;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// A block of device memory.
pub struct Dm {
    adapter: Arc<Adapter>,
    pub(crate) memory: DeviceMemory,
    /// Number of memory regions registered on it.
    users: AtomicU32,
}

impl Context {
    /// Allocates `len` bytes of device memory at a multiple of `1 << log_align`. ENOMEM if fewer bytes are free,
    /// EINVAL for a length of 0 or an alignment above 1 GiB. A forked child may allocate too.
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
    /// Copies from application memory. EFAULT out of bounds or if that memory is not accessible, EINVAL unless offset
    /// and length are multiples of 4.
    pub fn write(&self, offset: u64, from: *const u8, len: u64) -> Result<(), Errno> {
        self.memory.write(offset, from, len)
    }

    /// Copies to application memory; errors as for [`Dm::write`].
    pub fn read(&self, to: *mut u8, offset: u64, len: u64) -> Result<(), Errno> {
        self.memory.read(to, offset, len)
    }

    /// Frees the block: EBUSY while a memory region is registered on it.
    pub fn free(&self) -> Result<(), Errno> {
        match self.users.load(Ordering::Acquire) {
            0 => Ok(()),
            users => {
                let why = format_args!("device memory: free: {users} regions are registered on it: ibv_dereg_mr first");
                Err(self.adapter.refuse(libc::EBUSY, why))
            }
        }
    }

    /// A region is registered on it: `free` fails with EBUSY until [`detach`](Self::detach).
    pub(crate) fn attach(&self) {
        self.users.fetch_add(1, Ordering::AcqRel);
    }

    /// The object of an [`attach`](Self::attach) no longer uses the allocation.
    pub(crate) fn detach(&self) {
        self.users.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Drop for Dm {
    fn drop(&mut self) {
        self.adapter.device_memory.give_back(self.memory.len());
    }
}
