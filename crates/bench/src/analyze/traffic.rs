//! The traffic in the bench's files: some hundred connections with WRITEs, READs and SENDs of all sizes, and their ACKs.

use std::net::{IpAddr, Ipv4Addr};
use weir_wire::ip::{Envelope, fill_ipv4_checksum};
use weir_wire::{Aeth, Bth, Headers, Opcode, Operation, Psn, ROCE_PORT, Reth, Service, icrc};

const CONNECTIONS: usize = 300;
const HOSTS: usize = 32;
const MTU: u32 = 4096;
/// Lengths of messages, bytes; large ones have most of the packets.
const LENGTHS: [u32; 8] = [64, 8, 4096, 256, 16 << 10, 64 << 10, 256 << 10, 64 << 10];
const ETHERNET: usize = 14;
const IP_UDP: usize = 28;

/// The traffic, packet by packet.
pub struct Traffic {
    connections: Vec<Connection>,
    random: u64,
    payload: Vec<u8>,
    frame: Vec<u8>,
}

/// A packet on the wire.
pub struct Packet<'a> {
    pub frame: &'a [u8],
    /// Bytes of its payload.
    pub payload: usize,
}

/// A connection and the message that it transfers.
struct Connection {
    /// Requester and responder.
    ends: [End; 2],
    psn: u32,
    msn: u32,
    message: Message,
    /// Bytes that were transferred.
    done: u32,
    state: State,
}

#[derive(Clone, Copy)]
struct End {
    address: Ipv4Addr,
    qp: u32,
    port: u16,
}

#[derive(Clone, Copy)]
struct Message {
    kind: Kind,
    len: u32,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Write,
    Send,
    Read,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    ReadRequest,
    Data,
    Acknowledgement,
}

impl Traffic {
    pub fn new() -> Self {
        let mut traffic =
            Traffic { connections: Vec::new(), random: 0x9e37_79b9_7f4a_7c15, payload: Vec::new(), frame: Vec::new() };
        traffic.payload = (0..2 * MTU).map(|_| traffic.random() as u8).collect();
        for number in 0..CONNECTIONS {
            let end = |host: usize, of: u32| End {
                address: Ipv4Addr::new(10, 0, 0, (host % HOSTS) as u8 + 1),
                qp: (number as u32 * 2 + of) << 4 | 0x10_0001,
                port: 0xc000 | (number * 37 % 0x4000) as u16,
            };
            let ends = [end(number, 0), end(number * 7 + 1 + number / HOSTS, 1)];
            let psn = traffic.random() as u32 & 0xff_ffff;
            let message = traffic.message();
            traffic.connections.push(Connection { ends, psn, msn: 0, message, done: 0, state: message.first() });
        }
        traffic
    }

    /// The next packet.
    pub fn next(&mut self) -> Packet<'_> {
        let at = self.random() as usize % CONNECTIONS;
        let next = self.message();
        let connection = &mut self.connections[at];
        let (headers, payload, from) = connection.next(next);
        let ends = [connection.ends[from], connection.ends[1 - from]];
        self.write(&headers, payload as usize, ends);
        Packet { frame: &self.frame, payload: payload as usize }
    }

    fn message(&mut self) -> Message {
        let random = self.random();
        let kind = [Kind::Write, Kind::Send, Kind::Read, Kind::Write][random as usize % 4];
        Message { kind, len: LENGTHS[(random >> 8) as usize % LENGTHS.len()] }
    }

    /// Puts the packet into `frame`.
    fn write(&mut self, headers: &Headers, payload: usize, [from, to]: [End; 2]) {
        self.frame.clear();
        self.frame.extend([2; 12]);
        self.frame.extend([8, 0]);
        self.frame.resize(ETHERNET + IP_UDP + headers.len(), 0);
        headers.emit(&mut self.frame[ETHERNET + IP_UDP..]);
        let begin = headers.bth.psn.get() as usize % MTU as usize;
        self.frame.extend(&self.payload[begin..begin + payload]);
        let body = self.frame.len() - ETHERNET - IP_UDP;
        let envelope = Envelope {
            src: IpAddr::V4(from.address),
            dst: IpAddr::V4(to.address),
            src_port: from.port,
            dst_port: ROCE_PORT,
            ip_id: 0,
            dont_fragment: true,
        };
        envelope.emit(body + 4, 2, 64, &mut self.frame[ETHERNET..]);
        fill_ipv4_checksum(&mut self.frame[ETHERNET..]);
        let icrc = icrc::compute(&envelope, &self.frame[ETHERNET + IP_UDP..]);
        self.frame.extend(icrc.to_le_bytes());
    }

    /// Xorshift: the same traffic in every run.
    fn random(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random >> 11
    }
}

impl Message {
    fn first(self) -> State {
        if self.kind == Kind::Read { State::ReadRequest } else { State::Data }
    }
}

impl Connection {
    /// The next packet: headers, bytes of payload, and whether requester (0) or responder (1) sends it. `next` is the
    /// message after this one.
    fn next(&mut self, next: Message) -> (Headers, u32, usize) {
        let Message { kind, len } = self.message;
        let reth =
            Reth { va: (0x7f00_0000_0000 + u64::from(self.psn)).into(), rkey: 0x1234.into(), dma_len: len.into() };
        match self.state {
            State::ReadRequest => {
                self.state = State::Data;
                let mut headers = self.headers(Operation::ReadRequest, 0);
                headers.put(reth);
                (headers, 0, 0)
            }
            State::Data => {
                let (payload, first) = ((len - self.done).min(MTU), self.done == 0);
                let last = self.done + payload == len;
                self.done += payload;
                let from = usize::from(kind == Kind::Read);
                let mut headers = self.headers(operation(kind, first, last), from);
                headers.bth.ack_req = last && kind != Kind::Read;
                headers.put(reth);
                headers.put(Aeth::new(0x1f, self.msn));
                match (last, kind) {
                    (false, _) => self.psn += 1,
                    (true, Kind::Read) => self.begin(next),
                    (true, _) => self.state = State::Acknowledgement,
                }
                (headers, payload, from)
            }
            State::Acknowledgement => {
                let mut headers = self.headers(Operation::Acknowledge, 1);
                self.msn += 1;
                headers.put(Aeth::new(0x1f, self.msn));
                self.begin(next);
                (headers, 0, 1)
            }
        }
    }

    fn headers(&self, operation: Operation, from: usize) -> Headers {
        Headers::new(Bth::new(Opcode::new(Service::Rc, operation), self.ends[1 - from].qp, Psn::new(self.psn)))
    }

    fn begin(&mut self, next: Message) {
        self.psn += 1;
        (self.message, self.done, self.state) = (next, 0, next.first());
    }
}

fn operation(kind: Kind, first: bool, last: bool) -> Operation {
    use Operation::*;
    let [only, start, end, middle] = match kind {
        Kind::Write => [WriteOnly, WriteFirst, WriteLast, WriteMiddle],
        Kind::Send => [SendOnly, SendFirst, SendLast, SendMiddle],
        Kind::Read => [ReadResponseOnly, ReadResponseFirst, ReadResponseLast, ReadResponseMiddle],
    };
    match (first, last) {
        (true, true) => only,
        (true, false) => start,
        (false, true) => end,
        (false, false) => middle,
    }
}
