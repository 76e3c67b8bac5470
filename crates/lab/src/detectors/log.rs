//! What the simulator did, by half of a connection: the requests of one end, and the responses of the other.

use std::collections::HashMap;
use weir_sim::{HostId, Incident, Loss, Node, PacketEvent, QpId, Seen};
use weir_transport::Instant;
use weir_wire::{Aeth, Operation, Syndrome};

/// The log of a run.
#[derive(Debug, Default)]
pub struct Log {
    pub halves: Vec<Half>,
    /// Each frame of each host's capture: the number of its packet.
    pub frames: HashMap<HostId, Vec<u64>>,
    /// When the server's QPs vanished.
    pub stopped: Option<u64>,
    /// When each page came, by host and address.
    pub pages: HashMap<(HostId, u64), u64>,
    by_requester: HashMap<QpId, usize>,
    by_responder: HashMap<QpId, usize>,
    /// The half of each packet, and its place there.
    places: HashMap<u64, (usize, usize)>,
}

/// The log of a half.
#[derive(Debug)]
pub struct Half {
    pub ends: HalfEnds,
    pub packets: Vec<PacketLog>,
    pub entries: Vec<Entry>,
    /// Address and length of each operation's buffer at the requester.
    pub buffers: Vec<(u64, u32)>,
    /// Operations that were completed successfully, and when.
    pub completed: HashMap<u32, u64>,
    pub failed: Option<(Failed, u64)>,
    /// First PSN of the first request.
    pub first: Option<u32>,
    /// Work requests that are open at a time, at most.
    pub depth: u32,
    /// The PSN, since the first, after the last one that was sent.
    end: u32,
}

#[derive(Clone, Copy, Debug)]
pub struct HalfEnds {
    pub requester: QpId,
    pub responder: QpId,
    pub mtu: u32,
}

/// Why a QP failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failed {
    Retries,
    RnrRetries,
    /// By a NAK that is not retried, or by a local error.
    Refused,
}

/// A packet that a host sent.
#[derive(Clone, Copy, Debug)]
pub struct PacketLog {
    pub id: u64,
    pub psn: u32,
    pub what: What,
    /// It ends a message.
    pub ends: bool,
    pub repeated: bool,
    pub payload: u32,
    pub sent: u64,
    pub arrived: Option<u64>,
    /// Arrived a second time.
    pub twice: Option<u64>,
    pub lost: Option<Loss>,
    pub marked: bool,
}

/// What a packet is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// Asks for data: a READ or an atomic.
    Ask,
    /// Carries data: a WRITE or a SEND.
    Data,
    /// A READ response or an atomic response.
    Response,
    Ack,
    RnrNak(u8),
    SequenceNak,
    Refusal,
}

/// Something that happened in a half. Packets are by their place in [`Half::packets`].
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    pub at: u64,
    pub event: Event,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    Sent(usize),
    Arrived(usize),
    Lost(usize),
    AckTimeout,
    SequenceNak,
    ResponseMissing,
    Dropped { psn: u32, page: bool },
    NotReady { psn: u32, page: bool },
}

impl What {
    /// Whether a requester sends it.
    pub fn is_request(self) -> bool {
        matches!(self, What::Ask | What::Data)
    }
}

impl Log {
    /// Adds a half; `buffers`: address and length of each operation's buffer.
    pub fn half(&mut self, ends: HalfEnds, depth: u32, buffers: Vec<(u64, u32)>) {
        let at = self.halves.len();
        self.by_requester.insert(ends.requester, at);
        self.by_responder.insert(ends.responder, at);
        self.halves.push(Half {
            ends,
            packets: vec![],
            entries: vec![],
            buffers,
            completed: HashMap::new(),
            failed: None,
            first: None,
            depth,
            end: 0,
        });
    }

    /// The QPs of a host.
    pub fn ends_on(&self, host: HostId) -> Vec<QpId> {
        let ends = self.halves.iter().flat_map(|half| [half.ends.requester, half.ends.responder]);
        let mut all: Vec<QpId> = ends.filter(|qp| qp.host == host).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// An operation was completed.
    pub fn completed(&mut self, half: usize, operation: u32, at: Instant) {
        self.halves[half].completed.insert(operation, at.0);
    }

    /// The requester of a half failed.
    pub fn failed(&mut self, half: usize, why: Failed, at: Instant) {
        self.halves[half].failed.get_or_insert((why, at.0));
    }

    /// Takes what the simulation shows of packets.
    pub fn packet(&mut self, seen: &Seen<'_>) {
        let at = seen.at.0;
        let frame = match (seen.event, seen.node) {
            (PacketEvent::Sent { .. } | PacketEvent::Arrived, Node::Host(host)) => Some(host),
            // The host captured it before it dropped it.
            (PacketEvent::Lost(Loss::NoDestination | Loss::Damage), Node::Host(host)) => Some(host),
            _ => None,
        };
        if let Some(host) = frame {
            self.frames.entry(host).or_default().push(seen.packet);
        }
        if let PacketEvent::Sent { lost } = seen.event {
            let what = what(seen);
            let halves = if what.is_request() { &self.by_requester } else { &self.by_responder };
            let Some(&half) = halves.get(&seen.from) else { return };
            let psn = seen.headers.bth.psn.get();
            let half_log = &mut self.halves[half];
            let repeated = if what.is_request() { half_log.sends(what, psn) } else { seen.repeated };
            let Half { packets, entries, .. } = half_log;
            self.places.insert(seen.packet, (half, packets.len()));
            entries.push(Entry { at, event: Event::Sent(packets.len()) });
            packets.push(PacketLog {
                id: seen.packet,
                psn,
                what,
                ends: seen.headers.bth.opcode.ends_message(),
                repeated,
                payload: seen.payload as u32,
                sent: at,
                arrived: None,
                twice: None,
                lost,
                marked: false,
            });
            return;
        }
        let Some(&(half, place)) = self.places.get(&seen.packet) else { return };
        let Half { packets, entries, .. } = &mut self.halves[half];
        let packet = &mut packets[place];
        packet.marked |= seen.marked;
        let event = match seen.event {
            PacketEvent::Lost(loss) => {
                packet.lost = Some(loss);
                Event::Lost(place)
            }
            _ if packet.arrived.is_some() => {
                packet.twice = Some(at);
                return;
            }
            _ => {
                packet.arrived = Some(at);
                Event::Arrived(place)
            }
        };
        entries.push(Entry { at, event });
    }

    /// Takes what the simulation shows of adapters.
    pub fn incident(&mut self, at: Instant, incident: Incident) {
        let at = at.0;
        let (half, event) = match incident {
            Incident::AckTimeout { qp } => (self.by_requester.get(&qp), Event::AckTimeout),
            Incident::SequenceNak { qp } => (self.by_requester.get(&qp), Event::SequenceNak),
            Incident::ResponseMissing { qp } => (self.by_requester.get(&qp), Event::ResponseMissing),
            Incident::Dropped { qp, psn, page } => {
                (self.by_requester.get(&qp), Event::Dropped { psn: psn.get(), page })
            }
            Incident::NotReady { qp, psn, page } => {
                (self.by_responder.get(&qp), Event::NotReady { psn: psn.get(), page })
            }
            Incident::PageCame { host, addr } => {
                self.pages.insert((host, addr), at);
                return;
            }
        };
        if let Some(&half) = half {
            self.halves[half].entries.push(Entry { at, event });
        }
    }
}

impl Half {
    /// PSNs since the first of the half, which wrap.
    pub fn offset(&self, psn: u32) -> u32 {
        psn.wrapping_sub(self.first.unwrap_or(psn)) & 0xff_ffff
    }

    /// The operation of a PSN.
    pub fn operation(&self, psn: u32) -> Option<usize> {
        self.operation_and_end(psn).map(|(operation, _)| operation)
    }

    /// The operation of a PSN, and the PSN after its last, since the first of the half.
    fn operation_and_end(&self, psn: u32) -> Option<(usize, u32)> {
        let offset = self.offset(psn);
        let mut end = 0;
        let ends = self.buffers.iter().map(|(_, size)| {
            end += size.div_ceil(self.ends.mtu).max(1);
            end
        });
        ends.enumerate().find(|(_, end)| offset < *end)
    }

    /// A request is sent. True if it was sent before: a READ may begin again in its middle.
    fn sends(&mut self, what: What, psn: u32) -> bool {
        self.first.get_or_insert(psn);
        let offset = self.offset(psn);
        let end = if what == What::Ask { self.operation_and_end(psn).map(|(_, end)| end) } else { None };
        let repeated = offset < self.end;
        self.end = self.end.max(end.unwrap_or(offset + 1));
        repeated
    }
}

fn what(seen: &Seen<'_>) -> What {
    use Operation::*;
    let opcode = seen.headers.bth.opcode;
    match opcode.operation() {
        Some(ReadRequest | CompareSwap | FetchAdd) => What::Ask,
        Some(Acknowledge) => {
            let syndrome = seen.headers.get::<Aeth>().map(|aeth| Syndrome::from_byte(aeth.syndrome()));
            match syndrome {
                Some(Syndrome::RnrNak(timer)) => What::RnrNak(timer.code()),
                Some(Syndrome::Nak(weir_wire::NakCode::PsnSequence)) => What::SequenceNak,
                Some(Syndrome::Nak(_)) => What::Refusal,
                _ => What::Ack,
            }
        }
        _ if opcode.is_response() => What::Response,
        _ => What::Data,
    }
}
