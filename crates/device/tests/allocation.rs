//! Posting, polling and the turns of the engine that they take allocate nothing and free nothing: not for messages of
//! any length or operation, not for QPs that wait or were destroyed, not for the first datagrams to new peers, not for
//! packets and requests for connections that the holder of port 4791 hands over, and not for that port.

#[allow(dead_code, reason = "other tests use the rest")]
mod common;
mod profile_setup;

use common::{create, open, to_self};
use profile_setup::{LONG, Memory, Side, one_at_a_time};
use std::alloc::{GlobalAlloc, Layout, System};
use std::backtrace::Backtrace;
use std::cell::Cell;
use std::net::{Ipv4Addr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use weir_device::{AddressHandle, Cq, MadSocket, Qp, epoll};
use weir_transport::{
    AddressVector, AttrMask, Data, Datagram, Profile, QpAttr, QpState, RecvWr, SendFlags, SendOp, SendWr, Service, Sge,
    Status, Target,
};
use weir_wire::cm::{Message, Rej, Req, ServiceId};
use weir_wire::ip::Envelope;
use weir_wire::{Bth, Deth, Headers, Opcode, Operation, Psn, ROCE_PORT, icrc, mad};

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

thread_local! {
    /// Allocations and deallocations of this thread; `None`: they are not counted.
    static COUNT: Cell<Option<usize>> = const { Cell::new(None) };
}

fn count() {
    let Some(count) = COUNT.try_with(Cell::get).ok().flatten() else { return };
    if count == 0 {
        // The test fails: shows where the first one was.
        COUNT.set(None);
        eprintln!("{}", Backtrace::force_capture());
    }
    COUNT.set(Some(count + 1));
}

// SAFETY: forwards to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's obligations.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count();
        // SAFETY: the caller's obligations.
        unsafe { System.dealloc(at, layout) }
    }
}

/// Runs `work`, which posts and polls; returns its number of allocations and deallocations.
fn allocations(work: impl FnOnce()) -> usize {
    COUNT.set(Some(0));
    work();
    COUNT.take().expect("it was counted")
}

/// Polls until `done`, which polls CQs and returns whether all has completed.
fn wait_until(mut done: impl FnMut() -> bool) {
    let until = Instant::now() + LONG;
    while !done() {
        assert!(Instant::now() < until, "not all work requests complete");
    }
}

/// Takes completions; returns their number.
fn take(cq: &Cq) -> usize {
    let mut count = 0;
    cq.poll(16, |completion| {
        assert_eq!(completion.status, Status::Success, "of {}", completion.wr_id);
        count += 1;
    })
    .unwrap();
    count
}

fn post(qp: &Qp, op: SendOp, sges: &[Sge], to: Target) {
    let (flags, data) = (SendFlags::SIGNALED, Data::Gather(sges));
    qp.post_send_to(&SendWr { wr_id: 0, op, flags, data }, to).unwrap();
    qp.doorbell();
}

/// Two adapters that no other test uses.
fn two_sides() -> [Side; 2] {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    [(); 2].map(|()| {
        let name = format!("allocation-{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        Side::new(&Profile { name, ..Profile::ideal() })
    })
}

#[test]
fn messages_of_any_length_and_operation_allocate_nothing() {
    const LONGEST: usize = 1 << 20;
    let _serial = one_at_a_time();
    let [here, there] = two_sides();
    let [qp, peer] = here.pair(&there);
    let (local, remote) = (Memory::pinned(&here, LONGEST / 4096), Memory::pinned(&there, LONGEST / 4096));
    let (remote_addr, rkey) = (remote.addr, remote.mr.rkey());
    for len in [64, 1024, 4096, 64 << 10, LONGEST] {
        for op in [SendOp::Send, SendOp::Write { remote_addr, rkey }, SendOp::Read { remote_addr, rkey }] {
            local.fill(len as u64);
            remote.fill(0);
            let sges = [local.sge(0, len)];
            let counted = allocations(|| {
                for _ in 0..8 {
                    if op == SendOp::Send {
                        peer.post_recv(&RecvWr { wr_id: 0, sges: &[remote.sge(0, len)] }).unwrap();
                    }
                    post(&qp, op, &sges, Target::Peer);
                }
                let expected = [8, if op == SendOp::Send { 8 } else { 0 }];
                let mut ended = [0; 2];
                wait_until(|| {
                    ended = [ended[0] + take(&here.cq), ended[1] + take(&there.cq)];
                    ended == expected
                });
            });
            assert_eq!(counted, 0, "{op:?} of {len} bytes");
            let last = len - 8;
            assert_eq!(local.word(last).load(Ordering::Relaxed), remote.word(last).load(Ordering::Relaxed));
        }
    }
}

#[test]
fn many_segments_in_place_allocate_nothing() {
    let _serial = one_at_a_time();
    let [here, there] = two_sides();
    let rest = QpAttr { timeout: 14, max_rd_atomic: 1, max_dest_rd_atomic: 1, ..QpAttr::default() };
    let mut create = create(Service::Rc);
    create.caps.max_send_sge = 32;
    let qp = here.pd.create_qp(&create, &here.cq, &here.cq).unwrap();
    let peer = there.pd.create_qp(&create, &there.cq, &there.cq).unwrap();
    common::connect_with(&here.context, &qp, peer.num(), &rest);
    common::connect_with(&there.context, &peer, qp.num(), &rest);
    let (local, remote) = (Memory::pinned(&here, 64), Memory::pinned(&there, 64));
    local.fill(1);
    // Gaps, so that no two segments are merged; each message is one packet.
    let sges: Vec<Sge> = (0..32).map(|n| local.sge(n * 256, 40)).collect();
    let counted = allocations(|| {
        for _ in 0..50 {
            for _ in 0..16 {
                post(&qp, SendOp::Write { remote_addr: remote.addr, rkey: remote.mr.rkey() }, &sges, Target::Peer);
            }
            let mut ended = 0;
            wait_until(|| {
                take(&there.cq);
                ended += take(&here.cq);
                ended == 16
            });
        }
    });
    assert_eq!(counted, 0);
}

#[test]
fn many_qps_that_wait_for_one_peer_allocate_nothing() {
    const QPS: usize = 40;
    let _serial = one_at_a_time();
    let [here, there] = two_sides();
    let pairs: Vec<[Arc<Qp>; 2]> = (0..QPS).map(|_| here.pair(&there)).collect();
    let (local, remote) = (Memory::pinned(&here, 256), Memory::pinned(&there, 256));
    local.fill(1);
    let sge = [local.sge(0, 1 << 20)];
    let counted = allocations(|| {
        for [qp, _] in &pairs {
            // More than the peer's window.
            post(qp, SendOp::Write { remote_addr: remote.addr, rkey: remote.mr.rkey() }, &sge, Target::Peer);
        }
        let mut ended = 0;
        wait_until(|| {
            take(&there.cq);
            ended += take(&here.cq);
            ended == QPS
        });
    });
    assert_eq!(counted, 0);
}

#[test]
fn events_of_many_armed_completion_queues_allocate_nothing() {
    const QPS: usize = 40;
    let _serial = one_at_a_time();
    let [here, there] = two_sides();
    let channel = here.context.create_channel().unwrap();
    let cqs: Vec<Arc<Cq>> =
        (0..QPS as u64).map(|cookie| here.context.create_cq(16, Some(channel.clone()), cookie).unwrap()).collect();
    let rest = QpAttr { timeout: 14, max_rd_atomic: 1, max_dest_rd_atomic: 1, ..QpAttr::default() };
    let pairs: Vec<[Arc<Qp>; 2]> = cqs
        .iter()
        .map(|cq| {
            let qp = here.pd.create_qp(&create(Service::Rc), cq, cq).unwrap();
            let peer = there.pd.create_qp(&create(Service::Rc), &there.cq, &there.cq).unwrap();
            common::connect_with(&here.context, &qp, peer.num(), &rest);
            common::connect_with(&there.context, &peer, qp.num(), &rest);
            [qp, peer]
        })
        .collect();
    let (local, remote) = (Memory::pinned(&here, 1), Memory::pinned(&there, 1));
    let sge = [local.sge(0, 64)];
    let mut events = 0;
    let counted = allocations(|| {
        for (cq, [qp, _]) in cqs.iter().zip(&pairs) {
            cq.arm(false).unwrap();
            post(qp, SendOp::Write { remote_addr: remote.addr, rkey: remote.mr.rkey() }, &sge, Target::Peer);
        }
        let mut ended = 0;
        wait_until(|| {
            take(&there.cq);
            ended += cqs.iter().map(|cq| take(cq)).sum::<usize>();
            ended == QPS
        });
        events = std::iter::from_fn(|| channel.pop_event()).count();
    });
    assert_eq!((counted, events), (0, QPS));
}

/// A UD QP that is ready to send and to receive.
fn datagram_qp(side: &Side) -> Arc<Qp> {
    use AttrMask as M;
    let qp = side.pd.create_qp(&create(Service::Ud), &side.cq, &side.cq).unwrap();
    for (qp_state, mask) in
        [(QpState::Init, M::PKEY_INDEX | M::PORT | M::QKEY), (QpState::Rtr, M::empty()), (QpState::Rts, M::SQ_PSN)]
    {
        qp.modify(&QpAttr { qp_state, ..QpAttr::default() }, mask | M::STATE).unwrap();
    }
    qp
}

/// Address handles of other addresses of the loopback interface, where no process is.
fn elsewhere(side: &Side, count: u8) -> Vec<AddressHandle> {
    let to = |last| AddressVector {
        dgid: Ipv4Addr::new(127, 7, 7, last).to_ipv6_mapped().octets(),
        ..to_self(&side.context)
    };
    (0..count).map(|last| side.pd.create_ah(&to(last + 1)).unwrap()).collect()
}

#[test]
fn first_datagrams_to_new_peers_allocate_nothing() {
    const SLOTS: u32 = 500;
    let _serial = one_at_a_time();
    let [here, there] = two_sides();
    let (qp, peer) = (datagram_qp(&here), datagram_qp(&there));
    let (local, remote) = (Memory::pinned(&here, 1), Memory::pinned(&there, 1));
    let (sges, addresses) = ([local.sge(0, 64)], elsewhere(&here, 3));
    let own = here.pd.create_ah(&to_self(&here.context)).unwrap();
    peer.post_recv(&RecvWr { wr_id: 0, sges: &[remote.sge(0, 256)] }).unwrap();
    let counted = allocations(|| {
        let mut ended = [0; 2];
        let mut posted = 0;
        let mut to_each = |address: u32, dest_qp: u32| {
            wait_until(|| {
                ended = [ended[0] + take(&here.cq), ended[1] + take(&there.cq)];
                posted - ended[0] < 16
            });
            post(&qp, SendOp::Send, &sges, Target::Datagram(Datagram { address, dest_qp, qkey: 0 }));
            posted += 1;
        };
        for address in &addresses {
            (1..=SLOTS).for_each(|slot| to_each(address.number(), slot << 14 | 5));
        }
        to_each(own.number(), peer.num());
        let all = [3 * SLOTS as usize + 1, 1];
        wait_until(|| {
            ended = [ended[0] + take(&here.cq), ended[1] + take(&there.cq)];
            ended == all
        });
    });
    assert_eq!(counted, 0);
}

/// A UD packet of a foreign adapter, from that port of the loopback interface.
fn foreign_packet(dest_qp: u32, deth: Deth, payload: &[u8], src_port: u16) -> Vec<u8> {
    let opcode = Opcode::new(Service::Ud, Operation::SendOnly);
    let mut headers = Headers::new(Bth::new(opcode, dest_qp, Psn::new(0)));
    headers.put(deth);
    let mut packet = vec![0; headers.len()];
    headers.emit(&mut packet);
    packet.extend(payload);
    let local = Ipv4Addr::LOCALHOST.into();
    let (src, dst) = (local, local);
    let envelope = Envelope { src, dst, src_port, dst_port: ROCE_PORT, ip_id: 0, dont_fragment: true };
    let icrc = icrc::compute(&envelope, &packet);
    packet.extend(icrc.to_le_bytes());
    packet
}

/// A datagram of a foreign adapter for a QP.
fn foreign_datagram(dest_qp: u32, src_port: u16) -> Vec<u8> {
    foreign_packet(dest_qp, Deth { qkey: 0.into(), src_qp: 0x77.into() }, &[0; 64], src_port)
}

/// Polls until the adapters of other tests have ended, of which one may be the holder of port 4791.
fn wait_for_the_port(side: &Side) {
    let began = Instant::now();
    while began.elapsed() < Duration::from_millis(500) {
        take(&side.cq);
    }
}

#[test]
fn packets_that_are_handed_over_allocate_nothing() {
    let _serial = one_at_a_time();
    let [here, there] = two_sides();
    // The first one becomes the holder of port 4791, unless another adapter is.
    let (_holder, receiver) = (datagram_qp(&here), datagram_qp(&there));
    let remote = Memory::pinned(&there, 1);
    let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = sender.local_addr().unwrap().port();
    let slot = receiver.num() >> 14;
    let unused = if slot == 700 { 701 } else { 700 };
    // Some for a slot of no process.
    let packets = [foreign_datagram(receiver.num(), port), foreign_datagram(unused << 14 | 3, port)];
    wait_for_the_port(&here);
    let mut arrived = 0;
    let counted = allocations(|| {
        for _ in 0..20 {
            (0..8).for_each(|_| receiver.post_recv(&RecvWr { wr_id: 0, sges: &[remote.sge(0, 256)] }).unwrap());
            for _ in 0..8 {
                packets.iter().for_each(|packet| {
                    sender.send_to(packet, (Ipv4Addr::LOCALHOST, ROCE_PORT)).unwrap();
                });
            }
            let mut batch = 0;
            wait_until(|| {
                take(&here.cq);
                batch += take(&there.cq);
                batch == 8
            });
            arrived += batch;
        }
    });
    assert_eq!((counted, arrived), (0, 160));
}

/// Polls for this long, and returns the number of allocations and deallocations.
fn polling_allocates(sides: &[&Side], time: Duration) -> usize {
    allocations(|| {
        let began = Instant::now();
        while began.elapsed() < time {
            for side in sides {
                take(&side.cq);
            }
        }
    })
}

/// Requests that get to a listener, that are refused at once, that wait for a listener, and that are given up.
#[test]
fn requests_for_connections_allocate_nothing() {
    let _serial = one_at_a_time();
    let [here, _] = two_sides();
    let _holder = datagram_qp(&here);
    wait_for_the_port(&here);
    let epoll = Arc::new(epoll::create().unwrap());
    let (prefix, mut own) = MadSocket::of_process(&epoll, 1).unwrap();
    let [service, nowhere] = [0, 1].map(|low| 0x0106_0000 | u64::from(std::process::id() as u16 ^ low));
    let mut listener = MadSocket::of_service(service, &epoll, 2).unwrap();
    listener.open().unwrap();
    let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
    let send = |message: Message| {
        let deth = Deth { qkey: mad::GSI_QKEY.into(), src_qp: mad::GSI_QPN.into() };
        let port = sender.local_addr().unwrap().port();
        let packet = foreign_packet(mad::GSI_QPN, deth, &message.emit(1, 0), port);
        sender.send_to(&packet, (Ipv4Addr::LOCALHOST, ROCE_PORT)).unwrap();
    };
    let request = |service: u64, id: u32| {
        send(Message::Req(Req { local_comm_id: prefix | id, service_id: ServiceId(service), ..Req::default() }));
    };
    let gives_up = |id: u32| send(Message::Rej(Rej { local_comm_id: prefix | id, ..Rej::default() }));
    let mut counted = 0;
    let mut comes = |socket: &mut MadSocket, expected: fn(&Message) -> bool| {
        let (mut came, until) = (false, Instant::now() + LONG);
        while !came {
            assert!(Instant::now() < until, "no message");
            counted += polling_allocates(&[&here], Duration::from_millis(5));
            socket.take(|mad| came |= Message::parse(mad.bytes).is_ok_and(|(_, message)| expected(&message)));
        }
    };
    let (is_request, is_refusal) = (
        |message: &Message| matches!(message, Message::Req(_)),
        |message: &Message| matches!(message, Message::Rej(_)),
    );
    for id in 1..=20 {
        request(service, id);
        comes(&mut listener, is_request);
    }
    gives_up(20);
    comes(&mut listener, is_refusal);
    drop(listener);
    request(nowhere, 21);
    comes(&mut own, is_refusal);
    (22..=40).for_each(|id| request(service, id));
    gives_up(22);
    comes(&mut own, is_refusal);
    assert_eq!(counted, 0);
}

#[test]
fn removal_of_destroyed_qps_allocates_nothing() {
    let _serial = one_at_a_time();
    let [here, there] = two_sides();
    for _ in 0..40 {
        here.pair(&there).iter().for_each(|qp| qp.destroy().unwrap());
    }
    assert_eq!(polling_allocates(&[&here, &there], Duration::from_millis(500)), 0);
}

#[test]
fn tries_to_open_port_4791_allocate_nothing() {
    let _serial = one_at_a_time();
    // Adapters of other tests may have the port for a moment.
    let mut other = None;
    wait_until(|| {
        other = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, ROCE_PORT)).ok();
        other.is_some()
    });
    let [here, _] = two_sides();
    let receiver = datagram_qp(&here);
    let remote = Memory::pinned(&here, 1);
    receiver.post_recv(&RecvWr { wr_id: 0, sges: &[remote.sge(0, 256)] }).unwrap();
    assert_eq!(polling_allocates(&[&here], Duration::from_millis(200)), 0, "the port is tried again and again");
    drop(other);
    let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
    let packet = foreign_datagram(receiver.num(), sender.local_addr().unwrap().port());
    let counted = allocations(|| {
        wait_until(|| {
            // Refused until the port is open.
            let _ = sender.send_to(&packet, (Ipv4Addr::LOCALHOST, ROCE_PORT));
            take(&here.cq) == 1
        });
    });
    assert_eq!(counted, 0);
}

#[test]
fn allocations_and_deallocations_are_counted() {
    assert_eq!(allocations(|| drop(std::hint::black_box(Box::new(1)))), 2);
    drop(open());
}
