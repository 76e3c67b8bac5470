//! Capture files of both formats and byte orders.

/// Byte order of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    Little,
    Big,
}

/// A packet in a file.
#[derive(Clone, Copy, Debug)]
pub struct Stored<'a> {
    /// Nanoseconds since 1970; microseconds in files with this unit.
    pub time: u64,
    pub link_type: u16,
    pub data: &'a [u8],
    /// Bytes on the wire.
    pub orig_len: usize,
}

/// A pcap file with nanoseconds, or microseconds. All packets have the link type of the first.
pub fn pcap(order: Order, nanoseconds: bool, packets: &[Stored<'_>]) -> Vec<u8> {
    let mut out = Out { order, bytes: Vec::new() };
    let unit = if nanoseconds { 1_000_000_000 } else { 1_000_000 };
    out.u32(if nanoseconds { 0xa1b2_3c4d } else { 0xa1b2_c3d4 });
    out.u16(2);
    out.u16(4);
    let link_type = packets.first().map_or(1, |packet| packet.link_type);
    out.words(&[0, 0, 1 << 18, link_type.into()]);
    for Stored { time, data, orig_len, .. } in packets {
        out.words(&[time / unit, time % unit, data.len() as u64, *orig_len as u64]);
        out.bytes.extend(*data);
    }
    out.bytes
}

/// A pcapng file with nanoseconds: an interface for each link type, described where its first packet comes.
pub fn pcapng(order: Order, packets: &[Stored<'_>]) -> Vec<u8> {
    let mut out = Out { order, bytes: Vec::new() };
    out.block(0x0a0d_0d0a, |out| {
        out.u32(0x1a2b_3c4d);
        out.u16(1);
        out.u16(0);
        out.words(&[u64::MAX; 2]);
    });
    let mut interfaces = Vec::new();
    for Stored { time, link_type, data, orig_len } in packets {
        let interface = interfaces.iter().position(|known| known == link_type).unwrap_or_else(|| {
            interfaces.push(*link_type);
            out.block(1, |out| {
                out.u16(*link_type);
                out.u16(0);
                out.u32(0);
                // if_tsresol
                out.u16(9);
                out.u16(1);
                out.bytes.extend([9, 0, 0, 0]);
                out.u32(0);
            });
            interfaces.len() - 1
        });
        out.block(6, |out| {
            out.words(&[interface as u64, time >> 32, *time, data.len() as u64, *orig_len as u64]);
            out.bytes.extend(*data);
        });
    }
    out.bytes
}

struct Out {
    order: Order,
    bytes: Vec<u8>,
}

impl Out {
    fn u16(&mut self, value: u16) {
        self.bytes.extend(match self.order {
            Order::Little => value.to_le_bytes(),
            Order::Big => value.to_be_bytes(),
        });
    }

    fn u32(&mut self, value: u32) {
        self.bytes.extend(match self.order {
            Order::Little => value.to_le_bytes(),
            Order::Big => value.to_be_bytes(),
        });
    }

    /// The low half of each.
    fn words(&mut self, words: &[u64]) {
        words.iter().for_each(|word| self.u32(*word as u32));
    }

    fn block(&mut self, kind: u32, body: impl FnOnce(&mut Self)) {
        let mut inner = Out { order: self.order, bytes: Vec::new() };
        body(&mut inner);
        inner.bytes.resize(inner.bytes.len().next_multiple_of(4), 0);
        let len = inner.bytes.len() as u32 + 12;
        self.u32(kind);
        self.u32(len);
        self.bytes.extend(inner.bytes);
        self.u32(len);
    }
}
