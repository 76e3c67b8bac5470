//! Takes the frames of captures, or what adapters report, and gives the report.

use crate::detect::{Detectors, End};
use crate::finding::Finding;
use crate::flow::{Event, Flow, FlowKey, Record, Source, Tracker};
use crate::links::{Links, Path};
use crate::observed::{Counts, Observed, Sources};
use crate::packet::{FrameId, Marks, Seen};
use crate::setup::Setups;
use weir_capture::packet::{Edge, Encapsulation, LinkContent, RdmaPacket, find_links};
use weir_capture::{Direction, Frame};
use weir_transport::Profile;
use weir_wire::edge::Header;
use weir_wire::{Headers, ICRC_LEN, Opcode, Service, mad};

/// An analysis in progress. Its memory grows with the number of flows, and not with the number of packets.
#[derive(Default)]
pub struct Analysis {
    tracker: Tracker,
    detectors: Detectors,
    setups: Setups,
    links: Links,
    sources: Sources,
    totals: Totals,
    options: Options,
}

/// What the analysis knows besides the captures.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The adapter of all hosts, if the user names it.
    pub profile: Option<Profile>,
}

/// Counts over all files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    pub frames: u64,
    /// RDMA packets among them.
    pub packets: u64,
    /// Frames of RDMA that could not be parsed.
    pub unparsed: u64,
    /// Bytes of all frames on the wire.
    pub bytes: u64,
    /// Packets of reliable connections.
    pub reliable: u64,
    /// Packets of other services.
    pub unreliable: u64,
    /// Congestion notification packets.
    pub cnps: u64,
    /// Packets that a connection with several links carried again; they count nowhere else.
    pub copies: u64,
    /// What such connections carried besides packets of QPs: hellos, acknowledgements, pieces of MultiEdge's operations.
    pub link_datagrams: u64,
    /// Packets that adapters reported and that were not read in time.
    pub missed: u64,
    /// Time of the first and of the last frame, ns since 1970.
    pub first: u64,
    pub last: u64,
}

/// All that the analysis has found.
pub struct Report<'a> {
    pub totals: Totals,
    /// The flows; pairs of them are connections.
    pub flows: &'a [Flow],
    /// The gravest first, by what they cost.
    pub findings: Vec<Finding>,
    pub setups: &'a Setups,
}

/// A damaged file or a hostile adapter can give any time. Later ones are taken for this one, in the year 2262: so that the
/// sum of a time and any limit of the analysis is a time too.
const LATEST: u64 = i64::MAX as u64;
/// Explicit congestion notification: the switch marked the packet.
const CONGESTION_EXPERIENCED: u8 = 3;
/// The FECN bit of a BTH's first byte before the destination QP.
const FECN: u8 = 0x80;
/// The opcode of a congestion notification packet (IBTA annex A17).
const CNP: Opcode = Opcode(0x81);

impl Analysis {
    pub fn new(options: Options) -> Analysis {
        Analysis { options, ..Analysis::default() }
    }

    /// Takes the next frame of file number `file`. Files that continue each other come one after the other.
    pub fn frame(&mut self, file: u16, frame: &Frame<'_>) {
        let mut frame = *frame;
        frame.timestamp = frame.timestamp.min(LATEST);
        let frame = &frame;
        self.totals.count(frame.timestamp, frame.orig_len as u64);
        self.links.expire(frame.timestamp);
        match weir_capture::packet::find(frame) {
            Some(packet) => match packet.edge {
                Some(edge) => self.over_links(file, frame, &packet, &edge),
                None => {
                    self.totals.packets += 1;
                    self.packet(file, frame, &packet);
                }
            },
            None => self.between_links(file, frame),
        }
        self.pass_on();
    }

    /// Takes the next packet that adapter number `source` reports. The packets of all adapters come in the order of
    /// their times.
    pub fn observed(&mut self, source: u16, packet: &Observed<'_>) {
        let (bth, payload) = (&packet.headers.bth, packet.payload);
        let ends = ((packet.from, packet.from_qp), (packet.to, bth.dest_qp));
        match self.sources.counts(ends, source) {
            Counts::Yes => {}
            Counts::First => self.tracker.connected(ends.0, ends.1),
            Counts::No => return,
        }
        let len = packet.headers.len() + payload as usize + usize::from(bth.pad) + ICRC_LEN;
        let time = packet.time.min(LATEST);
        self.totals.count(time, len as u64);
        self.totals.packets += 1;
        self.totals.reliable += 1;
        let marks = Marks { over_links: packet.over_links, ..Marks::default() };
        let seen = Seen::new(time, FrameId::new(source, packet.number), packet.headers, payload, marks);
        let key = FlowKey { from: packet.from, to: packet.to, qpn: bth.dest_qp };
        let direction = if packet.sent { Direction::Out } else { Direction::In };
        self.seen(key, Source { file: source, direction: Some(direction), port: 0 }, &seen);
    }

    /// Packets that an adapter reported were not read in time.
    pub fn missed(&mut self, packets: u64) {
        self.totals.missed += packets;
    }

    /// An adapter reports no more.
    pub fn source_ended(&mut self, source: u16) {
        self.sources.end(source);
    }

    /// What was found so far. Packets of directions that are not paired yet are not part of it.
    pub fn report(&mut self) -> Report<'_> {
        let Analysis { tracker, detectors, setups, totals, options, .. } = self;
        let end = End { flows: tracker.flows(), setups, last: totals.last, profile: options.profile.as_ref() };
        let mut findings = detectors.findings(&end);
        // The times of a damaged file may go back.
        for Finding { from, to, .. } in &mut findings {
            (*from, *to) = ((*from).min(*to), (*from).max(*to));
        }
        findings.sort_by_key(|finding| (std::cmp::Reverse(finding.cost.time), finding.kind));
        Report { totals: *totals, flows: tracker.flows(), findings, setups }
    }

    /// Ends the analysis: what was found in all packets. No packets may follow.
    pub fn finish(&mut self) -> Report<'_> {
        self.links.finish();
        self.pass_on();
        let detectors = &mut self.detectors;
        self.tracker.finish(&mut |flow, record: &mut Record, event: Event<'_>| {
            note(record, &event);
            detectors.event(flow, &event);
        });
        self.report()
    }

    fn packet(&mut self, file: u16, frame: &Frame<'_>, packet: &RdmaPacket<'_>) {
        let headers = match packet.headers() {
            Ok(headers) => headers,
            Err(_) if packet.transport.first() == Some(&CNP.0) => {
                self.totals.cnps += 1;
                return self.detectors.notification(packet, frame.timestamp, FrameId::new(file, frame.number));
            }
            Err(_) => {
                self.totals.unparsed += 1;
                return;
            }
        };
        if !self.count_service(packet, &headers) {
            return;
        }
        let seen = seen_of(file, frame, packet, &headers);
        let key = FlowKey { from: packet.from, to: packet.to, qpn: headers.bth.dest_qp };
        let source = Source { file, direction: frame.direction, port: source_port(packet) };
        self.seen(key, source, &seen);
    }

    /// A packet of a connection over several links.
    fn over_links(&mut self, file: u16, frame: &Frame<'_>, packet: &RdmaPacket<'_>, edge: &Edge) {
        let headers = packet.headers();
        let reliable = headers.as_ref().ok().filter(|headers| is_reliable(headers));
        let what = reliable.map(|headers| (headers.bth.dest_qp, seen_of(file, frame, packet, headers)));
        let Edge { header, from_port, to_port } = *edge;
        let path = Path { from: packet.from, to: packet.to, from_port, to_port };
        let source = Source { file, direction: frame.direction, port: 0 };
        if !self.links.packet(path, &header, source, frame.timestamp, what) {
            self.totals.copies += 1;
            return;
        }
        self.totals.packets += 1;
        let Ok(headers) = headers else {
            self.totals.unparsed += 1;
            return;
        };
        if is_reliable(&headers) {
            self.totals.reliable += 1;
        } else {
            let mut packet = *packet;
            (packet.from, packet.to) = self.links.ends(path, &header);
            self.count_service(&packet, &headers);
        }
    }

    /// A frame without an RDMA packet: a datagram that belongs to a connection over several links, or something else.
    fn between_links(&mut self, file: u16, frame: &Frame<'_>) {
        let Some(datagram) = find_links(frame) else { return };
        self.totals.link_datagrams += 1;
        let path =
            Path { from: datagram.from, to: datagram.to, from_port: datagram.from_port, to_port: datagram.to_port };
        let header = match &datagram.content {
            LinkContent::Hello(hello) => return self.links.hello(path, hello),
            LinkContent::Alone(header) => header,
            // Of pieces the analysis only keeps apart what is no packet of a QP.
            LinkContent::Piece(..) | LinkContent::Packet(_) => return,
        };
        let source = Source { file, direction: frame.direction, port: 0 };
        self.links.packet(path, &Header { packet: None, ..*header }, source, frame.timestamp, None);
    }

    /// Takes the packets that links have carried, as far as their order is known.
    fn pass_on(&mut self) {
        while let Some((key, source, seen)) = self.links.next() {
            self.seen(key, source, &seen);
        }
    }

    /// Counts a packet by its service, and takes it if it is of connection management. Whether its connection is reliable.
    fn count_service(&mut self, packet: &RdmaPacket<'_>, headers: &Headers) -> bool {
        if is_reliable(headers) {
            self.totals.reliable += 1;
            return true;
        }
        self.totals.unreliable += 1;
        if headers.bth.opcode.service() == Service::Ud && headers.bth.dest_qp == mad::GSI_QPN {
            self.management(packet, headers);
        }
        false
    }

    fn seen(&mut self, key: FlowKey, source: Source, seen: &Seen) {
        let detectors = &mut self.detectors;
        self.tracker.packet(key, source, seen, &mut |flow, record: &mut Record, event: Event<'_>| {
            note(record, &event);
            detectors.event(flow, &event);
        });
    }

    fn management(&mut self, packet: &RdmaPacket<'_>, headers: &Headers) {
        let body = &packet.transport[headers.len().min(packet.transport.len())..];
        if let Some(datagram) = body.get(..mad::LEN)
            && let Some((one, other)) = self.setups.message(packet.from, packet.to, datagram)
        {
            self.tracker.connected(one, other);
        }
    }
}

impl Totals {
    fn count(&mut self, time: u64, bytes: u64) {
        self.frames += 1;
        self.bytes += bytes;
        if self.first == 0 {
            self.first = time;
        }
        self.last = self.last.max(time);
    }
}

fn is_reliable(headers: &Headers) -> bool {
    matches!(headers.bth.opcode.service(), Service::Rc | Service::Xrc)
}

/// What the analysis keeps of a packet.
fn seen_of(file: u16, frame: &Frame<'_>, packet: &RdmaPacket<'_>, headers: &Headers) -> Seen {
    let payload = packet.payload_len(headers).unwrap_or(0) as u32;
    let congested = packet.ecn() == CONGESTION_EXPERIENCED || headers.bth.congestion & FECN != 0;
    // Some captures are taken before the adapter fills it in.
    let is_filled = !packet.transport.ends_with(&[0; ICRC_LEN]);
    let bad_icrc = is_filled && packet.icrc_ok() == Some(false);
    let marks = Marks { bad_icrc, congested, ..Marks::default() };
    Seen::new(frame.timestamp, FrameId::new(file, frame.number), headers, payload, marks)
}

fn source_port(packet: &RdmaPacket<'_>) -> u16 {
    match packet.encapsulation {
        Encapsulation::RoceV2 { src_port } => src_port,
        _ => 0,
    }
}

/// Enters an event in the flow's counts, timeline and clips.
fn note(record: &mut Record, event: &Event<'_>) {
    let Record { stats, clips } = record;
    match event {
        Event::New(request) => {
            stats.goodput += u64::from(request.bytes);
            stats.messages += u64::from(request.ends);
        }
        Event::Repeat(repeat) => {
            stats.repeats += 1;
            stats.repeated_bytes += u64::from(repeat.payload);
            stats.timeline.at(repeat.time).repeats += 1;
            if !repeat.follows {
                clips.event(repeat.cause, repeat.frame, repeat.waited);
            }
        }
        Event::Completed { request, at, .. } if request.ends => {
            stats.latency(at.saturating_sub(request.began));
            stats.responded(at.saturating_sub(request.last.time));
        }
        Event::RnrNak { .. } => stats.rnr_naks += 1,
        Event::SequenceNak { .. } => stats.sequence_naks += 1,
        Event::Packet { at, from_requester, open } => {
            if stats.packets == 0 {
                stats.first = at.time;
            }
            stats.last = stats.last.max(at.time);
            stats.packets += 1;
            stats.requests += u64::from(*from_requester);
            stats.acks += u64::from(!from_requester && at.name() == "ACK");
            stats.bytes += u64::from(at.payload);
            stats.congested += u64::from(at.marks.congested);
            stats.bad_icrc += u64::from(at.marks.bad_icrc);
            stats.most_outstanding = stats.most_outstanding.max(*open);
            let interval = stats.timeline.at(at.time);
            interval.packets += 1;
            interval.bytes += u64::from(at.payload);
            interval.outstanding = interval.outstanding.max(*open);
            clips.packet(at, *from_requester);
        }
        _ => {}
    }
}
