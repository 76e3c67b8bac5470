use crate::config::Icrc;
use crate::engine::testing::{FIRST_PSN, Rig, address, connected, exchange};
use crate::paging::held::HeldPackets;
use weir_transport::{Data, Psn, SendOp, Service};
use weir_wire::{Bth, Headers, Opcode, Operation, Packet, Reth};

/// The QPN of a foreign adapter: of no slot.
const FOREIGN: u32 = 17;
/// What a foreign adapter READs: more than a turn reads out.
const LONG: usize = 8 << 20;

#[test]
fn requests_that_arrive_with_a_read_do_not_change_what_it_reads() {
    let (mut a, mut b) = (Rig::new(5, Icrc::Auto), Rig::new(6, Icrc::Auto));
    let [x, y] = connected(&mut a, &mut b, Service::Rc);
    let (mut memory, mut place) = (vec![0; 9000], vec![2; 3000]);
    memory[..3000].fill(1);
    let (local, remote) = (a.register(&mut memory), b.register(&mut place));
    let part = |at: u64| weir_transport::Sge { addr: local.addr + at, length: 3000, ..local };
    let (remote_addr, rkey) = (remote.addr, remote.lkey);
    a.post_send(&x, 1, SendOp::Read { remote_addr, rkey }, Data::Gather(&[part(3000)]));
    a.post_send(&x, 2, SendOp::Write { remote_addr, rkey }, Data::Gather(&[part(0)]));
    // The WRITE leaves with the READ.
    a.turn();
    let left: usize = a.wire().bursts.iter().flat_map(|burst| &burst.groups).map(|group| group.datagrams.len()).sum();
    assert!(left > 3, "{left}");
    exchange(&mut a, &mut b);
    let done: Vec<_> = a.completions().iter().map(|completion| completion.wr_id).collect();
    assert_eq!(done, [1, 2]);
    assert!(memory[3000..6000] == [2; 3000] && place == [1; 3000]);
    assert!(!b.engine.holds_after_reads(b.index(&y)));
}

/// A request of a foreign adapter.
fn request(rig: &Rig, dest: u32, operation: Operation, psn: u32, reth: Reth, payload: &[u8]) {
    let bth = Bth { ack_req: true, ..Bth::new(Opcode::new(Service::Rc, operation), dest, Psn::new(psn)) };
    let mut headers = Headers::new(bth);
    headers.put(reth);
    rig.arrive_foreign_packet(9, &headers, payload);
}

/// A READ of 8 MiB, and three WRITEs to its end. Returns the payload of the responses, and the PSNs of ACKs and NAKs.
fn long_read_and_writes(buffers: bool) -> (Vec<u8>, Vec<(u8, u32)>, Vec<u8>) {
    let mut rig = Rig::new(5, Icrc::Auto);
    let qp = rig.add_qp(Service::Rc);
    rig.connect(&qp, address(9), FOREIGN);
    if buffers {
        rig.engine.provide_held_buffers(Box::new(HeldPackets::new().unwrap()));
    }
    let mut place = vec![2; LONG];
    let at = rig.register(&mut place);
    let reth = |offset: usize, len: usize| Reth {
        va: (at.addr + offset as u64).into(),
        rkey: at.lkey.into(),
        dma_len: (len as u32).into(),
    };
    let packets = (LONG / qp.lock().attr().path_mtu.bytes()) as u32;
    request(&rig, qp.num, Operation::ReadRequest, FIRST_PSN, reth(0, LONG), &[]);
    for n in 0..3 {
        request(&rig, qp.num, Operation::WriteOnly, FIRST_PSN + packets + n, reth(LONG - 8, 8), &[n as u8 + 10; 8]);
    }
    let (mut read, mut acks, mut quiet) = (Vec::new(), Vec::new(), 0);
    while quiet < 3 {
        rig.turn();
        let sent = rig.take_sent();
        quiet = if sent.is_empty() { quiet + 1 } else { 0 };
        for datagram in sent.iter().flat_map(|group| &group.datagrams) {
            let packet = Packet::parse(datagram).unwrap();
            read.extend(packet.payload);
            if packet.headers.bth.opcode.operation() == Some(Operation::Acknowledge) {
                let syndrome = packet.headers.get::<weir_wire::Aeth>().unwrap().syndrome();
                acks.push((syndrome, packet.headers.bth.psn.get() - FIRST_PSN - packets));
            }
        }
    }
    assert!(!rig.engine.holds_after_reads(rig.index(&qp)));
    let end = place[LONG - 8..].to_vec();
    (read, acks, end)
}

#[test]
fn requests_behind_a_very_long_read_wait_until_it_is_read_out() {
    let (read, acks, end) = long_read_and_writes(true);
    assert!(read == vec![2; LONG]);
    assert_eq!(end, [12; 8], "the WRITEs were executed");
    assert_eq!(acks.last().map(|ack| ack.1), Some(2), "{acks:?}");
    assert!(acks.iter().all(|ack| ack.0 < 0x20), "ACKs, and no NAK: {acks:?}");
}

#[test]
fn without_buffers_the_peer_is_asked_to_repeat_what_would_have_to_wait() {
    let (read, acks, end) = long_read_and_writes(false);
    assert!(read == vec![2; LONG] && end == [2; 8]);
    // A sequence NAK for the first WRITE, once.
    assert_eq!(acks, [(0x60, 0)]);
}
