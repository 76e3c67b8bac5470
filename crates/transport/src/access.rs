//! Access to memory: its kinds, its refusals, and the memory that peers and windows name.

use bitflags::bitflags;

bitflags! {
    /// `ibv_access_flags`, bit for bit, restricted to the flags that the protocol checks.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Access: u32 {
        /// The adapter may write to the memory for its own process.
        const LOCAL_WRITE = 1;
        /// A peer may WRITE.
        const REMOTE_WRITE = 2;
        /// A peer may READ.
        const REMOTE_READ = 4;
        /// A peer may do atomics.
        const REMOTE_ATOMIC = 8;
        /// Memory windows may be bound to it.
        const MW_BIND = 16;
        /// Addresses in the region start at 0.
        const ZERO_BASED = 32;
        /// A peer may FLUSH, so that data is visible.
        const FLUSH_GLOBAL = 256;
        /// A peer may FLUSH, so that data is persistent.
        const FLUSH_PERSISTENT = 512;
    }
}

/// Access to memory was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denied {
    /// No such key, wrong protection domain, out of bounds or missing permission.
    Protection,
    /// The region allows it, but the application unmapped the memory.
    Unmapped,
    /// The region allows it, but its pages are not in the adapter's translation table: a network page fault. The host
    /// has begun to resolve it and calls [`crate::Qp::page_resolved`] when it ends.
    PageFault,
}

/// An atomic operation on 8 bytes, in the host's byte order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomicOp {
    CompareSwap { compare: u64, swap: u64 },
    FetchAdd { add: u64 },
}

/// Memory that a peer names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// The protection domain of the SRQ that the request named. `None`: that of the QP, or of the current request.
    pub pd: Option<u32>,
    pub rkey: u32,
    /// First byte.
    pub va: u64,
    /// Bytes.
    pub len: u64,
}

/// A memory window and the memory that a bind opens (IBTA 10.6.7.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bind {
    /// The window's key before the bind.
    pub window_rkey: u32,
    /// The window's key after the bind; the two differ in the low byte only.
    pub new_rkey: u32,
    /// The lkey of the underlying region. Ignored where `len` is 0.
    pub mr_lkey: u32,
    /// First byte, in the region's own addressing.
    pub addr: u64,
    /// Bytes; 0 unbinds a window of type 1.
    pub len: u64,
    /// What peers may do there, and whether addresses in the window start at 0 (`ZERO_BASED`).
    pub access: Access,
}
