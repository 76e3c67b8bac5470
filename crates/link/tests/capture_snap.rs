//! With a snap length the file has the headers of all packets, with their true lengths, and no payload.

mod common;

use common::{Dummy, outbox};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::RawFd;
use std::path::Path;
use weir_capture::{OwnedFrame, open, roce};
use weir_link::capture::{Capture, CaptureOptions, HistorySize, Snap};
use weir_link::{Arrival, Carrier, Group, Inbox, Iovec, Outbox};
use weir_wire::ip::Envelope;
use weir_wire::{Aeth, Bth, Headers, ICRC_LEN, Opcode, Operation, Psn, ROCE_PORT, Reth, Service, icrc};
use zerocopy::byteorder::big_endian::{U32, U64};

const OUR_PORT: u16 = 20480;
const THEIR_PORT: u16 = 20485;
/// BTH and RETH.
const HEADERS: usize = 28;

fn addresses(v6: bool) -> (IpAddr, IpAddr) {
    let texts = if v6 { ["fe80::1", "fe80::2"] } else { ["10.0.0.1", "10.0.0.2"] };
    let [ours, theirs] = texts.map(|text| text.parse().unwrap());
    (ours, theirs)
}

/// The first packet of a WRITE, and an ACK, without ICRC.
fn packets() -> [Vec<u8>; 2] {
    let mut write = Headers::new(Bth::new(Opcode::new(Service::Rc, Operation::WriteFirst), 0x1_0005, Psn::new(7)));
    write.put(Reth { va: U64::new(4096), rkey: U32::new(9), dma_len: U32::new(8192) });
    let mut ack = Headers::new(Bth::new(Opcode::new(Service::Rc, Operation::Acknowledge), 0x1_0006, Psn::new(7)));
    ack.put(Aeth::new(31, 1));
    [(write, 4096), (ack, 0)].map(|(headers, payload)| {
        let mut bytes = vec![0; headers.len()];
        headers.emit(&mut bytes);
        bytes.resize(bytes.len() + payload, 0xee);
        bytes
    })
}

fn with_icrc(from: IpAddr, to: IpAddr, ports: (u16, u16), body: &[u8]) -> Vec<u8> {
    let (src_port, dst_port) = ports;
    let envelope = Envelope { src: from, dst: to, src_port, dst_port, ip_id: 0, dont_fragment: true };
    [body, &icrc::compute(&envelope, body).to_le_bytes()].concat()
}

/// Both packets in both directions.
fn record(path: &Path, v6: bool, snap: Snap, without_icrc: bool) -> Vec<OwnedFrame> {
    let options = CaptureOptions { port: OUR_PORT, snap, without_icrc, ..Default::default() };
    let mut capture = Capture::create(Dummy::default(), path, &options).unwrap();
    let (ours, theirs) = addresses(v6);
    for body in packets() {
        let sent = with_icrc(ours, theirs, (OUR_PORT, THEIR_PORT), &body);
        capture.send(&outbox(&[(SocketAddr::new(theirs, THEIR_PORT), ours, &sent, sent.len())])).unwrap();
        let came = with_icrc(theirs, ours, (THEIR_PORT, OUR_PORT), &body);
        let mut arrival = Arrival::new(SocketAddr::new(theirs, THEIR_PORT), OUR_PORT, 0, came.len());
        arrival.to = ours;
        capture.inner_mut().arriving.push((arrival, came));
        capture.receive(&mut Inbox::new(1)).unwrap();
    }
    capture.finish().unwrap();
    open(path).unwrap().owned_frames().collect::<Result<_, _>>().unwrap()
}

#[test]
fn headers_and_true_lengths() {
    let folder = tempfile::tempdir().unwrap();
    for v6 in [false, true] {
        for without_icrc in [false, true] {
            let path = folder.path().join("a.pcapng");
            let frames = record(&path, v6, Snap::Headers, without_icrc);
            assert_eq!(frames.len(), 4);
            let around = if v6 { 62 } else { 42 };
            for (frame, body) in frames.iter().zip(packets().iter().flat_map(|body| [body, body])) {
                assert_eq!(frame.orig_len, around + body.len() + ICRC_LEN);
                let datagram = roce::find(&frame.data).unwrap();
                assert_eq!(datagram.payload_len, body.len() + ICRC_LEN);
                assert_eq!(datagram.envelope.dst_port, ROCE_PORT);
                let is_ack = body.len() < HEADERS;
                if is_ack && !without_icrc {
                    assert_eq!(icrc::verify(&datagram.envelope, datagram.payload), icrc::Verdict::Good);
                } else {
                    assert_eq!(datagram.payload, &body[..body.len().min(HEADERS)]);
                }
                if !v6 {
                    let sum: u32 = frame.data[14..34]
                        .chunks(2)
                        .map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])))
                        .sum();
                    assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff);
                } else {
                    assert_ne!(frame.data[60..62], [0, 0], "no checksum is not allowed over IPv6");
                }
            }
        }
    }
}

#[test]
fn so_many_bytes_of_each_packet() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.pcapng");
    for (bytes, expected) in [(128, 128), (1000, 1000), (9000, 42 + HEADERS + 4096 + ICRC_LEN)] {
        let frames = record(&path, false, Snap::Bytes(bytes), false);
        for frame in &frames[..2] {
            assert_eq!(frame.data.len(), expected);
            assert_eq!(roce::find(&frame.data).unwrap().is_complete(), expected > 1000);
        }
        // The interface block is behind the section header of 28 bytes with its options.
        let file = std::fs::read(&path).unwrap();
        let section = u32::from_le_bytes(file[4..8].try_into().unwrap()) as usize;
        assert_eq!(file[section + 12..section + 16], bytes.to_le_bytes());
    }
}

/// A carrier that takes iovecs.
struct Gathers(usize);

impl Carrier for Gathers {
    fn send(&mut self, outbox: &Outbox) -> io::Result<()> {
        self.0 += outbox.total();
        Ok(())
    }
    fn receive(&mut self, _: &mut Inbox) -> io::Result<usize> {
        Ok(0)
    }
    fn max_segments(&self) -> usize {
        64
    }
    fn supports_iovecs(&self) -> bool {
        true
    }
    fn listen(&mut self, _: u16) -> io::Result<()> {
        Ok(())
    }
    fn fds(&self) -> Vec<RawFd> {
        Vec::new()
    }
}

#[test]
fn payload_stays_where_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.pcapng");
    let options = CaptureOptions { port: OUR_PORT, snap: Snap::Headers, without_icrc: true, ..Default::default() };
    let mut capture = Capture::create(Gathers(0), &path, &options).unwrap();
    assert!(capture.supports_iovecs());
    let (ours, theirs) = addresses(false);
    let [write, _] = packets();
    let mut outbox = Outbox::with_iovecs(1000, 4, 64);
    let len = write.len() + ICRC_LEN;
    let group = Group::new(SocketAddr::new(theirs, THEIR_PORT), ours, 0);
    outbox.groups.push(Group { segment: len, any_id: true, ..group });
    for _ in 0..3 {
        let start = outbox.len;
        outbox.bytes[start..start + HEADERS].copy_from_slice(&write[..HEADERS]);
        outbox.len += HEADERS + ICRC_LEN;
        outbox.start_iovecs();
        outbox.add_iovec(Iovec { addr: outbox.addr(start), len: HEADERS });
        // No access to the payload is possible.
        outbox.add_iovec(Iovec { addr: 8, len: write.len() - HEADERS });
        outbox.add_iovec(Iovec { addr: outbox.addr(start + HEADERS), len: ICRC_LEN });
    }
    capture.send(&outbox).unwrap();
    assert_eq!(capture.inner().0, 3 * len);
    capture.finish().unwrap();
    let frames: Vec<OwnedFrame> = open(&path).unwrap().owned_frames().collect::<Result<_, _>>().unwrap();
    assert_eq!(frames.len(), 3);
    for frame in frames {
        assert_eq!((frame.data.len(), frame.orig_len), (42 + HEADERS, 42 + len));
        assert_eq!(roce::find(&frame.data).unwrap().payload, &write[..HEADERS]);
    }
    for snap in [Snap::Whole, Snap::Bytes(128)] {
        let options = CaptureOptions { snap, ..options };
        assert!(!Capture::create(Gathers(0), &path, &options).unwrap().supports_iovecs(), "{snap}");
    }
}

#[test]
fn a_mark_writes_the_packets_before_it_through_injected_faults() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.pcapng");
    let size: HistorySize = "1M".parse().unwrap();
    let options = CaptureOptions { port: OUR_PORT, ..Default::default() };
    let file = path.clone();
    let opens = Box::new(move || std::fs::File::create(&file));
    let capture = Capture::remember(Dummy::default(), opens, size, &options).unwrap();
    let spec = "loss=1,seed=1".parse().unwrap();
    let mut faults = weir_link::faults::Faults::new(capture, &spec);
    let (ours, theirs) = addresses(false);
    let [_, ack] = packets();
    let sent = with_icrc(ours, theirs, (OUR_PORT, THEIR_PORT), &ack);
    for _ in 0..3 {
        faults.send(&outbox(&[(SocketAddr::new(theirs, THEIR_PORT), ours, &sent, sent.len())])).unwrap();
    }
    assert!(!path.exists());
    let carrier: &mut dyn Carrier = &mut faults;
    carrier.mark(&"it stalls");
    carrier.send(&outbox(&[(SocketAddr::new(theirs, THEIR_PORT), ours, &sent, sent.len())])).unwrap();
    faults.close();
    let frames: Vec<OwnedFrame> = open(&path).unwrap().owned_frames().collect::<Result<_, _>>().unwrap();
    let comments: Vec<&str> = frames.iter().filter_map(|frame| frame.comment.as_deref()).collect();
    let lost = "lost by fault injection";
    assert_eq!(comments, [lost, lost, lost, &format!("it stalls; {lost}")]);
}
