//! Where the requests of most tests point, the requests, and their outcomes.

use crate::{SendOp, Sge, Status};

/// Address of each node's region.
pub(super) const BASE: u64 = 0x10_0000;
/// Key of a node's region.
pub(super) const KEY: u32 = 0x1234;

/// The address of offset `at` in a node's region.
pub fn address(at: usize) -> u64 {
    BASE + at as u64
}

/// An SGE within a node's region.
pub fn sge(at: usize, len: usize) -> Sge {
    Sge { addr: BASE + at as u64, length: len as u32, lkey: KEY }
}

/// The address and rkey of offset `at` in the peer's region.
pub fn remote(at: usize) -> (u64, u32) {
    (BASE + at as u64, KEY)
}

/// A WRITE to offset `at` in the peer's region.
pub fn write(at: usize) -> SendOp {
    let (remote_addr, rkey) = remote(at);
    SendOp::Write { remote_addr, rkey }
}

/// A READ from offset `at` in the peer's region.
pub fn read(at: usize) -> SendOp {
    let (remote_addr, rkey) = remote(at);
    SendOp::Read { remote_addr, rkey }
}

/// The outcomes if all these work requests succeed, in this order.
pub fn good(ids: impl IntoIterator<Item = u64>) -> Vec<(u64, Status)> {
    ids.into_iter().map(|id| (id, Status::Success)).collect()
}
