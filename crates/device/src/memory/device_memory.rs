//! Device memory (`ibv_alloc_dm`): memory on board of a real adapter. Here it is an anonymous mapping of the process.
//! Only Weir has its address.

use crate::Errno;
use crate::memory::copy;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of device memory that are not allocated.
pub struct Budget(AtomicU64);

impl Budget {
    /// A budget of `bytes` bytes.
    pub fn new(bytes: u64) -> Budget {
        Budget(AtomicU64::new(bytes))
    }

    fn take(&self, bytes: u64) -> Result<(), Errno> {
        let less = |left: u64| left.checked_sub(bytes);
        self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, less).map(drop).map_err(|_| Errno(libc::ENOMEM))
    }

    /// Returns `bytes` bytes to the budget.
    pub fn give_back(&self, bytes: u64) {
        self.0.fetch_add(bytes, Ordering::AcqRel);
    }
}

/// An allocation of device memory, initially zero.
pub struct DeviceMemory {
    /// Start of the mapping that contains the allocation.
    mapping: *mut libc::c_void,
    mapped: usize,
    /// Address of the first byte of the allocation in this process.
    addr: u64,
    len: u64,
}

// SAFETY: only the guarded copy and the engine access it; both accept memory in any state.
unsafe impl Send for DeviceMemory {}
// SAFETY: as above. Concurrent accesses are the same as those to application memory that a peer writes.
unsafe impl Sync for DeviceMemory {}

const PAGE: usize = 4096;

impl DeviceMemory {
    /// Allocates `len` bytes, aligned to `align` (a power of two). ENOMEM if the budget or the process has too little
    /// memory.
    pub fn alloc(budget: &Budget, len: u64, align: usize) -> Result<DeviceMemory, Errno> {
        budget.take(len)?;
        Self::map(len, align).inspect_err(|_| budget.give_back(len))
    }

    fn map(len: u64, align: usize) -> Result<DeviceMemory, Errno> {
        let no_memory = Errno(libc::ENOMEM);
        // Mappings are page-aligned. A larger alignment needs a larger mapping.
        let spare = if align > PAGE { align } else { 0 };
        let mapped = usize::try_from(len).ok().and_then(|len| len.max(1).checked_add(spare)).ok_or(no_memory)?;
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping at an address that the kernel chooses.
        let mapping = unsafe { libc::mmap(std::ptr::null_mut(), mapped, protection, flags, -1, 0) };
        if mapping == libc::MAP_FAILED {
            return Err(no_memory);
        }
        Ok(DeviceMemory { mapping, mapped, addr: (mapping as u64).next_multiple_of(align as u64), len })
    }

    /// Length in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Address of the first byte in this process.
    pub fn addr(&self) -> u64 {
        self.addr
    }

    /// Copies from application memory. EINVAL if `offset` or `len` is not a multiple of 4 bytes; EFAULT if the range
    /// is out of bounds or the application memory is not accessible.
    pub fn write(&self, offset: u64, from: *const u8, len: u64) -> Result<(), Errno> {
        let to = self.word(offset, len)? as *mut u8;
        // SAFETY: the range of device memory was checked; application memory may be in any state.
        unsafe { copy::copy(to, from, len as usize) }.map_err(|_| Errno(libc::EFAULT))
    }

    /// Copies to application memory; errors as [`DeviceMemory::write`].
    pub fn read(&self, to: *mut u8, offset: u64, len: u64) -> Result<(), Errno> {
        let from = self.word(offset, len)? as *const u8;
        // SAFETY: the range of device memory was checked; application memory may be in any state.
        unsafe { copy::copy(to, from, len as usize) }.map_err(|_| Errno(libc::EFAULT))
    }

    /// Checks an access and returns its address. Adapters access device memory in words of 4 bytes.
    fn word(&self, offset: u64, len: u64) -> Result<u64, Errno> {
        if !offset.is_multiple_of(4) || !len.is_multiple_of(4) {
            return Err(Errno(libc::EINVAL));
        }
        if !self.holds(offset, len) {
            return Err(Errno(libc::EFAULT));
        }
        Ok(self.addr + offset)
    }

    /// Returns whether the `len` bytes at `offset` are within the allocation.
    pub fn holds(&self, offset: u64, len: u64) -> bool {
        len <= self.len && offset <= self.len - len
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        // SAFETY: this object owns the mapping, and no region refers to it any more.
        unsafe { libc::munmap(self.mapping, self.mapped) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allocations_stay_within_the_budget() {
        let budget = Budget::new(100);
        let memory = DeviceMemory::alloc(&budget, 60, 1).unwrap();
        assert_eq!(DeviceMemory::alloc(&budget, 41, 1).err(), Some(Errno(libc::ENOMEM)));
        DeviceMemory::alloc(&budget, 40, 1).unwrap();
        budget.give_back(memory.len());
        DeviceMemory::alloc(&budget, 60, 1).unwrap();
    }

    #[test]
    fn only_aligned_words_within_bounds_are_copied() {
        copy::install_handler();
        let memory = DeviceMemory::alloc(&Budget::new(100), 100, 1 << 16).unwrap();
        assert!(memory.addr().is_multiple_of(1 << 16));
        let (data, mut back) = (*b"twelve bytes", [0xffu8; 12]);
        memory.write(88, data.as_ptr(), 12).unwrap();
        memory.read(back.as_mut_ptr(), 88, 12).unwrap();
        assert_eq!(back, data);
        memory.read(back.as_mut_ptr(), 0, 12).unwrap();
        assert_eq!(back, [0; 12]);
        for (offset, len, errno) in [
            (3, 4, libc::EINVAL),
            (4, 3, libc::EINVAL),
            (92, 12, libc::EFAULT),
            (104, 4, libc::EFAULT),
            (0, 104, libc::EFAULT),
            (u64::MAX - 3, 4, libc::EFAULT),
        ] {
            assert_eq!(memory.read(back.as_mut_ptr(), offset, len), Err(Errno(errno)), "{offset} {len}");
        }
        assert_eq!(memory.write(0, 8 as *const u8, 4), Err(Errno(libc::EFAULT)), "unmapped application memory");
    }
}
