//! The body of the fuzz target `tags`: a hostile peer of a QP with a TM SRQ.

use super::paging::PagingSetup;
use super::pair::{Pair, Setup};
use super::requests::{address, remote};
use crate::{Mtu, Profile, QpAttr, QpState, Queue, ResponderFaults, ResponderState, Status, WcFlags, WcOpcode};
use std::time::Duration;
use weir_trials::Input;
use weir_wire::{Aeth, Bth, Headers, ImmDt, Opcode, Packet, Reth, tag};

/// Receives of the program: by turns for a tag and for any message.
const RECEIVES: u64 = 40;
const STEPS: usize = 256;
/// Bytes of the region. A small one takes little time to make and to look through.
const REGION: usize = 128 << 10;

/// Any packets with headers of tag matching, mostly what can follow the packet before: no receive completes twice, each
/// unexpected message counts once, no byte outside of the region changes, and the program's send queue stays empty.
pub fn tags(data: &[u8]) {
    let mut input = Input(data);
    let first = input.byte();
    let mut profile = Profile::ideal();
    if first & 1 != 0 {
        profile.page_faults.responder = ResponderFaults::RnrNak { read_after: Duration::ZERO };
    }
    let paging = (first & 3 != 0).then(PagingSetup::default);
    let mut pair =
        Setup { srq: false, tags: true, region: REGION, paging, profile, mtu: Mtu::M256, ..Setup::default() }.pair();
    let post = |pair: &mut Pair, k: u64| {
        let (at, len) = (8_000 + k as usize * 2000, [16, 40, 500, 2000][k as usize % 4]);
        match k % 2 {
            0 => pair.post_tag(k / 2 % 3, k, at, len),
            _ => pair.post_srq_recv(0, k, at, len),
        }
    };
    let early = RECEIVES / 2;
    (0..early).for_each(|k| post(&mut pair, k));
    let mut posted = early;
    for _ in 0..STEPS {
        if input.is_empty() {
            break;
        }
        match input.byte() % 16 {
            0 => {
                pair.now = pair.now + Duration::from_micros(u64::from(input.byte()));
                let sides = if paging.is_some() { pair.paging(1).advance(pair.now) } else { Default::default() };
                sides.into_iter().for_each(|side| pair.nodes[1].qp.page_resolved(pair.now, side));
                pair.transmit();
            }
            1 if posted < RECEIVES => {
                post(&mut pair, posted);
                posted += 1;
            }
            _ => packet(&mut input, &mut pair),
        }
    }
    pair.modify_from(1, QpState::Error, QpAttr::default());
    check(&pair);
}

fn packet(input: &mut Input<'_>, pair: &mut Pair) {
    let inside = pair.nodes[1].qp.responder_state() == ResponderState::InSend;
    let what = input.byte();
    let odd = what & 0xf0 == 0xf0;
    let opcode = match what & 15 {
        0 => 0x11,
        1 => 0x10,
        2 if !inside => 0x0b,
        3 if odd => 0x17,
        _ if odd => input.byte() % 6,
        _ if inside => 1 + (what & 1),
        4..=6 => 0x00,
        _ => 0x04,
    };
    let sizes = input.byte();
    let len = match opcode {
        0 | 1 if !odd => 256,
        _ if odd => [0, 15, 31, 65, 256][usize::from(sizes) % 5],
        _ => [16, 32, 40, 64][usize::from(sizes) % 4],
    };
    let right = remote(0).1;
    let rkey = if sizes & 0x30 == 0 { 0xbad } else { right };
    let operation = match sizes >> 6 {
        0 if odd => input.byte(),
        1 if odd || opcode == 4 && len >= 32 => 1,
        2 => 2,
        _ => 3,
    };
    let bits = input.byte();
    let data = [0, 16, 100, 500, 3000, 1 << 31, u32::MAX, input.word()][usize::from(bits & 7)];
    let rvh = tag::Rvh { va: address(100_000), rkey, len: data };
    let tmh = tag::Tmh { reserved: [1, 2, 3], app_ctx: 5, tag: u64::from(bits >> 3 & 3) };
    let mut payload = tag::fin(&tmh, &rvh).to_vec();
    payload[0] = operation;
    payload.resize(len, 0x5a);
    let qp = &pair.nodes[1].qp;
    let base = if opcode > 0x0b { qp.attr().sq_psn.minus(1) } else { qp.attr().rq_psn };
    // Some come again, and differ from the first time.
    let psn = if bits & 0xe0 == 0xe0 { base.minus(u32::from(input.byte() & 7)) } else { base };
    let mut bth = Bth::new(Opcode(opcode), qp.num(), psn);
    bth.ack_req = true;
    let mut headers = Headers::new(bth);
    let va = remote(110_000).0;
    headers.put(Reth { va: va.into(), rkey: rkey.into(), dma_len: (len as u32).into() });
    headers.put(Aeth::new(31, 1));
    headers.put(ImmDt { imm: 5.into() });
    let payload = if opcode == 0x11 { &[][..] } else { &payload[..] };
    let node = &mut pair.nodes[1];
    node.qp.handle_packet(pair.now, &Packet { headers, payload, icrc: 0, placement: None }, &mut node.host);
}

fn check(pair: &Pair) {
    let all = pair.completions(1, Queue::Receive);
    let ok = Status::Success;
    for k in 0..RECEIVES {
        let own = || all.iter().filter(|c| c.wr_id == k);
        let begun = own().filter(|c| c.status == ok && c.flags == WcFlags::TM_MATCH).count();
        let ended = own().count() - begun;
        assert!(begun <= 1 && ended <= 1 && begun <= ended, "receive {k}: {all:?}");
    }
    let tagged = WcFlags::TM_MATCH | WcFlags::TM_DATA_VALID;
    let unexpected =
        |c: &&crate::Completion| c.status == ok && c.opcode == WcOpcode::TagRecv && !c.flags.intersects(tagged);
    assert_eq!(pair.nodes[1].host.unexpected, all.iter().filter(unexpected).count() as i32, "{all:?}");
    assert!(pair.completions(1, Queue::Send).is_empty(), "a request of the program completed that it has not made");
    assert!(pair.canaries_live(), "a byte outside of the region has changed");
}
