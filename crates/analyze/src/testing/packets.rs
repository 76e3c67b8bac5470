//! Packets that are almost those of a few connections.

use crate::Observed;
use std::net::{IpAddr, Ipv4Addr};
use weir_capture::packet::Address;
use weir_capture::testing::{Carried, Order, SLOTS, Stored, behind, edge_header, pcapng};
use weir_trials::Input;
use weir_wire::edge::{self, Hello, Seq};
use weir_wire::{Aeth, AtomicAckEth, AtomicEth, Bth, Deth, Headers, Ieth, ImmDt, Opcode, Psn, Reth, XrcEth};

/// A packet that an adapter reports.
pub struct Reported {
    pub source: u16,
    /// The source ends with it.
    pub ends: bool,
    time: u64,
    forth: bool,
    sent: bool,
    over_links: bool,
    qp: u32,
    payload: u32,
    headers: Headers,
}

/// Where the connections are, and what time it is.
#[derive(Default)]
pub struct Packets {
    time: u64,
    psn: [u32; 4],
    seq: [u32; 2],
}

/// The QPNs of the connections, at both ends.
const QPS: [u32; 2] = [0x4001, 0x4002];
/// The most packets.
const MOST: usize = 400;

impl Reported {
    pub fn packet(&self, number: u64) -> Observed<'_> {
        let [here, there] = [1, 2].map(|last| Address::Ipv4(Ipv4Addr::new(10, 0, 0, last)));
        let (from, to) = if self.forth { (here, there) } else { (there, here) };
        Observed {
            time: self.time,
            number,
            sent: self.sent,
            from,
            to,
            from_qp: self.qp,
            headers: &self.headers,
            payload: self.payload,
            over_links: self.over_links,
        }
    }
}

impl Packets {
    /// A capture file, and what adapters report.
    pub fn draw(mut self, input: &mut Input<'_>) -> (Vec<u8>, Vec<Reported>) {
        let (mut frames, mut reported) = (vec![], vec![]);
        while !input.is_empty() && frames.len() + reported.len() < MOST {
            let what = input.byte();
            self.pass(input);
            match what % 8 {
                0..=2 => {
                    let (headers, payload) = self.packet(input);
                    frames.push((self.time, framed(what, &bytes_of(&headers, payload, input.byte()))));
                }
                3 => frames.push((self.time, self.over_links(input))),
                4 => frames.push((self.time, hello(input))),
                _ => reported.push(self.reported(what, input)),
            }
        }
        let stored: Vec<Stored<'_>> = frames
            .iter()
            .map(|(time, (carried, data))| Stored {
                time: *time,
                link_type: carried.link_type(),
                data,
                orig_len: data.len(),
            })
            .collect();
        (pcapng(Order::Little, &stored), reported)
    }

    /// Mostly a short time passes.
    fn pass(&mut self, input: &mut Input<'_>) {
        let byte = input.byte();
        self.time = match byte {
            0xff => input.long(),
            0xfe => u64::MAX - u64::from(input.byte()),
            0xfd => self.time.wrapping_sub(u64::from(input.word())),
            _ => self.time.saturating_add(u64::from(byte & 15) << (2 * (byte >> 4))),
        };
    }

    /// Headers with a PSN near the expected one, and the bytes of the payload.
    fn packet(&mut self, input: &mut Input<'_>) -> (Headers, u32) {
        let what = input.byte();
        let opcode = match what % 16 {
            0 => Opcode(input.byte()),
            1 | 2 => Opcode(0x0c),
            3 => Opcode(0x04),
            4 | 5 => Opcode([0x0d, 0x0e, 0x0f, 0x10][input.below(4)]),
            6..=8 => Opcode(0x11),
            9 => Opcode(0x81),
            10 => Opcode(input.byte() | 0xa0),
            _ => Opcode([0x00, 0x01, 0x02, 0x06, 0x07, 0x08, 0x0a, 0x13, 0x14, 0x12][input.below(10)]),
        };
        let qp = usize::from(what >> 4 & 1);
        // Responses follow their requests.
        let psn = &mut self.psn[2 * qp + usize::from(opcode.is_response())];
        let shift = input.byte();
        let near = psn.wrapping_add(u32::from(shift & 7)).wrapping_sub(u32::from(shift >> 3 & 7));
        if shift & 0x40 == 0 {
            *psn = near.wrapping_add(1);
        }
        let psn = if shift & 0x80 == 0 { near } else { input.word() };
        let mut headers = Headers::new(Bth {
            ack_req: what & 0x40 != 0,
            congestion: if what & 0x80 != 0 { 0x80 } else { 0 },
            ..Bth::new(opcode, QPS[qp], Psn::new(psn & 0xff_ffff))
        });
        let len = u32::from(input.byte()) * 64;
        headers.put(Reth { va: (u64::from(input.byte()) << 11).into(), rkey: 5.into(), dma_len: len.into() });
        headers.put(AtomicEth { va: 64.into(), rkey: 5.into(), swap_or_add: 1.into(), compare: 0.into() });
        let syndrome = if opcode.has_aeth() { input.byte() } else { 0 };
        headers.put(Aeth::new(if syndrome & 1 == 0 { 31 } else { syndrome >> 1 }, 1));
        headers.put(AtomicAckEth { original: 5.into() });
        headers.put(XrcEth { srq: 7.into() });
        headers.put(ImmDt { imm: 9.into() });
        headers.put(Deth { qkey: 1.into(), src_qp: QPS[1 - qp].into() });
        headers.put(Ieth { rkey: 5.into() });
        (headers, if opcode.has_payload() { len.min(1024) } else { 0 })
    }

    fn reported(&mut self, what: u8, input: &mut Input<'_>) -> Reported {
        let (headers, payload) = self.packet(input);
        let bits = input.byte();
        Reported {
            source: u16::from(bits & 1),
            ends: bits & 0xf0 == 0xf0,
            time: self.time,
            forth: (what & 8 == 0) != headers.bth.opcode.is_response(),
            sent: bits & 2 != 0,
            over_links: bits & 4 != 0,
            qp: QPS[usize::from(bits >> 3 & 1)],
            payload: if bits & 0x80 == 0 { payload } else { input.word() },
            headers,
        }
    }

    /// A packet of a connection over several links, near the expected one.
    fn over_links(&mut self, input: &mut Input<'_>) -> (Carried, Vec<u8>) {
        let what = input.byte();
        let side = usize::from(what & 1);
        let shift = input.byte();
        let seq = self.seq[side].wrapping_add(u32::from(shift & 15)).wrapping_sub(u32::from(shift >> 4 & 7));
        let seq = if shift & 0x80 == 0 { seq } else { input.word() };
        self.seq[side] = seq.wrapping_add(1);
        let mut header = edge_header(u32::from(what >> 1 & 1), what >> 2 & 3, seq);
        header.received = Some(Seq(self.seq[1 - side].wrapping_sub(u32::from(input.byte() & 15))));
        if what & 0x10 != 0 {
            header.packet = None;
            header.count = 0;
        }
        let (packet, payload) = self.packet(input);
        let rest = if header.packet.is_some() { bytes_of(&packet, payload, 0) } else { vec![] };
        let datagram = behind(&header, what & 0x20 != 0, None, &rest);
        udp(side, &datagram)
    }
}

fn hello(input: &mut Input<'_>) -> (Carried, Vec<u8>) {
    let what = input.byte();
    let addresses = (0..input.below(4) as u8).map(|interface| edge::Address {
        interface,
        address: IpAddr::from([10, 0, 0, 1 + (what & 1) + interface]),
        prefix: 24,
        mtu: 1500,
        speed: 1000,
    });
    let hello = Hello {
        ask: u64::from(input.byte()),
        answer: u64::from(input.byte()),
        connection: u32::from(what >> 1 & 1),
        first: Seq(u32::from(input.byte())),
        refuses: what & 0x10 != 0,
        unknown: what & 0x20 != 0,
        addresses: addresses.collect(),
        ..Hello::default()
    };
    udp(usize::from(what & 1), &hello.encode())
}

fn udp(side: usize, datagram: &[u8]) -> (Carried, Vec<u8>) {
    let ports = [SLOTS[side], SLOTS[1 - side]];
    (Carried::Ipv4, Carried::Ipv4.udp(ports, datagram).expect("it has ports"))
}

/// A packet in one of the ways to carry it.
fn framed(what: u8, transport: &[u8]) -> (Carried, Vec<u8>) {
    let carried = Carried::ALL[usize::from(what >> 3) % 8];
    (carried, carried.frame(transport))
}

/// A packet; `cut`: bytes that are missing at its end.
fn bytes_of(headers: &Headers, payload: u32, cut: u8) -> Vec<u8> {
    let mut bytes = vec![0; headers.len()];
    headers.emit(&mut bytes);
    bytes.extend(vec![7; payload as usize]);
    if cut >= 0xf0 {
        bytes.truncate((bytes.len() - usize::from(cut & 15).min(bytes.len())).max(12));
    }
    bytes
}
