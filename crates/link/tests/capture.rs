//! The capture file contains exactly the datagrams of the carrier, and other programs can read it.

mod common;

use common::{Dummy, outbox};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::{Duration, Instant};
use weir_capture::roce::{self, Datagram};
use weir_capture::{Direction, OwnedFrame, open};
use weir_link::capture::{Capture, CaptureInterface, CaptureOptions, SLOT_PORTS};
use weir_link::faults::Faults;
use weir_link::{Arrival, Carrier, DisabledFeatures, Inbox, Ports};
use weir_wire::ip::Envelope;
use weir_wire::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Deth, Headers, Ieth, ImmDt, Opcode, Operation, Psn, ROCE_PORT, Reth, Service,
    icrc,
};
use zerocopy::byteorder::big_endian::{U32, U64};

const OUR_PORT: u16 = 20480;
const THEIR_PORT: u16 = 20485;
const MAC: [u8; 6] = [0x52, 0x54, 0, 1, 2, 3];

fn addresses(v6: bool) -> (IpAddr, IpAddr) {
    let texts = if v6 { ["fe80::1", "fe80::2"] } else { ["10.0.0.1", "10.0.0.2"] };
    let [ours, theirs] = texts.map(|text| text.parse().unwrap());
    (ours, theirs)
}

fn capture(path: &Path) -> Capture<Dummy> {
    let options = CaptureOptions {
        interfaces: &[CaptureInterface { name: "eth0", index: 2, mac: Some(MAC) }],
        port: OUR_PORT,
        description: "a test",
        ..Default::default()
    };
    Capture::create(Dummy::default(), path, &options).unwrap()
}

fn read(path: &Path) -> Vec<OwnedFrame> {
    open(path).unwrap().owned_frames().collect::<Result<_, _>>().unwrap()
}

/// A packet of any opcode, its fields derived from `n`, without ICRC.
fn packet(opcode: Opcode, n: u32) -> Vec<u8> {
    let mut bth = Bth::new(opcode, 0x1_0000 + n, Psn::new(0xff_fff0 + n));
    bth.ack_req = n.is_multiple_of(2);
    bth.solicited = n.is_multiple_of(3);
    let payload = if opcode.has_payload() { vec![n as u8; (n as usize * 37) % 1500] } else { Vec::new() };
    bth.pad = (payload.len().wrapping_neg() % 4) as u8;
    let wide = |n: u32| U64::new(0x1234_5678_0000_0000 + u64::from(n));
    let mut headers = Headers::new(bth);
    headers.put(Deth { qkey: U32::new(0x8001_0000), src_qp: U32::new(n + 5) });
    headers.put(Reth { va: wide(n), rkey: U32::new(n * 9), dma_len: U32::new(payload.len() as u32) });
    headers.put(AtomicEth { va: wide(n * 8), rkey: U32::new(n * 7), swap_or_add: wide(n + 1), compare: wide(n + 2) });
    headers.put(Aeth::new([0x1f, 0x60, 0x2e][n as usize % 3], n * 3));
    headers.put(AtomicAckEth { original: wide(n) });
    headers.put(ImmDt { imm: U32::new(0xdead_0000 + n) });
    headers.put(Ieth { rkey: U32::new(n) });
    let mut bytes = vec![0; headers.len()];
    headers.emit(&mut bytes);
    bytes.extend(&payload);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// Six packets of every opcode that tshark knows.
fn packets() -> Vec<Vec<u8>> {
    let opcodes = (0..=255).map(Opcode).filter(|opcode| {
        let unknown = matches!(opcode.operation(), None | Some(Operation::Flush | Operation::AtomicWrite));
        !unknown && matches!(opcode.service(), Service::Rc | Service::Uc | Service::Ud)
    });
    opcodes.flat_map(|opcode| (0..6).map(move |n| packet(opcode, n + 1))).collect()
}

fn envelope((src, dst): (IpAddr, IpAddr), src_port: u16, dst_port: u16, ip_id: u16) -> Envelope {
    Envelope { src, dst, src_port, dst_port, ip_id, dont_fragment: true }
}

fn with_icrc(envelope: &Envelope, body: &[u8]) -> Vec<u8> {
    [body, &icrc::compute(envelope, body).to_le_bytes()].concat()
}

fn verdict(datagram: &Datagram<'_>) -> icrc::Verdict {
    icrc::verify(&datagram.envelope, datagram.payload)
}

/// Sends and receives every packet in both families, between slots and to port 4791.
fn varied(path: &Path) -> usize {
    let mut capture = capture(path);
    let mut count = 0;
    for v6 in [false, true] {
        let (ours, theirs) = addresses(v6);
        for (dst_port, body) in packets().iter().flat_map(|body| [(THEIR_PORT, body), (ROCE_PORT, body)]) {
            let datagram = with_icrc(&envelope((ours, theirs), OUR_PORT, dst_port, 0), body);
            let to = SocketAddr::new(theirs, dst_port);
            capture.send(&outbox(&[(to, ours, &datagram, datagram.len())])).unwrap();
            let reply = with_icrc(&envelope((theirs, ours), THEIR_PORT, OUR_PORT, 0), body);
            let mut arrival = Arrival::new(SocketAddr::new(theirs, THEIR_PORT), OUR_PORT, 0, reply.len());
            arrival.to = ours;
            capture.inner_mut().arriving.push((arrival, reply));
            assert_eq!(capture.receive(&mut Inbox::new(1)).unwrap(), 1);
            count += 2;
        }
    }
    assert_eq!(capture.finish().unwrap().written, count as u64);
    count
}

#[test]
#[ignore = "needs tshark"]
fn every_field_is_the_same_to_tshark() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("varied.pcapng");
    let count = varied(&path);
    let comparison = weir_tshark::compare(&path).unwrap();
    assert!(comparison.failures.is_empty(), "{}", comparison.failures.join("\n"));
    assert_eq!((comparison.passed, comparison.skipped), (count, 0));
}

#[test]
fn every_packet_is_roce_with_a_good_icrc() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("varied.pcapng");
    varied(&path);
    let (mut sent, mut received) = (0, 0);
    for frame in read(&path) {
        let datagram = roce::find(&frame.data).unwrap();
        assert_eq!(verdict(&datagram), icrc::Verdict::Good);
        let (ours, other) = match frame.direction.unwrap() {
            Direction::Out => (&frame.data[6..12], datagram.envelope.src_port == OUR_PORT),
            Direction::In => (&frame.data[..6], datagram.envelope.src_port == THEIR_PORT),
        };
        assert!(ours == MAC && other);
        sent += usize::from(frame.direction == Some(Direction::Out));
        received += usize::from(frame.direction == Some(Direction::In));
        assert_eq!(frame.comment, None);
    }
    assert!(sent > 500 && sent == received);
}

#[test]
fn the_segments_of_a_group_have_identifications() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("group.pcapng");
    let mut capture = capture(&path);
    let (ours, theirs) = addresses(false);
    let body = packet(Opcode::new(Service::Rc, Operation::SendMiddle), 8);
    let segment = |id| with_icrc(&envelope((ours, theirs), OUR_PORT, THEIR_PORT, id), &body);
    let mut bytes = Vec::new();
    for id in 0..20 {
        bytes.extend(segment(id));
    }
    let to = SocketAddr::new(theirs, THEIR_PORT);
    capture.send(&outbox(&[(to, ours, &bytes, segment(0).len())])).unwrap();
    assert_eq!(capture.inner().sent[0].1, bytes, "the capture does not change what is sent");

    // Arrivals from a sender with unknown Identifications.
    let ids = [0, 7, 0xbeef];
    let frames: Vec<u8> =
        ids.iter().flat_map(|id| with_icrc(&envelope((theirs, ours), 49152, ROCE_PORT, *id), &body)).collect();
    let mut arrival = Arrival::new(SocketAddr::new(theirs, 49152), ROCE_PORT, 0, frames.len());
    (arrival.to, arrival.segment) = (ours, segment(0).len());
    capture.inner_mut().arriving.push((arrival, frames));
    capture.receive(&mut Inbox::new(1)).unwrap();
    capture.finish().unwrap();

    let frames = read(&path);
    let expected: Vec<u16> = (0..20).chain(ids).collect();
    assert_eq!(frames.len(), expected.len());
    for (frame, id) in frames.iter().zip(expected) {
        let datagram = roce::find(&frame.data).unwrap();
        assert_eq!(datagram.envelope.ip_id, id);
        assert_eq!(verdict(&datagram), icrc::Verdict::Good);
        assert_eq!(ip_checksum(&frame.data), 0xffff);
    }
}

fn ip_checksum(frame: &[u8]) -> u32 {
    let sum: u32 = frame[14..34].chunks(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]]))).sum();
    (sum & 0xffff) + (sum >> 16)
}

#[test]
fn an_omitted_icrc_is_computed_and_a_wrong_one_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("icrc.pcapng");
    let mut capture = capture(&path);
    let (ours, theirs) = addresses(false);
    let body = packet(Opcode::new(Service::Rc, Operation::SendOnly), 8);
    let away = [&body[..], &[0; 4]].concat();
    let mut wrong = with_icrc(&envelope((ours, theirs), OUR_PORT, THEIR_PORT, 0), &body);
    wrong[20] ^= 0x10;
    let control = b"WEIR and more than sixteen bytes".to_vec();
    let short = b"short".to_vec();
    let to = SocketAddr::new(theirs, THEIR_PORT);
    for datagram in [&away, &wrong, &control, &short] {
        capture.send(&outbox(&[(to, ours, datagram, datagram.len())])).unwrap();
    }
    capture.finish().unwrap();

    let frames = read(&path);
    let away = roce::find(&frames[0].data).unwrap();
    assert_eq!(verdict(&away), icrc::Verdict::Good);
    let shown = roce::find(&frames[1].data).unwrap();
    assert_eq!(verdict(&shown), icrc::Verdict::Bad);
    // Undoing the damage makes the ICRC right: it was wrong by the same bits.
    let mut healed = shown.payload.to_vec();
    healed[20] ^= 0x10;
    assert_eq!(icrc::verify(&shown.envelope, &healed), icrc::Verdict::Good);
    for (frame, sent) in frames[2..].iter().zip([&control, &short]) {
        let datagram = roce::find_udp(&frame.data).unwrap();
        assert_eq!((datagram.envelope.dst_port, datagram.payload), (THEIR_PORT, &sent[..]));
    }
}

#[test]
fn injected_faults_are_commented_in_both_directions() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("faults.pcapng");
    let spec = "loss=0.2,dup=0.2,reorder=0.2,corrupt=0.2,seed=4,dir=both".parse().unwrap();
    let mut faults = Faults::new(capture(&path), &spec);
    let (ours, theirs) = addresses(false);
    let to = SocketAddr::new(theirs, THEIR_PORT);
    let mut inbox = Inbox::new(8);
    let mut delivered = 0;
    for n in 0..400 {
        let body = packet(Opcode::new(Service::Rc, Operation::WriteMiddle), n);
        let datagram = with_icrc(&envelope((ours, theirs), OUR_PORT, THEIR_PORT, 0), &body);
        faults.send(&outbox(&[(to, ours, &datagram, datagram.len())])).unwrap();
        let reply = with_icrc(&envelope((theirs, ours), THEIR_PORT, OUR_PORT, 0), &body);
        let mut arrival = Arrival::new(to, OUR_PORT, 0, reply.len());
        arrival.to = ours;
        faults.inner_mut().inner_mut().arriving.push((arrival, reply));
        delivered += faults.receive(&mut inbox).unwrap();
    }
    // Releases the datagrams that are held aside.
    std::thread::sleep(std::time::Duration::from_millis(2));
    delivered += faults.receive(&mut inbox).unwrap();
    let (outgoing, incoming) = (faults.outgoing(), faults.incoming());
    let sent = faults.inner().inner().sent.len();
    faults.inner_mut().finish().unwrap();

    let frames = read(&path);
    for (direction, counts, through) in [(Direction::Out, outgoing, sent), (Direction::In, incoming, delivered)] {
        let frames: Vec<&OwnedFrame> = frames.iter().filter(|frame| frame.direction == Some(direction)).collect();
        let with = |word: &str| {
            frames.iter().filter(|frame| frame.comment.as_ref().is_some_and(|text| text.contains(word))).count() as u64
        };
        assert_eq!(counts.datagrams, 400);
        assert_eq!(with("lost"), counts.lost);
        assert_eq!(with("duplicated"), counts.duplicated);
        assert_eq!(with("reordered"), counts.reordered);
        assert_eq!(with("corrupted"), counts.corrupted);
        assert_eq!(with("delayed"), counts.delayed);
        assert!(counts.lost > 20 && counts.duplicated > 20 && counts.reordered > 20 && counts.corrupted > 20);
        assert_eq!(frames.len() as u64, through as u64 + counts.lost);
        for frame in frames {
            let Some(datagram) = roce::find(&frame.data) else { continue };
            let corrupted = frame.comment.as_ref().is_some_and(|text| text.contains("corrupted"));
            assert_eq!(verdict(&datagram) == icrc::Verdict::Good, !corrupted);
        }
    }
}

#[test]
fn packets_of_real_sockets_are_captured() {
    let dir = tempfile::tempdir().unwrap();
    let bind = || {
        (SLOT_PORTS.start() + 900..=*SLOT_PORTS.end())
            .find_map(|port| Some((port, Ports::bind(port, DisabledFeatures::empty()).ok()?)))
    };
    let ((port_a, a), (port_b, b)) = (bind().unwrap(), bind().unwrap());
    let side = |name: &str, port, ports| {
        let path = dir.path().join(name);
        let options = CaptureOptions { port, ..Default::default() };
        (Capture::create(ports, &path, &options).unwrap(), path)
    };
    let ((mut a, path_a), (b, path_b)) = (side("a", port_a, a), side("b", port_b, b));
    let spec = "loss=0.3,dir=in,seed=1".parse().unwrap();
    let mut b = Faults::new(b, &spec);

    let here: IpAddr = "127.0.0.1".parse().unwrap();
    let body = packet(Opcode::new(Service::Rc, Operation::SendMiddle), 8);
    let segments: Vec<u8> =
        (0..10).flat_map(|id| with_icrc(&envelope((here, here), port_a, port_b, id), &body)).collect();
    for _ in 0..10 {
        a.send(&outbox(&[(SocketAddr::new(here, port_b), here, &segments, segments.len() / 10)])).unwrap();
    }
    let (mut inbox, mut received) = (Inbox::new(8), 0);
    let deadline = Instant::now() + Duration::from_secs(5);
    while b.incoming().datagrams < 100 {
        assert!(Instant::now() < deadline, "only {} of 100 arrived", b.incoming().datagrams);
        received += b.receive(&mut inbox).unwrap();
    }
    let lost = b.incoming().lost as usize;
    assert!(lost > 10 && received == 100 - lost);
    a.finish().unwrap();
    b.inner_mut().finish().unwrap();

    let (sent, seen) = (read(&path_a), read(&path_b));
    assert_eq!((sent.len(), seen.len()), (100, 100));
    for (out, back) in sent.iter().zip(&seen) {
        // The Identifications that outgoing frames assume are those that the receiver derives from the ICRC.
        assert_eq!(out.data, back.data);
        assert_eq!(verdict(&roce::find(&out.data).unwrap()), icrc::Verdict::Good);
        assert!(out.timestamp <= back.timestamp && back.timestamp - out.timestamp < 10_000_000_000);
    }
    assert_eq!(seen.iter().filter(|frame| frame.comment.is_some()).count(), lost);
}

#[test]
fn the_writer_thread_blocks_signals() {
    let dir = tempfile::tempdir().unwrap();
    let _capture = capture(&dir.path().join("a.pcapng"));
    let mask = |task: &Path| {
        let status = std::fs::read_to_string(task.join("status")).ok()?;
        let blocked = status.lines().find_map(|line| line.strip_prefix("SigBlk:"))?.trim().to_owned();
        status.starts_with("Name:\tweir-capture").then(|| u64::from_str_radix(&blocked, 16).unwrap())
    };
    let masks = || -> Vec<u64> {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap();
        tasks.filter_map(|task| mask(&task.ok()?.path())).collect()
    };
    // A thread sets its name only after it has started.
    let deadline = Instant::now() + Duration::from_secs(5);
    while masks().is_empty() {
        assert!(Instant::now() < deadline, "no thread is named weir-capture");
        std::thread::sleep(Duration::from_millis(5));
    }
    let masks = masks();
    // All signals but SIGKILL, SIGSTOP and the two that the C library reserves.
    let free = 1 << 8 | 1 << 18 | 1 << 31 | 1 << 32;
    assert!(masks.iter().all(|mask| mask | free == u64::MAX), "{masks:x?}");
}
