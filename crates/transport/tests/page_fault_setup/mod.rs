//! Pairs of QPs with ODP memory, and their operations.

use std::time::Duration;
use weir_transport::testing::{Entry, PagingSetup, Pair, Setup, address, remote};
use weir_transport::*;
use weir_wire::{Aeth, Syndrome};

pub const MS: Duration = Duration::from_millis(1);
/// Offset in node 1's region for WRITEs and READs.
pub const REMOTE_OFFSET: usize = 100_000;

pub fn setup(resolve: Duration) -> Setup {
    Setup { paging: Some(PagingSetup { resolve, ..PagingSetup::default() }), ..Setup::default() }
}

pub fn pair(resolve: Duration) -> Pair {
    setup(resolve).pair()
}

/// As `pair`; a request behind a READ is executed before the READ's data is read out.
pub fn late_pair(resolve: Duration) -> Pair {
    Setup { profile: Profile { late_reads: true, ..Profile::ideal() }, ..setup(resolve) }.pair()
}

pub fn write() -> SendOp {
    let (remote_addr, rkey) = remote(REMOTE_OFFSET);
    SendOp::Write { remote_addr, rkey }
}

pub fn read() -> SendOp {
    let (remote_addr, rkey) = remote(REMOTE_OFFSET);
    SendOp::Read { remote_addr, rkey }
}

pub fn every_operation() -> Vec<(SendOp, usize)> {
    let (remote_addr, rkey) = remote(REMOTE_OFFSET);
    vec![
        (SendOp::Send, 5000),
        (SendOp::SendImm { imm: 1 }, 5000),
        (write(), 5000),
        (SendOp::WriteImm { remote_addr, rkey, imm: 2 }, 5000),
        (read(), 5000),
        (SendOp::FetchAdd { remote_addr, rkey, add: 3 }, 8),
        (SendOp::CompareSwap { remote_addr, rkey, compare: 4, swap: 5 }, 8),
        (SendOp::AtomicWrite { remote_addr, rkey }, 8),
    ]
}

/// Makes all pages of a node present.
pub fn warm(pair: &mut Pair, node: usize) {
    pair.paging(node).prefetch(address(0), 1 << 20, true);
    pair.run_until_idle();
    assert_eq!(pair.paging(node).counts.met, 0);
}

pub fn naks(pair: &Pair) -> usize {
    let is_nak = |byte| !matches!(Syndrome::from_byte(byte), Syndrome::Ack(_));
    pair.wire.count(|sent| sent.headers.get::<Aeth>().is_some_and(|aeth| is_nak(aeth.syndrome())))
}

pub fn writes(pair: &Pair, node: usize) -> usize {
    pair.nodes[node].host.journal.iter().filter(|entry| matches!(entry, Entry::Write { .. })).count()
}
