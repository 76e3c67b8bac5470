//! Reads captures into a packet ladder (sender, time and operation of each packet), packet counts, and ACK timeouts.

use super::{Micro, Operation, Packets, Step};
use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::ops::Bound;
use std::path::Path;
use std::time::Duration;
use weir_capture::{Direction, OwnedFrame, roce};
use weir_wire::{Aeth, Headers, NakCode, Operation as Wire, Packet, Reth, Syndrome};

/// Facts about a run that its captures do not contain.
#[derive(Clone, Debug)]
pub struct CaptureContext<'a> {
    pub micro: &'a Micro,
    /// Numbers of the QPs at client and server: first the QPs of the operations, then others.
    pub qps: Vec<[u32; 2]>,
    /// Path MTU, bytes.
    pub mtu: u32,
    /// Address of the server's buffer.
    pub address: u64,
    /// Time of the first post, nanoseconds since 1970; `None`: the time of the first packet.
    pub start: Option<u64>,
}

/// The packets on the wire.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    pub packets: Packets,
    /// Retransmissions without a NAK or a response to the request. Requests retransmitted together by a QP count once.
    pub timeouts: u64,
    /// The first 100,000 packets.
    pub steps: Vec<Step>,
}

/// The papers' name for an RNR NAK.
pub const RNR_NAK: &str = "Acknowledge (RNR NAK)";
/// The papers' name for a sequence NAK.
pub const SEQUENCE_NAK: &str = "Acknowledge (NAK: PSN sequence error)";

/// The name of an acknowledgement in ladders.
const ACK: &str = "Acknowledge";
const STEPS: usize = 100_000;
/// Requests that are retransmitted together leave within this time of each other, ns.
const BURST: u64 = 1_000_000;

/// Reads the captures of both sides, from each the packets that it sent; or all packets of a single capture.
pub fn read(captures: &[&Path], context: &CaptureContext<'_>) -> Result<Traffic> {
    let mut frames = vec![];
    for path in captures {
        let mut reader = weir_capture::open(path).with_context(|| path.display().to_string())?;
        for frame in reader.owned_frames() {
            let frame = frame.with_context(|| path.display().to_string())?;
            if captures.len() == 1 || frame.direction != Some(Direction::In) {
                frames.push(frame);
            }
        }
    }
    frames.sort_by_key(|frame| frame.timestamp);
    Ok(of(&frames, context))
}

/// The traffic in frames, which are in the order of their time.
pub fn of(frames: &[OwnedFrame], context: &CaptureContext<'_>) -> Traffic {
    let mut reading = Reading {
        context,
        qps: (0..context.qps.len()).map(|_| Qp::default()).collect(),
        start: context.start,
        traffic: Traffic::default(),
    };
    for frame in frames {
        let Some(datagram) = roce::find(&frame.data) else { continue };
        if let Ok(packet) = Packet::parse(datagram.payload) {
            let lost = frame.comment.as_deref().is_some_and(|comment| comment.contains("lost"));
            reading.packet(frame.timestamp, &packet, lost);
        }
    }
    reading.traffic
}

/// The papers' name of a packet.
pub fn what(headers: &Headers) -> &'static str {
    use Wire::*;
    match headers.bth.opcode.operation() {
        Some(ReadRequest) => "RDMA Read Request",
        Some(ReadResponseFirst | ReadResponseMiddle | ReadResponseLast | ReadResponseOnly) => "RDMA Read Response",
        Some(WriteFirst | WriteMiddle | WriteLast | WriteOnly) => "RDMA Write",
        Some(SendFirst | SendMiddle | SendLast | SendOnly) => "Send",
        Some(Acknowledge) => match syndrome(headers) {
            Some(Syndrome::RnrNak(_)) => RNR_NAK,
            Some(Syndrome::Nak(NakCode::PsnSequence)) => SEQUENCE_NAK,
            Some(Syndrome::Nak(_)) => "Acknowledge (NAK)",
            _ => ACK,
        },
        _ => "other",
    }
}

fn syndrome(headers: &Headers) -> Option<Syndrome> {
    headers.get::<Aeth>().map(|aeth| Syndrome::from_byte(aeth.syndrome()))
}

struct Reading<'a> {
    context: &'a CaptureContext<'a>,
    qps: Vec<Qp>,
    start: Option<u64>,
    traffic: Traffic,
}

/// A QP of the client, and the requests seen so far.
#[derive(Default)]
struct Qp {
    /// By first PSN: a request packet, or the response packets of a READ.
    sent: BTreeMap<u32, Sent>,
    /// The PSN after the last new request.
    next: u32,
    sends: u32,
    /// Operation of the last new request.
    operation: Option<u32>,
    last_ack: u64,
    last_nak: u64,
    last_rnr_nak: u64,
    /// The last sequence NAK: its PSN and its time.
    missing: (u32, u64),
    /// The last request: its PSN, its time, and whether it was a retransmission.
    previous: Option<(u32, u64, bool)>,
}

struct Sent {
    psns: u32,
    /// It asks for data: only its own response answers it.
    reads: bool,
    operation: Option<u32>,
    at: u64,
    /// Time of the last response to it.
    answered: u64,
    /// The place of its last transmission among the steps.
    step: usize,
}

impl Reading<'_> {
    fn packet(&mut self, at: u64, packet: &Packet<'_>, lost: bool) {
        let headers = &packet.headers;
        let from_client = !headers.bth.opcode.is_response();
        let far = usize::from(from_client);
        let Some(at_qp) = self.context.qps.iter().position(|pair| pair[far] == headers.bth.dest_qp) else { return };
        let operation = if from_client { self.request(at_qp, at, packet) } else { self.response(at_qp, at, headers) };
        let count = &mut self.traffic.packets;
        count.lost += u64::from(lost);
        if at_qp >= self.context.micro.num_qps as usize && operation.is_none() {
            return; // it touched pages before the run
        }
        *(if from_client { &mut count.requests } else { &mut count.responses }) += 1;
        let start = *self.start.get_or_insert(at);
        if self.traffic.steps.len() < STEPS {
            self.traffic.steps.push(Step {
                time: Duration::from_nanos(at.saturating_sub(start)),
                from_client,
                what: what(headers).to_owned(),
                operation,
                lost,
            });
        }
    }

    fn request(&mut self, at_qp: usize, at: u64, packet: &Packet<'_>) -> Option<u32> {
        let psn = packet.headers.bth.psn.get();
        let qp = &self.qps[at_qp];
        if psn < qp.next {
            return self.repeated(at_qp, at, psn);
        }
        let operation = self.operation(at_qp, packet);
        let reth = packet.headers.get::<Reth>();
        let reads = packet.headers.bth.opcode.operation() == Some(Wire::ReadRequest);
        let len = reth.filter(|_| reads).map_or(0, |reth| reth.dma_len.get());
        let psns = len.div_ceil(self.context.mtu).max(1);
        let qp = &mut self.qps[at_qp];
        qp.operation = operation;
        qp.next = psn + psns;
        qp.previous = Some((psn, at, false));
        qp.sent.insert(psn, Sent { psns, reads, operation, at, answered: 0, step: self.traffic.steps.len() });
        operation
    }

    fn repeated(&mut self, at_qp: usize, at: u64, psn: u32) -> Option<u32> {
        let qp = &mut self.qps[at_qp];
        self.traffic.packets.repeated += 1;
        let burst = qp.previous.is_some_and(|(before, when, again)| again && before < psn && at - when < BURST);
        let (last_ack, last_nak, last_rnr_nak, missing) = (qp.last_ack, qp.last_nak, qp.last_rnr_nak, qp.missing);
        qp.previous = Some((psn, at, true));
        let sent = qp.covering(psn)?;
        // A requester that dropped an ACK repeats all that is open, perhaps more than the ACK covers.
        let answered = sent.answered > sent.at || !sent.reads && last_ack > sent.at;
        // It arrived, if there was no loss on the wire, but nothing answered it: packet damming. A sequence NAK tells that
        // it is missing, and not the requests after it.
        let asked = if missing.1 > sent.at { missing.0 == psn } else { true };
        if asked && !answered && last_rnr_nak <= sent.at && !self.context.micro.wrong_peer {
            let known =
                self.traffic.steps.get_mut(sent.step).is_some_and(|step| std::mem::replace(&mut step.lost, true));
            self.traffic.packets.lost += u64::from(!known);
        }
        self.traffic.timeouts += u64::from(!burst && !answered && last_nak <= sent.at);
        (sent.at, sent.step) = (at, self.traffic.steps.len());
        sent.operation
    }

    fn response(&mut self, at_qp: usize, at: u64, headers: &Headers) -> Option<u32> {
        let qp = &mut self.qps[at_qp];
        match syndrome(headers) {
            Some(Syndrome::RnrNak(_)) => {
                self.traffic.packets.rnr_naks += 1;
                (qp.last_nak, qp.last_rnr_nak) = (at, at);
            }
            Some(Syndrome::Nak(NakCode::PsnSequence)) => {
                self.traffic.packets.sequence_naks += 1;
                (qp.last_nak, qp.missing) = (at, (headers.bth.psn.get(), at));
                // It answers nothing.
                return qp.covering(headers.bth.psn.get())?.operation;
            }
            _ => {}
        }
        if what(headers) == ACK {
            qp.last_ack = at;
        }
        let sent = qp.covering(headers.bth.psn.get())?;
        sent.answered = at;
        sent.operation
    }

    /// The operation of a new request, from its address, or for a SEND from its order.
    fn operation(&mut self, at_qp: usize, packet: &Packet<'_>) -> Option<u32> {
        let micro = self.context.micro;
        let opcode = packet.headers.bth.opcode;
        let dummy = |len: u32| len == 1 && micro.size > 1;
        if let Some(reth) = packet.headers.get::<Reth>() {
            if dummy(reth.dma_len.get()) {
                return None;
            }
            let offset = reth.va.get().checked_sub(self.context.address)?;
            return u32::try_from(offset / u64::from(micro.size)).ok().filter(|at| *at < micro.num_ops);
        }
        if !opcode.starts_message() {
            return self.qps[at_qp].operation;
        }
        if opcode.ends_message() && dummy(packet.payload.len() as u32) || at_qp >= micro.num_qps as usize {
            return None;
        }
        let own = (at_qp as u32..micro.num_ops).step_by(micro.num_qps as usize);
        let turn = self.qps[at_qp].sends;
        self.qps[at_qp].sends += 1;
        own.filter(|at| micro.kind(*at) == Operation::Send).nth(turn as usize)
    }
}

impl Qp {
    /// The request that includes this PSN.
    fn covering(&mut self, psn: u32) -> Option<&mut Sent> {
        let (first, sent) = self.sent.range_mut((Bound::Unbounded, Bound::Included(psn))).next_back()?;
        (psn - first < sent.psns).then_some(sent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;
    use weir_capture::LinkType;
    use weir_wire::ip::Envelope;
    use weir_wire::{Bth, Opcode, Psn, ROCE_PORT, Service};

    const CLIENT: u32 = 8623393;
    const SERVER: u32 = 6423693;
    const ADDRESS: u64 = 140535438831616;

    fn context(micro: &Micro) -> CaptureContext<'_> {
        CaptureContext { micro, qps: vec![[CLIENT, SERVER]], mtu: 4096, address: ADDRESS, start: None }
    }

    fn fixture(name: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/captures").join(name)
    }

    fn shown(traffic: &Traffic) -> Vec<(String, Option<u32>, bool, bool)> {
        traffic.steps.iter().map(|s| (s.what.clone(), s.operation, s.from_client, s.lost)).collect()
    }

    #[test]
    fn sends_that_are_repeated_after_an_ack_are_neither_lost_nor_late() {
        let micro = Micro { operation: Operation::Send, num_ops: 3, ..Micro::default() };
        let ack = |at, psn| frame(at, CLIENT, Wire::Acknowledge, psn, |headers| headers.put(Aeth::new(0, 0)), 0);
        let burst = |at| (0..3).map(move |psn| send(at + u64::from(psn), psn, Wire::SendOnly, 100));
        // A requester that dropped the ACK repeats all: nothing was lost, and no timeout passed.
        let mut frames: Vec<_> = burst(0).chain([ack(5, 2)]).chain(burst(600_000)).chain([ack(600_005, 2)]).collect();
        let traffic = of(&frames, &context(&micro));
        assert_eq!((traffic.timeouts, traffic.packets.lost, traffic.packets.repeated), (0, 0, 3));
        // So may a requester that dropped an ACK of the first, or of the first two.
        for psn in 0..2 {
            frames[3] = ack(5, psn);
            let traffic = of(&frames, &context(&micro));
            assert_eq!((traffic.timeouts, traffic.packets.lost), (0, 0));
        }
        frames.remove(3);
        let traffic = of(&frames, &context(&micro));
        assert_eq!((traffic.timeouts, traffic.packets.lost), (1, 3), "without an ACK");
    }

    /// Two READs, 1 ms apart, ODP memory at the server, profile connectx4: captured with `weir-micro` under
    /// `weir run --profile connectx4 --icrc always --capture`.
    #[test]
    fn a_live_capture_of_packet_damming() {
        let micro = Micro { num_ops: 2, interval: Duration::from_millis(1), ..Micro::default() };
        let [client, server] = ["weir-damming-client.pcapng", "weir-damming-server.pcapng"].map(fixture);
        let context = CaptureContext { start: Some(1795623196495740000), ..context(&micro) };
        let both = read(&[&client, &server], &context).unwrap();
        let expected = [
            ("RDMA Read Request", 0, true, false),
            (RNR_NAK, 0, false, false),
            ("RDMA Read Response", 0, false, false),
            ("RDMA Read Request", 0, true, false),
            ("RDMA Read Request", 1, true, true),
            ("RDMA Read Response", 0, false, false),
            ("RDMA Read Request", 1, true, false),
            ("RDMA Read Response", 1, false, false),
        ];
        assert_eq!(shown(&both), expected.map(|(what, at, client, lost)| (what.to_owned(), Some(at), client, lost)));
        // READ 0 is retransmitted after an RNR NAK, READ 1 after a timeout.
        assert_eq!(both.timeouts, 1);
        let counted = Packets { requests: 4, responses: 4, repeated: 2, rnr_naks: 1, sequence_naks: 0, lost: 1 };
        assert_eq!(both.packets, counted);
        let again = both.steps[6].time;
        assert!(again > Duration::from_millis(430) && again < Duration::from_millis(560), "{again:?}");
        // The capture of one side has the same packets.
        let alone = read(&[&client], &context).unwrap();
        assert_eq!((shown(&alone), alone.timeouts, alone.packets), (shown(&both), both.timeouts, both.packets));
    }

    /// A frame at a time in µs.
    fn frame(
        at: u64,
        to: u32,
        operation: Wire,
        psn: u32,
        fill: impl FnOnce(&mut Headers),
        payload: usize,
    ) -> OwnedFrame {
        let mut headers = Headers::new(Bth::new(Opcode::new(Service::Rc, operation), to, Psn::new(psn)));
        fill(&mut headers);
        let mut packet = vec![0; headers.len() + payload + weir_wire::ICRC_LEN];
        headers.emit(&mut packet);
        let [src, dst] = ["10.0.0.1", "10.0.0.2"].map(|text| text.parse().unwrap());
        let envelope = Envelope { src, dst, src_port: 20480, dst_port: ROCE_PORT, ip_id: 0, dont_fragment: true };
        let mut head = [0; 48];
        let len = envelope.emit(packet.len(), 0, 64, &mut head);
        let data = [&[2; 12][..], &[8, 0], &head[..len], &packet].concat();
        let orig_len = data.len();
        let (timestamp, link_type) = (at * 1000, LinkType::Ethernet);
        OwnedFrame { number: 1, timestamp, link_type, interface: 0, data, orig_len, direction: None, comment: None }
    }

    fn read_request(at: u64, psn: u32, offset: u64, len: u32) -> OwnedFrame {
        let reth = Reth { va: (ADDRESS + offset).into(), rkey: 1.into(), dma_len: len.into() };
        frame(at, SERVER, Wire::ReadRequest, psn, |headers| headers.put(reth), 0)
    }

    fn response(at: u64, psn: u32) -> OwnedFrame {
        frame(at, CLIENT, Wire::ReadResponseOnly, psn, |_| (), 100)
    }

    fn send(at: u64, psn: u32, operation: Wire, payload: usize) -> OwnedFrame {
        frame(at, SERVER, operation, psn, |_| (), payload)
    }

    #[test]
    fn retransmissions_after_a_response_or_a_nak_are_no_timeouts() {
        let micro = Micro { num_ops: 2, ..Micro::default() };
        let nak = |at: u64, psn: u32| {
            let aeth = Aeth::new(Syndrome::Nak(NakCode::PsnSequence).to_byte(), 0);
            frame(at, CLIENT, Wire::Acknowledge, psn, move |headers| headers.put(aeth), 0)
        };
        let begin = vec![read_request(0, 0, 0, 100), read_request(5, 1, 100, 100)];
        let then = |more: Vec<OwnedFrame>| of(&[begin.clone(), more].concat(), &context(&micro));
        // The client dropped the response because of a page fault, and retransmits both READs.
        let dropped = then(vec![response(8, 0), read_request(500, 0, 0, 100), read_request(501, 1, 100, 100)]);
        assert_eq!((dropped.timeouts, dropped.packets.repeated), (0, 2));
        let refused = then(vec![nak(8, 0), read_request(9, 0, 0, 100)]);
        assert_eq!((refused.timeouts, refused.packets.sequence_naks), (0, 1));
        // No response: both READs are retransmitted together, twice.
        let again = |at: u64| vec![read_request(at, 0, 0, 100), read_request(at, 1, 100, 100)];
        let silent = then([again(500_000), again(1_000_000)].concat());
        assert_eq!((silent.timeouts, silent.packets.repeated), (2, 4));
        // The first READ got a response, the second did not.
        let second = then(vec![response(8, 0), read_request(500_000, 1, 100, 100)]);
        assert_eq!((second.timeouts, shown(&second).last().unwrap().1), (1, Some(1)));
    }

    #[test]
    fn sends_are_numbered_in_order_without_dummies() {
        let micro = Micro { operation: Operation::Send, size: 5000, num_ops: 2, ..Micro::default() };
        let frames = [
            send(0, 0, Wire::SendFirst, 4096),
            send(1, 1, Wire::SendLast, 904),
            send(2, 2, Wire::SendOnly, 1),
            send(3, 3, Wire::SendFirst, 4096),
            send(4, 4, Wire::SendLast, 904),
            send(9000, 1, Wire::SendLast, 904),
            frame(9001, CLIENT, Wire::Acknowledge, 4, |headers| headers.put(Aeth::new(0, 0)), 0),
            frame(9002, 77, Wire::Acknowledge, 4, |_| (), 0),
        ];
        let traffic = of(&frames, &context(&micro));
        let operations: Vec<Option<u32>> = traffic.steps.iter().map(|step| step.operation).collect();
        assert_eq!(operations, [Some(0), Some(0), None, Some(1), Some(1), Some(0), Some(1)]);
        assert_eq!((traffic.timeouts, traffic.packets.requests, traffic.packets.responses), (1, 6, 1));
    }
}
