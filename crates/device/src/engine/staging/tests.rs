use super::*;
use crate::engine::testing::{PD, register};
use crate::memory::region::{Kind, Region};
use crate::paging::counters::{self, Pair};
use crate::paging::{OnDemand, Owner, Paged, Resolver};
use std::sync::Weak;
use weir_transport::{Profile, Psn, Remote, Service, Sge};
use weir_wire::icrc::Verdict;
use weir_wire::{Bth, Headers, Opcode, Operation};

const TAG: u32 = 0x1234_5678;
/// Bytes of a datagram beyond its payload and pad: BTH and ICRC.
const OVERHEAD: usize = 12 + ICRC_LEN;

/// An outbox, registered memory, and what a [`Staging`] is made of.
struct Bed {
    outbox: Outbox,
    groups: usize,
    segments: usize,
    route: Route,
    to: SocketAddr,
    tag: Option<u32>,
    in_place: bool,
    discard: bool,
    regions: Regions,
    faults: Arc<QpFaults>,
    memory: Vec<u8>,
    sge: Sge,
}

impl Bed {
    fn new() -> Bed {
        let regions = Regions::default();
        let mut memory: Vec<u8> = (0..8192u32).map(|n| (n % 251) as u8).collect();
        let sge = register(&regions, &mut memory);
        let route = Route { local: [10, 0, 0, 1].into(), remote: [10, 0, 0, 2].into(), ifindex: 0, hops: 0 };
        Bed {
            outbox: Outbox::with_iovecs(256 << 10, 32, 4096),
            groups: 32,
            segments: 64,
            route,
            to: route.to(20_500),
            tag: None,
            in_place: false,
            discard: false,
            regions,
            faults: Arc::new(QpFaults::new(7)),
            memory,
            sge,
        }
    }

    /// Datagrams without ICRC: their payload may stay in place.
    fn in_place() -> Bed {
        Bed { tag: Some(TAG), in_place: true, ..Bed::new() }
    }

    fn with<T>(&mut self, work: impl FnOnce(&mut Staging<'_>) -> T) -> T {
        work(&mut Staging {
            outbox: &mut self.outbox,
            groups: self.groups,
            segments: self.segments,
            route: &self.route,
            to: &self.to,
            port: 20_501,
            tag: self.tag,
            user: User { pd: PD, qp: 7 },
            faults: &self.faults,
            regions: &self.regions,
            cached: &mut Cached::default(),
            discard: self.discard,
            in_place: self.in_place,
        })
    }

    fn push(&mut self, payload: Payload<'_>) -> Result<(), Refused> {
        self.with(|staging| staging.push(&packet(payload)))
    }

    /// Pushes the first `len` bytes of the registered memory.
    fn gather(&mut self, len: usize) -> Result<(), Refused> {
        let sges = [self.sge];
        self.push(Payload::Gather { sges: &sges, offset: 0, len })
    }

    /// The number of packets that are taken until the outbox is full. Checks that the refusal stages nothing.
    fn fill(&mut self, len: usize) -> usize {
        for count in 0.. {
            let before = self.staged();
            match self.gather(len) {
                Ok(()) => {}
                Err(refused) => {
                    assert_eq!((refused, self.staged()), (Refused::Full, before));
                    return count;
                }
            }
        }
        unreachable!()
    }

    /// The outbox, to compare.
    fn staged(&self) -> String {
        format!("{} {:?} {:?}", self.outbox.len, self.outbox.groups, self.outbox.iovecs)
    }

    /// The payload sizes of the datagrams of each group.
    fn sizes(&self) -> Vec<Vec<usize>> {
        let sizes = |group: Vec<Vec<u8>>| group.iter().map(|datagram| datagram.len() - OVERHEAD).collect();
        self.datagrams().into_iter().map(sizes).collect()
    }

    /// The datagrams of each group, as the kernel would read them.
    fn datagrams(&self) -> Vec<Vec<Vec<u8>>> {
        let groups = self.outbox.groups.iter().map(|group| {
            let bytes = match group.iovecs {
                (_, 0) => self.outbox.bytes[group.start..group.start + group.len].to_vec(),
                (first, count) => {
                    let iovecs = &self.outbox.iovecs[first..first + count];
                    // SAFETY: an iovec refers to the outbox, to `memory` or to static zeros.
                    iovecs
                        .iter()
                        .flat_map(|v| unsafe { std::slice::from_raw_parts(v.addr as *const u8, v.len) })
                        .copied()
                        .collect()
                }
            };
            assert_eq!(bytes.len(), group.len);
            bytes.chunks(group.segment).map(<[u8]>::to_vec).collect()
        });
        groups.collect()
    }

    fn verdict(&self, position: usize, datagram: &[u8]) -> Verdict {
        let Route { local, remote, .. } = self.route;
        let (src_port, dst_port, ip_id) = (20_501, self.to.port(), position as u16);
        icrc::verify(&Envelope { src: local, dst: remote, src_port, dst_port, ip_id, dont_fragment: true }, datagram)
    }
}

fn packet(payload: Payload<'_>) -> Outgoing<'_> {
    let bth = Bth::new(Opcode::new(Service::Rc, Operation::SendOnly), 9, Psn::new(3));
    let pad = (payload.len().wrapping_neg() & 3) as u8;
    Outgoing { headers: Headers::new(Bth { pad, ..bth }), payload, placement: None, to: None }
}

#[test]
fn datagrams_of_one_size_form_a_group_and_a_shorter_one_ends_it() {
    for (pushed, groups) in [
        (&[100, 100, 100][..], vec![vec![100, 100, 100]]),
        (&[100, 100, 60], vec![vec![100, 100, 60]]),
        (&[100, 60, 60], vec![vec![100, 60], vec![60]]),
        (&[100, 60, 100], vec![vec![100, 60], vec![100]]),
        (&[60, 100, 100], vec![vec![60], vec![100, 100]]),
        (&[100, 0, 0], vec![vec![100, 0], vec![0]]),
    ] {
        let mut bed = Bed::new();
        for len in pushed {
            bed.gather(*len).unwrap();
        }
        assert_eq!(bed.sizes(), groups, "{pushed:?}");
    }
}

#[test]
fn another_destination_or_route_begins_a_group() {
    let changes: [fn(&mut Bed); 4] = [
        |bed| bed.to.set_port(4791),
        |bed| bed.to.set_ip([10, 0, 0, 3].into()),
        |bed| bed.route.local = [10, 0, 0, 9].into(),
        |bed| bed.route.hops = 2,
    ];
    for (at, change) in changes.iter().enumerate() {
        let mut bed = Bed::new();
        let (route, to) = (bed.route, bed.to);
        bed.gather(100).unwrap();
        change(&mut bed);
        bed.gather(100).unwrap();
        bed.gather(100).unwrap();
        (bed.route, bed.to) = (route, to);
        bed.gather(100).unwrap();
        assert_eq!(bed.sizes(), [vec![100], vec![100; 2], vec![100]], "change {at}");
        let [first, second, third] = &bed.outbox.groups[..] else { unreachable!() };
        assert_eq!((first.to, first.from, first.hops), (third.to, third.from, third.hops));
        assert_ne!((first.to, first.from, first.hops), (second.to, second.from, second.hops), "change {at}");
    }
}

#[test]
fn a_group_is_limited_in_bytes_segments_and_iovecs() {
    let mut bed = Bed::new();
    (0..20).for_each(|_| bed.gather(4096).unwrap());
    assert_eq!(bed.sizes(), [vec![4096; weir_link::GROUP_BYTES / (4096 + OVERHEAD)], vec![4096; 5]]);
    for (segments, groups) in [(1, vec![1, 1, 1, 1]), (3, vec![3, 1]), (4, vec![4])] {
        let mut bed = Bed { segments, ..Bed::new() };
        (0..4).for_each(|_| bed.gather(100).unwrap());
        assert_eq!(bed.outbox.groups.iter().map(Group::count).collect::<Vec<_>>(), groups);
    }
    // 32 SGEs a packet, none contiguous with the next: 33 iovecs for each packet of a group, and one more.
    let mut bed = Bed::in_place();
    let sges: Vec<Sge> = (0..32).rev().map(|n| Sge { addr: bed.sge.addr + 64 * n, length: 32, ..bed.sge }).collect();
    for _ in 0..31 {
        bed.push(Payload::Gather { sges: &sges, offset: 0, len: IN_PLACE }).unwrap();
    }
    assert_eq!(bed.outbox.groups.iter().map(|group| group.iovecs.1).collect::<Vec<_>>(), [30 * 33 + 1, 34]);
}

#[test]
fn a_full_outbox_takes_nothing_of_a_packet() {
    let mut bed = Bed { outbox: Outbox::new(3 * (100 + OVERHEAD) + 99 + OVERHEAD, 32), ..Bed::new() };
    assert_eq!((bed.fill(100), bed.gather(96)), (3, Ok(())), "bytes");
    let mut bed = Bed { groups: 2, segments: 2, ..Bed::new() };
    assert_eq!(bed.fill(100), 4, "groups");
    let mut bed = Bed { outbox: Outbox::with_iovecs(2 * (2048 + OVERHEAD), 32, 4096), ..Bed::in_place() };
    assert_eq!(bed.fill(2048), 2, "bytes, counted with the payload that stays in place");
    // Two packets take five iovecs: the tail of the first and the headers of the second are contiguous.
    let mut bed = Bed { outbox: Outbox::with_iovecs(256 << 10, 32, 4 + PACKET_IOVECS), ..Bed::in_place() };
    assert_eq!(bed.fill(IN_PLACE), 2, "iovecs");
}

#[test]
fn the_icrc_of_every_segment_is_right_for_its_position() {
    let routes = [
        Bed::new().route,
        Route { local: "fd00::1".parse().unwrap(), remote: "fd00::2".parse().unwrap(), ifindex: 0, hops: 0 },
    ];
    for route in routes {
        let mut bed = Bed { route, to: route.to(20_500), ..Bed::new() };
        for len in [100, 100, 100, 57, 100, 100] {
            bed.gather(len).unwrap();
        }
        let groups = bed.datagrams();
        assert_eq!(groups.iter().map(Vec::len).collect::<Vec<_>>(), [4, 2]);
        for (position, datagram) in groups.iter().flat_map(|group| group.iter().enumerate()) {
            assert_eq!(bed.verdict(position, datagram), Verdict::Good, "{position} of {route:?}");
            let len = if position == 3 { 57 } else { 100 };
            assert_eq!(datagram[12..12 + len], bed.memory[..len]);
        }
        assert_eq!(groups[0][3][12 + 57..12 + 60], [0; 3], "pad");
    }
}

#[test]
fn a_tag_takes_the_place_of_the_icrc() {
    for len in [0, 57, 100, 2047, 2048] {
        let mut bed = Bed::in_place();
        bed.gather(len).unwrap();
        let padded = len.next_multiple_of(4);
        let [datagram] = &bed.datagrams()[0][..] else { panic!("one datagram") };
        assert_eq!(datagram[12..12 + len], bed.memory[..len], "{len}");
        assert!(datagram[12 + len..12 + padded].iter().all(|byte| *byte == 0), "pad of {len}");
        assert_eq!(datagram[12 + padded..], TAG.to_le_bytes(), "{len}");
    }
}

#[test]
fn only_long_registered_payload_without_icrc_stays_in_place() {
    let null =
        Region { key: 0, pd: PD, addr: 0, iova: 0, len: 4096, access: Access::empty(), kind: Kind::Null, paged: None };
    for (name, in_place, change) in [
        ("the shortest", true, (|_, len| len) as fn(&mut Bed, usize) -> usize),
        ("too short", false, |_, len| len - 1),
        ("with an ICRC", false, |bed, len| {
            bed.tag = None;
            len
        }),
        ("not allowed", false, |bed, len| {
            bed.in_place = false;
            len
        }),
    ] {
        let mut bed = Bed::in_place();
        let len = change(&mut bed, IN_PLACE);
        bed.gather(len).unwrap();
        let addrs: Vec<usize> = bed.outbox.iovecs.iter().map(|iovec| iovec.addr).collect();
        assert_eq!(addrs.contains(&(bed.sge.addr as usize)), in_place, "{name}");
        assert_eq!(bed.datagrams()[0][0][12..12 + len], bed.memory[..len], "{name}");
    }
    let mut bed = Bed::in_place();
    let inline = vec![7; IN_PLACE];
    bed.push(Payload::Bytes(&inline)).unwrap();
    assert!(bed.outbox.iovecs.is_empty(), "inline data is copied");
    let read = Remote { pd: None, rkey: bed.sge.lkey, va: bed.sge.addr, len: IN_PLACE as u64 };
    bed.push(Payload::Remote(read)).unwrap();
    assert!(bed.outbox.iovecs.iter().any(|iovec| iovec.addr as u64 == bed.sge.addr), "a READ response is not");
    let zeros = [Sge { addr: 0, length: 4096, lkey: bed.regions.insert(null).unwrap() }];
    bed.push(Payload::Gather { sges: &zeros, offset: 0, len: IN_PLACE }).unwrap();
    bed.push(Payload::Bytes(&inline)).unwrap();
    // Datagrams of either kind form one group, in the order in which they were pushed.
    let groups = bed.datagrams();
    let payloads: Vec<&[u8]> = groups[0].iter().map(|datagram| &datagram[12..12 + IN_PLACE]).collect();
    assert_eq!(payloads, [&inline[..], &bed.memory[..IN_PLACE], &[0; IN_PLACE], &inline]);
}

#[test]
fn denied_payload_stages_nothing_and_waits_for_payload_in_place() {
    let denied = Err(Refused::Denied(Denied::Protection));
    for len in [100, IN_PLACE] {
        let mut bed = Bed::in_place();
        let wrong = [Sge { lkey: bed.sge.lkey ^ 1, ..bed.sge }];
        let wrong = Payload::Gather { sges: &wrong, offset: 0, len };
        bed.gather(100).unwrap();
        let before = bed.staged();
        assert_eq!((bed.push(wrong), bed.staged()), (denied, before), "only copied payload is staged");
        // The denial would complete earlier work requests, and the kernel has not read their payload.
        bed.gather(IN_PLACE).unwrap();
        let before = bed.staged();
        assert_eq!((bed.push(wrong), bed.staged()), (Err(Refused::Full), before), "{len}");
        bed.outbox.clear();
        assert_eq!((bed.push(wrong), bed.outbox.len), (denied, 0), "{len}");
    }
}

struct NoAdapter;

impl Owner for NoAdapter {
    fn quiesce(&self) {}
    fn resolved(&self, _: &[(u32, Side)]) {}
}

#[test]
fn a_page_fault_does_not_wait_for_payload_in_place() {
    let mut bed = Bed::in_place();
    let resolver = Resolver::new(Weak::<NoAdapter>::new() as Weak<dyn Owner>, &Profile::ideal());
    let pair = Pair::new(counters::of_device("staging-test"));
    let (addr, len) = (bed.sge.addr, 8192);
    let odp = Arc::new(OnDemand::new(addr, len, true, pair, resolver).unwrap());
    assert!(odp.table.make_room(odp.pages()));
    let (access, paged) = (Access::empty(), Some(Paged::of(&odp)));
    let region = Region { key: 0, pd: PD, addr, iova: addr, len, access, kind: Kind::Memory, paged };
    let missing = [Sge { addr, length: 8192, lkey: bed.regions.insert(region).unwrap() }];
    bed.gather(IN_PLACE).unwrap();
    let before = bed.staged();
    let refused = bed.push(Payload::Gather { sges: &missing, offset: 0, len: IN_PLACE });
    assert_eq!((refused, bed.staged()), (Err(Refused::Denied(Denied::PageFault)), before));
}

#[test]
fn packets_to_a_process_that_is_gone_are_taken_and_discarded() {
    let mut bed = Bed { discard: true, ..Bed::in_place() };
    let before = bed.staged();
    for len in [0, 100, IN_PLACE] {
        assert_eq!((bed.gather(len), bed.staged()), (Ok(()), before.clone()), "{len}");
    }
    let wrong = [Sge { lkey: bed.sge.lkey ^ 1, ..bed.sge }];
    let refused = bed.push(Payload::Gather { sges: &wrong, offset: 0, len: IN_PLACE });
    assert_eq!(refused, Err(Refused::Denied(Denied::Protection)), "access is checked nevertheless");
}
