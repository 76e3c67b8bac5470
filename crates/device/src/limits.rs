//! The limits of every Weir adapter.

use crate::memory::keys::MAX_KEYS_OF_A_KIND;
use crate::slot::INDEX_BITS;

/// Maximum bytes of inline data in a work request; no QP is created with more.
pub const MAX_INLINE: u32 = 1024;

/// Limits of the adapter, under the names of `ibv_device_attr`.
#[derive(Clone, Debug)]
pub struct DeviceLimits {
    pub max_mr_size: u64,
    pub max_qp: u32,
    pub max_qp_wr: u32,
    pub max_sge: u32,
    pub max_sge_rd: u32,
    pub max_cq: u32,
    pub max_cqe: u32,
    pub max_mr: u32,
    pub max_mw: u32,
    /// Bytes of device memory.
    pub max_dm_size: u64,
    pub max_pd: u32,
    pub max_srq: u32,
    /// Tags of a TM SRQ.
    pub max_tags: u16,
    /// Signaled operations on tags before their completions are polled.
    pub max_tag_ops: u32,
    /// SGEs of a tag.
    pub max_tag_sge: u32,
    /// Multicast groups.
    pub max_groups: u32,
}

/// The limits of every Weir adapter.
pub(crate) const LIMITS: DeviceLimits = DeviceLimits {
    max_mr_size: u64::MAX,
    max_qp: (1 << INDEX_BITS) - 2,
    max_qp_wr: 32768,
    max_sge: 32,
    max_sge_rd: 32,
    max_cq: 65536,
    max_cqe: 4_194_303,
    max_mr: MAX_KEYS_OF_A_KIND as u32,
    max_mw: MAX_KEYS_OF_A_KIND as u32,
    // The size that a ConnectX-5 has.
    max_dm_size: 256 << 10,
    max_pd: 1 << 16,
    max_srq: 1 << 16,
    max_tags: 1024,
    max_tag_ops: 32768,
    max_tag_sge: 4,
    // Each has a socket.
    max_groups: 64,
};
