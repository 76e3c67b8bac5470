//! From captures to a packet ladder: who sent what when, for which operation; what was counted, and ACK timeouts.

use super::{Micro, Operation, Packets, Step};
use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::ops::Bound;
use std::path::Path;
use std::time::Duration;
use weir_capture::{Direction, Frame, roce};
use weir_wire::{Aeth, Headers, NakCode, Operation as Wire, Packet, Reth, Syndrome};

/// What a capture does not say.
#[derive(Clone, Debug)]
pub struct Naming<'a> {
    pub micro: &'a Micro,
    /// Numbers of the QPs, client and server: first those of the operations, then others.
    pub qps: Vec<[u32; 2]>,
    /// Path MTU, bytes.
    pub mtu: u32,
    /// Where the server's buffer begins.
    pub address: u64,
    /// When the first operation was posted, nanoseconds since 1970; `None`: with the first packet.
    pub start: Option<u64>,
}

/// What went over the wire.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    pub packets: Packets,
    /// Requests that were repeated though nobody had asked for it, and nothing had come back. (A flood of them in the
    /// order of their PSNs is one timeout.)
    pub timeouts: u64,
    /// The first 100,000.
    pub steps: Vec<Step>,
}

pub const RNR_NAK: &str = "Acknowledge (RNR NAK)";
pub const SEQUENCE_NAK: &str = "Acknowledge (NAK: PSN sequence error)";

const STEPS: usize = 100_000;
/// Requests that are repeated together leave within this time of each other.
const BURST: u64 = 1_000_000;

/// Reads the captures of both sides, of each what it sent; or one capture alone, all of it.
pub fn read(captures: &[&Path], naming: &Naming<'_>) -> Result<Traffic> {
    let mut frames = vec![];
    for path in captures {
        let reader = weir_capture::open(path).with_context(|| path.display().to_string())?;
        for frame in reader {
            let frame = frame.with_context(|| path.display().to_string())?;
            if captures.len() == 1 || frame.direction != Some(Direction::In) {
                frames.push(frame);
            }
        }
    }
    frames.sort_by_key(|frame| frame.timestamp);
    Ok(of(&frames, naming))
}

/// Of frames in the order of their time.
pub fn of(frames: &[Frame], naming: &Naming<'_>) -> Traffic {
    let mut reading = Reading {
        naming,
        qps: (0..naming.qps.len()).map(|_| Qp::default()).collect(),
        start: naming.start,
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

/// A packet, as the papers call it.
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
            _ => "Acknowledge",
        },
        _ => "other",
    }
}

fn syndrome(headers: &Headers) -> Option<Syndrome> {
    headers.get::<Aeth>().map(|aeth| Syndrome::from_byte(aeth.syndrome()))
}

struct Reading<'a> {
    naming: &'a Naming<'a>,
    qps: Vec<Qp>,
    start: Option<u64>,
    traffic: Traffic,
}

/// One QP of the client, and what is known of it so far.
#[derive(Default)]
struct Qp {
    /// By first PSN: a packet, or the answers to a READ.
    sent: BTreeMap<u32, Sent>,
    /// The PSN after the last that was sent for the first time.
    next: u32,
    sends: u32,
    /// Of the message that the last request belongs to.
    operation: Option<u32>,
    last_nak: u64,
    /// The last request: its PSN, when, and whether it was a repetition.
    previous: Option<(u32, u64, bool)>,
}

struct Sent {
    psns: u32,
    operation: Option<u32>,
    at: u64,
    /// When something last came back for it.
    answered: u64,
}

impl Reading<'_> {
    fn packet(&mut self, at: u64, packet: &Packet<'_>, lost: bool) {
        let headers = &packet.headers;
        let from_client = !headers.bth.opcode.is_response();
        let far = usize::from(from_client);
        let Some(at_qp) = self.naming.qps.iter().position(|pair| pair[far] == headers.bth.dest_qp) else { return };
        let operation = if from_client { self.request(at_qp, at, packet) } else { self.response(at_qp, at, headers) };
        let count = &mut self.traffic.packets;
        count.lost += u64::from(lost);
        if at_qp >= self.naming.micro.num_qps as usize && operation.is_none() {
            return; // what touched pages beforehand
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
        let psns = len.div_ceil(self.naming.mtu).max(1);
        let qp = &mut self.qps[at_qp];
        qp.operation = operation;
        qp.next = psn + psns;
        qp.previous = Some((psn, at, false));
        qp.sent.insert(psn, Sent { psns, operation, at, answered: 0 });
        operation
    }

    fn repeated(&mut self, at_qp: usize, at: u64, psn: u32) -> Option<u32> {
        let qp = &mut self.qps[at_qp];
        self.traffic.packets.repeated += 1;
        let burst = qp.previous.is_some_and(|(before, when, again)| again && before < psn && at - when < BURST);
        let last_nak = qp.last_nak;
        qp.previous = Some((psn, at, true));
        let sent = qp.covering(psn)?;
        self.traffic.timeouts += u64::from(!burst && last_nak <= sent.at && sent.answered <= sent.at);
        sent.at = at;
        sent.operation
    }

    fn response(&mut self, at_qp: usize, at: u64, headers: &Headers) -> Option<u32> {
        let qp = &mut self.qps[at_qp];
        match syndrome(headers) {
            Some(Syndrome::RnrNak(_)) => {
                self.traffic.packets.rnr_naks += 1;
                qp.last_nak = at;
            }
            Some(Syndrome::Nak(NakCode::PsnSequence)) => {
                self.traffic.packets.sequence_naks += 1;
                qp.last_nak = at;
            }
            _ => {}
        }
        let sent = qp.covering(headers.bth.psn.get())?;
        sent.answered = at;
        sent.operation
    }

    /// Which operation a new request belongs to: by its address, or, of a SEND, by its turn.
    fn operation(&mut self, at_qp: usize, packet: &Packet<'_>) -> Option<u32> {
        let micro = self.naming.micro;
        let opcode = packet.headers.bth.opcode;
        let dummy = |len: u32| len == 1 && micro.size > 1;
        if let Some(reth) = packet.headers.get::<Reth>() {
            if dummy(reth.dma_len.get()) {
                return None;
            }
            let offset = reth.va.get().checked_sub(self.naming.address)?;
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
    /// What has this PSN.
    fn covering(&mut self, psn: u32) -> Option<&mut Sent> {
        let (first, sent) = self.sent.range_mut((Bound::Unbounded, Bound::Included(psn))).next_back()?;
        (psn - first < sent.psns).then_some(sent)
    }
}
