//! Messages to a TM SRQ, for the tests of tag matching.

#![allow(dead_code, reason = "each test uses a part")]

use weir_transport::testing::{Pair, Setup, address, remote, sge};
use weir_transport::*;
use weir_wire::tag;

/// The opaque data of all messages.
pub const APP_CTX: u32 = 0x0a0b_0c0d;
pub const MATCHED: WcFlags = WcFlags::TM_MATCH;
pub const VALID: WcFlags = WcFlags::TM_DATA_VALID;
pub const HEADER: usize = tag::TMH_LEN;

/// Node 1 has a TM SRQ.
pub fn setup() -> Setup {
    Setup { srq: false, tags: true, ..Setup::default() }
}

/// The headers of a rendezvous request with this operation.
pub fn headers(operation: u8, tag: u64, at: usize, len: usize, rkey: u32) -> [u8; 32] {
    let rvh = tag::Rvh { va: address(at), rkey, len: len as u32 };
    let mut bytes = tag::fin(&tag::Tmh { reserved: [0x51, 0x52, 0x53], app_ctx: APP_CTX, tag }, &rvh);
    bytes[0] = operation;
    bytes
}

/// Sends `len` bytes from `at` on, of which the first become an eager header.
pub fn eager(pair: &mut Pair, wr_id: u64, tag: u64, at: usize, len: usize) {
    pair.fill(0, at, &headers(3, tag, 0, 0, 0)[..HEADER]);
    pair.post(wr_id, SendOp::Send, at, len);
}

/// Requests a rendezvous of `len` bytes at `from`. The request itself is built at `at`.
pub fn rendezvous(pair: &mut Pair, wr_id: u64, tag: u64, at: usize, from: usize, len: usize) {
    let (_, rkey) = remote(0);
    pair.fill(0, at, &headers(1, tag, from, len, rkey));
    pair.post(wr_id, SendOp::Send, at, 32);
}

/// Posts a receive of node 0, for the end of a rendezvous.
pub fn expect_fin(pair: &mut Pair, wr_id: u64, at: usize) {
    pair.nodes[0].qp.post_recv(&RecvWr { wr_id, sges: &[sge(at, 64)] }).expect("room in the receive queue");
}

/// `wr_id`, status, opcode, flags and tag of each completion of node 1.
pub fn received(pair: &Pair) -> Vec<(u64, Status, WcOpcode, WcFlags, u64)> {
    let of = |c: &Completion| (c.wr_id, c.status, c.opcode, c.flags, c.tag);
    pair.completions(1, Queue::Receive).iter().map(of).collect()
}

pub const OK: Status = Status::Success;
