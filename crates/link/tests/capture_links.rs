//! A capture of several interfaces: the file describes each, and every datagram names its own. Packets over several links
//! are in the file as they were sent.

mod common;

use common::{Dummy, outbox};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use weir_capture::{Direction, OwnedFrame, open, roce};
use weir_link::capture::{Capture, CaptureInterface, CaptureOptions, HistorySize, Snap};
use weir_link::{Arrival, Carrier, Inbox};
use weir_wire::edge::{HEADER_LEN, Header, Hello, Order, RECEIVED_LEN, Seq};
use weir_wire::ip::Envelope;
use weir_wire::{Bth, Headers, Opcode, Operation, Psn, Service, icrc};

const OUR_PORT: u16 = 20480;
const THEIR_PORT: u16 = 20485;
const MACS: [[u8; 6]; 2] = [[0x52, 0x54, 0, 0, 0, 1], [0x52, 0x54, 0, 0, 0, 2]];
const INTERFACES: [CaptureInterface<'_>; 2] = [
    CaptureInterface { name: "eth1", index: 7, mac: Some(MACS[0]) },
    CaptureInterface { name: "eth2", index: 9, mac: Some(MACS[1]) },
];

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn options<'a>(interfaces: &'a [CaptureInterface<'a>]) -> CaptureOptions<'a> {
    CaptureOptions { interfaces, port: OUR_PORT, description: "a test", ..Default::default() }
}

/// Bytes in front of the packet: nothing is known of an order.
const FRONT: usize = HEADER_LEN + RECEIVED_LEN;

/// A packet behind a header for several links. Its ICRC is right for other addresses than those of the link.
fn behind() -> Vec<u8> {
    let bth = Bth::new(Opcode::new(Service::Rc, Operation::SendOnly), 0x1_0005, Psn::new(7));
    let mut inner = vec![0; 12];
    Headers::new(bth).emit(&mut inner);
    inner.extend([0xee; 64]);
    let primary = Envelope {
        src: address("10.0.9.1"),
        dst: address("10.0.9.2"),
        src_port: OUR_PORT,
        dst_port: THEIR_PORT,
        ip_id: 0,
        dont_fragment: true,
    };
    inner.extend(icrc::compute(&primary, &inner).to_le_bytes());
    let packet = Some((Seq(5), Order::Any));
    let header = Header {
        connection: 0x0102_0304,
        link: 1,
        count: 9,
        packet,
        received: Some(Seq(2)),
        sent: 0x5152_5354,
        asks: false,
    };
    let mut bytes = vec![0; header.wire_len()];
    assert_eq!(header.emit(None, None, &mut bytes), FRONT);
    [bytes, inner].concat()
}

/// Sends by each interface, by one that is not named and by the route; and receives at each.
fn exchange(capture: &mut Capture<Dummy>, datagram: &[u8]) {
    for ifindex in [7, 9, 8, 0] {
        let mut outbox =
            outbox(&[(SocketAddr::new(address("10.0.1.2"), THEIR_PORT), address("10.0.1.1"), datagram, 4096)]);
        outbox.groups[0].ifindex = ifindex;
        capture.send(&outbox).unwrap();
    }
    for ifindex in [9, 7] {
        let mut arrival = Arrival::new(SocketAddr::new(address("10.0.1.2"), THEIR_PORT), OUR_PORT, 0, datagram.len());
        (arrival.to, arrival.ifindex) = (address("10.0.1.1"), ifindex);
        capture.inner_mut().arriving.push((arrival, datagram.to_vec()));
        capture.receive(&mut Inbox::new(1)).unwrap();
    }
}

fn read(path: &Path) -> Vec<OwnedFrame> {
    open(path).unwrap().owned_frames().collect::<Result<_, _>>().unwrap()
}

fn check(frames: &[OwnedFrame]) {
    let interfaces: Vec<u32> = frames.iter().map(|frame| frame.interface).collect();
    assert_eq!(interfaces, [0, 1, 0, 0, 1, 0]);
    for frame in frames {
        let own = match frame.direction.unwrap() {
            Direction::Out => &frame.data[6..12],
            Direction::In => &frame.data[..6],
        };
        assert_eq!(own, MACS[frame.interface as usize]);
    }
}

fn contains(file: &[u8], bytes: &[u8]) -> bool {
    file.windows(bytes.len()).any(|window| window == bytes)
}

#[test]
fn each_datagram_names_its_interface() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.pcapng");
    let mut capture = Capture::create(Dummy::default(), &path, &options(&INTERFACES)).unwrap();
    exchange(&mut capture, &behind());
    capture.finish().unwrap();
    check(&read(&path));
    let file = std::fs::read(&path).unwrap();
    // if_name, padded, and if_MACaddr, padded.
    assert!(contains(&file, b"\x02\0\x04\0eth1") && contains(&file, b"\x02\0\x04\0eth2"));
    for mac in MACS {
        assert!(contains(&file, &[&[6, 0, 6, 0][..], &mac, &[0, 0]].concat()));
    }
}

#[test]
fn a_capture_ring_has_the_interfaces_too() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.pcapng");
    let file = path.clone();
    let size = HistorySize::LEAST.to_string().parse::<HistorySize>().unwrap();
    let open = Box::new(move || std::fs::File::create(&file));
    let mut capture = Capture::remember(Dummy::default(), open, size, &options(&INTERFACES)).unwrap();
    exchange(&mut capture, &behind());
    capture.mark(&"a stall");
    capture.finish().unwrap();
    check(&read(&path));
}

#[test]
fn with_one_interface_every_datagram_is_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.pcapng");
    let mut capture = Capture::create(Dummy::default(), &path, &options(&INTERFACES[..1])).unwrap();
    exchange(&mut capture, &behind());
    capture.finish().unwrap();
    assert!(read(&path).iter().all(|frame| frame.interface == 0));
    let file = std::fs::read(&path).unwrap();
    assert!(!contains(&file, &[&[6, 0, 6, 0][..], &MACS[0]].concat()), "frames alone have the MAC address");
}

#[test]
fn packets_over_several_links_and_their_hellos_stay_as_they_are() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.pcapng");
    let hello = Hello { ask: 1, answer: 2, connection: 3, first: Seq(4), ..Hello::default() };
    for datagram in [behind(), hello.encode()] {
        let mut capture = Capture::create(Dummy::default(), &path, &options(&INTERFACES)).unwrap();
        exchange(&mut capture, &datagram);
        capture.finish().unwrap();
        for frame in read(&path) {
            let found = roce::find_udp(&frame.data).unwrap();
            assert_eq!(found.payload, datagram);
            assert!(weir_wire::SLOT_PORTS.contains(&found.envelope.dst_port));
            assert_eq!(found.envelope.ip_id, 0);
        }
    }
}

#[test]
fn with_headers_only_all_headers_are_there() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.pcapng");
    let options = CaptureOptions { snap: Snap::Headers, without_icrc: true, ..options(&INTERFACES) };
    let mut capture = Capture::create(Dummy::default(), &path, &options).unwrap();
    exchange(&mut capture, &behind());
    capture.finish().unwrap();
    for frame in read(&path) {
        assert_eq!((frame.data.len(), frame.orig_len), (42 + FRONT + 12, 42 + behind().len()));
    }
}
