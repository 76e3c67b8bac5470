//! Memory regions, and prefetching of on-demand ones.

use crate::rdma::adapter::Adapter;
use crate::rdma::errno::{Errno, check_object};
use crate::rdma::tables::advise;
use std::ffi::c_int;
use std::sync::Arc;
use weir_abi::*;

pub const IBV_ACCESS_LOCAL_WRITE: c_int = 1 << 0;
pub const IBV_ACCESS_REMOTE_WRITE: c_int = 1 << 1;
pub const IBV_ACCESS_REMOTE_READ: c_int = 1 << 2;
pub const IBV_ACCESS_REMOTE_ATOMIC: c_int = 1 << 3;

/// A memory region, which is deregistered when it is dropped.
pub struct Region {
    adapter: Arc<Adapter>,
    raw: *mut ibv_mr,
    lkey: u32,
    rkey: u32,
}

// SAFETY: verbs may be called by several threads.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Adapter {
    /// Registers memory with `IBV_ACCESS_…`. With `IBV_ACCESS_ON_DEMAND`, 0 and `usize::MAX` mean the whole address
    /// space.
    ///
    /// # Safety
    /// The program allows peers and work requests whatever `access` says, as long as the region exists. Memory that is
    /// not on-demand stays mapped meanwhile.
    pub unsafe fn register(self: &Arc<Self>, address: u64, length: usize, access: c_int) -> Result<Region, Errno> {
        let start = std::ptr::with_exposed_provenance_mut(address as usize);
        // SAFETY: the PD exists as long as the adapter; the caller states what the access is. As in the header, optional
        // flags go to the later function.
        let raw = check_object(unsafe {
            if access as u32 & IBV_ACCESS_OPTIONAL_RANGE == 0 {
                (self.libraries.ibv_reg_mr)(self.pd, start, length, access)
            } else {
                (self.libraries.ibv_reg_mr_iova2)(self.pd, start, length, address, access as u32)
            }
        })?;
        // SAFETY: the new region.
        let (lkey, rkey) = unsafe { ((*raw).lkey, (*raw).rkey) };
        Ok(Region { adapter: self.clone(), raw, lkey, rkey })
    }

    /// Asks for the pages of an on-demand region, for being written if `write`; `wait`: until they are present.
    /// EOPNOTSUPP: the device has no prefetching.
    pub fn prefetch(&self, lkey: u32, address: u64, length: usize, write: bool, wait: bool) -> Result<(), Errno> {
        /// An SGE has 32 bits for its length.
        const MOST: usize = 1 << 30;
        let advice = if write { IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE } else { IBV_ADVISE_MR_ADVICE_PREFETCH };
        let flags = if wait { IBV_ADVISE_MR_FLAG_FLUSH } else { 0 };
        for start in (0..length).step_by(MOST) {
            let part = MOST.min(length - start);
            let sge = ibv_sge { addr: address.wrapping_add(start as u64), length: part as u32, lkey };
            // SAFETY: the PD exists as long as the adapter.
            unsafe { advise(self.pd, advice, flags, &mut [sge]) }?;
        }
        Ok(())
    }
}

impl Region {
    pub fn lkey(&self) -> u32 {
        self.lkey
    }

    pub fn rkey(&self) -> u32 {
        self.rkey
    }

    pub fn adapter(&self) -> &Arc<Adapter> {
        &self.adapter
    }

    /// [`Adapter::prefetch`] in this region.
    pub fn prefetch(&self, address: u64, length: usize, write: bool, wait: bool) -> Result<(), Errno> {
        self.adapter.prefetch(self.lkey, address, length, write, wait)
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the region exists, and nothing else deregisters it.
        unsafe { (self.adapter.libraries.ibv_dereg_mr)(self.raw) };
    }
}
