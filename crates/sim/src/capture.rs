//! A host's traffic as a pcapng file, in memory or not, as the live adapter writes it: whole Ethernet frames, RoCEv2,
//! correct ICRCs.
//!
//! Host n has the address 10.x.y.z, where xyz is n + 1; time begins in 1970. Packets that the adapter or its own link
//! loses have a comment. Payload without contents is zeros.

use crate::ids::HostId;
use crate::observe::Loss;
use crate::packet::SimPacket;
use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr};
use weir_capture::{Direction, InterfaceInfo, PacketInfo, Writer};
use weir_transport::Instant;
use weir_wire::ip::{Envelope, fill_ipv4_checksum};
use weir_wire::{ICRC_LEN, MAX_HEADERS, ROCE_PORT, icrc};

/// A file being written.
pub(crate) struct Capture {
    writer: Writer<Box<dyn Write>>,
    frames: u64,
    failure: Option<io::Error>,
    body: Vec<u8>,
}

const TTL: u8 = 64;
/// ECN bits of the TOS.
const CONGESTION_EXPERIENCED: u8 = 3;

impl Capture {
    /// Starts the capture file of a host.
    pub fn new(out: Box<dyn Write>, host: HostId, profile: &str) -> Self {
        let info = InterfaceInfo {
            name: &format!("host{}", host.0),
            description: &format!("simulated; profile {profile}"),
            application: concat!("weir ", env!("CARGO_PKG_VERSION")),
        };
        let writer = Writer::new(out, &info, 0);
        Capture { writer, frames: 0, failure: None, body: Vec::new() }
    }

    /// Writes a packet with its virtual time; a lost one gets a comment. `finish` reports errors.
    pub fn record(&mut self, now: Instant, direction: Direction, packet: &SimPacket, lost: Option<Loss>) {
        let mut headers = [0; MAX_HEADERS];
        let len = packet.headers.emit(&mut headers);
        self.body.clear();
        self.body.extend_from_slice(&headers[..len]);
        self.body.extend_from_slice(packet.payload.bytes());
        self.body.extend_from_slice(&[0; 3][..usize::from(packet.headers.bth.pad)]);
        let [src, dst] = [packet.from.host, packet.to].map(address);
        // All packets of a QP have the same source port, in the range that RoCEv2 uses for it (annex A17).
        let src_port = 0xc000 | (packet.from.num & 0x3fff) as u16;
        let envelope = Envelope { src, dst, src_port, dst_port: ROCE_PORT, ip_id: 0, dont_fragment: true };
        let mut head = [0; 14 + 28];
        head[..6].copy_from_slice(&mac(packet.to));
        head[6..12].copy_from_slice(&mac(packet.from.host));
        head[12..14].copy_from_slice(&[0x08, 0x00]);
        let ecn = if packet.marked { CONGESTION_EXPERIENCED } else { 0 };
        envelope.emit(self.body.len() + ICRC_LEN, ecn, TTL, &mut head[14..]);
        fill_ipv4_checksum(&mut head[14..]);
        let mut icrc = icrc::compute(&envelope, &self.body).to_le_bytes();
        icrc[0] ^= u8::from(packet.damaged);
        let info = PacketInfo { interface: 0, timestamp: now.0, direction, comment: lost.map_or("", loss_comment) };
        self.frames += 1;
        if let Err(e) = self.writer.packet(&info, &[&head, &self.body, &icrc]) {
            self.failure.get_or_insert(e);
        }
    }

    /// Ends the file and returns the number of frames; returns the first write error if there was one.
    pub fn finish(mut self, now: Instant) -> io::Result<u64> {
        self.writer.statistics(now.0, self.frames, 0);
        self.writer.flush()?;
        self.failure.map_or(Ok(self.frames), Err)
    }
}

/// Comment of a lost packet.
fn loss_comment(loss: Loss) -> &'static str {
    match loss {
        Loss::Adapter => "lost by the adapter: packet damming",
        Loss::Link | Loss::Rule => "lost by fault injection",
        Loss::Damage => "lost: a bit changed on the way",
        Loss::TooLong => "lost: longer than the link's MTU",
        Loss::Buffer => "lost: the switch's buffer was full",
        Loss::NoDestination => "lost: there is no such host",
    }
}

fn address(host: HostId) -> IpAddr {
    let [_, a, b, c] = (host.0 + 1).to_be_bytes();
    Ipv4Addr::new(10, a, b, c).into()
}

fn mac(host: HostId) -> [u8; 6] {
    let [_, a, b, c] = (host.0 + 1).to_be_bytes();
    [2, 0, 10, a, b, c]
}
