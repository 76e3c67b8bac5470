//! No allocation per work request, packet or poll: it would go to the application's own allocator.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use weir_transport::testing::{NullHost, Setup, connected};
use weir_transport::*;
use weir_wire::Packet;

struct Counting;

thread_local! {
    static COUNT: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: every call goes to the system's allocator unchanged; the wrapper only counts calls.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.set(COUNT.get() + 1);
        // SAFETY: the caller upholds the same contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        COUNT.set(COUNT.get() + 1);
        // SAFETY: the caller upholds the same contract.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Collects the packets of one burst; `run` passes them to the peer.
struct Burst {
    packets: Vec<(weir_wire::Headers, usize)>,
}

impl Egress for Burst {
    fn push(&mut self, packet: &Outgoing<'_>) -> Result<(), Refused> {
        if self.packets.len() == self.packets.capacity() {
            return Err(Refused::Full);
        }
        self.packets.push((packet.headers, packet.payload.len()));
        Ok(())
    }
}

/// Transfers messages of `len` bytes of all operations between two QPs until `rounds` of them are complete. Every
/// `lose`-th packet is lost.
fn run(setup: &Setup, len: u32, rounds: usize, lose: usize) -> (usize, [Qp; 2]) {
    let mut qps = [0, 1].map(|node| connected(node, setup.caps, true, setup));
    let mut host = NullHost::default();
    let mut burst = Burst { packets: Vec::with_capacity(64) };
    let payload = vec![0; 4096];
    let (remote_addr, rkey) = (0, 0);
    let ops = [
        (SendOp::Send, len),
        (SendOp::WriteImm { remote_addr, rkey, imm: 0 }, len),
        (SendOp::Write { remote_addr, rkey }, len),
        (SendOp::Read { remote_addr, rkey }, len),
        (SendOp::FetchAdd { remote_addr, rkey, add: 1 }, 8),
    ];
    let mut now = Instant(0);
    let mut sent = 0;
    let mut posted = 0;
    let before = COUNT.get();
    let limits = Limits { request_bytes: 64 << 10, read_bytes: 64 << 10 };
    while host.sent < rounds {
        while posted < rounds {
            let (op, length) = ops[posted % ops.len()];
            let sges = [Sge { addr: 0, length, lkey: 0 }];
            let data = Data::Gather(&sges);
            if qps[0].post_send(&SendWr { wr_id: 0, op, flags: SendFlags::empty(), data }).is_err() {
                break;
            }
            posted += 1;
        }
        while qps[1].post_recv(&RecvWr { wr_id: 0, sges: &[Sge { addr: 0, length: len, lkey: 0 }] }).is_ok() {}
        let mut idle = true;
        for from in 0..2 {
            burst.packets.clear();
            qps[from].poll_transmit(now, limits, &mut host, &mut burst);
            for &(headers, len) in &burst.packets {
                idle = false;
                sent += 1;
                if sent % lose != lose - 1 {
                    let packet = Packet { headers, payload: &payload[..len], icrc: 0, placement: None };
                    qps[1 - from].handle_packet(now, &packet, &mut host);
                }
            }
        }
        if idle {
            now = qps.iter().filter_map(Qp::poll_timeout).min().expect("a pending timeout");
            qps.iter_mut().for_each(|qp| qp.handle_timeout(now, &mut host));
        }
    }
    let allocated = COUNT.get() - before;
    (allocated, qps)
}

#[test]
fn transfers_allocate_nothing() {
    for (len, lose) in [(0, usize::MAX), (64, usize::MAX), (10_000, usize::MAX), (64, 50), (10_000, 50)] {
        let setup = Setup { mtu: Mtu::M4096, ..Setup::default() };
        let (allocated, _) = run(&setup, len, 2000, lose);
        assert_eq!(allocated, 0, "messages of {len} bytes");
    }
}

#[test]
fn the_longest_message_passes_at_the_smallest_mtu() {
    // 2^23 packets each: half of the PSN space.
    let setup = Setup { mtu: Mtu::M256, ..Setup::default() };
    let (_, qps) = run(&setup, 1 << 31, 4, usize::MAX);
    let packets = 4 * (1u32 << 23);
    assert_eq!(qps[0].attr().sq_psn, Psn::new(setup.psn[0]).plus(packets));
    assert_eq!(qps[1].attr().rq_psn, qps[0].attr().sq_psn);
}
