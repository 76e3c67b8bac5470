//! The blocks of pcapng: sections, interfaces, packets, statistics.

use crate::frame::Direction;
use crate::options::{Endian, Options};
use crate::record::Record;
use crate::ticks::Ticks;

/// The bytes with which a file starts: the type of a section header, the same in both byte orders.
pub(crate) const SECTION_HEADER: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];
/// Bytes at the start of a block that [`Pcapng::length`] needs.
pub(crate) const BLOCK_START: usize = 12;

/// The latest interface statistics in the file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Frames that the interface saw (`isb_ifrecv`).
    pub received: Option<u64>,
    /// Frames that could not be written (`isb_ifdrop`).
    pub dropped: Option<u64>,
}

/// What the blocks so far say about the following ones.
#[derive(Debug, Default)]
pub(crate) struct Pcapng {
    endian: Endian,
    interfaces: Vec<Interface>,
    pub statistics: Statistics,
}

/// What a block is.
#[derive(Debug)]
pub(crate) enum Block {
    Packet(Record),
    /// It has no packet, but Wireshark numbers it among the frames.
    Numbered,
    Other,
}

/// An interface, to which packet blocks refer.
#[derive(Clone, Copy, Debug)]
struct Interface {
    link_type: u16,
    /// Limit of the captured bytes of a packet; `usize::MAX` without a limit.
    snap_len: usize,
    ticks: Ticks,
}

mod kind {
    pub const INTERFACE: u32 = 1;
    /// The obsolete packet block.
    pub const PACKET: u32 = 2;
    pub const SIMPLE_PACKET: u32 = 3;
    pub const STATISTICS: u32 = 5;
    pub const ENHANCED_PACKET: u32 = 6;
    /// An entry of systemd's journal.
    pub const JOURNAL: u32 = 9;
    pub const SYSDIG: u32 = 0x204;
    pub const SYSDIG_2: u32 = 0x216;
    pub const SYSDIG_2_LARGE: u32 = 0x221;
    pub const CUSTOM: u32 = 0xbad;
    pub const CUSTOM_NOT_COPIED: u32 = 0x4000_0bad;
    pub const SECTION: u32 = 0x0a0d_0d0a;
}

mod option {
    pub const IF_TSRESOL: u16 = 9;
    pub const IF_TSOFFSET: u16 = 14;
    /// Of both kinds of packet blocks.
    pub const FLAGS: u16 = 2;
    pub const ISB_IFRECV: u16 = 4;
    pub const ISB_IFDROP: u16 = 5;
}

/// Length in bytes of an empty block: type, and the length twice.
const MIN_BLOCK: usize = 12;
/// Limit of the interfaces of a section, so that a damaged file cannot use up all memory.
const MAX_INTERFACES: usize = 1 << 16;
const CONTRADICTION: &str = "its lengths contradict each other";
const SHORT: &str = "it is too short for its type";
const NO_INTERFACE: &str = "it names an interface that is not described";

impl Pcapng {
    /// Length in bytes of the block that starts with `start`.
    #[inline]
    pub(crate) fn length(&mut self, start: &[u8; BLOCK_START]) -> Result<usize, &'static str> {
        if start[..4] == SECTION_HEADER {
            // A section has its own byte order.
            self.endian = match start[8..] {
                [0x1a, 0x2b, 0x3c, 0x4d] => Endian::Big,
                [0x4d, 0x3c, 0x2b, 0x1a] => Endian::Little,
                _ => return Err("its byte-order magic is wrong"),
            };
        }
        // Some programs do not count the padding.
        match (self.endian.u32_at(start, 4) as usize).checked_next_multiple_of(4) {
            Some(..MIN_BLOCK) => Err("its length is less than a block's"),
            Some(len) => Ok(len),
            None => Err("its length is too large"),
        }
    }

    /// Parses a block of the length that [`Pcapng::length`] says.
    #[inline]
    pub(crate) fn block(&mut self, block: &[u8]) -> Result<Block, &'static str> {
        let (head, body) = block.split_first_chunk::<8>().ok_or(SHORT)?;
        let (body, trailer) = body.split_last_chunk::<4>().ok_or(SHORT)?;
        if trailer != &head[4..] {
            return Err(CONTRADICTION);
        }
        match self.endian.u32_at(head, 0) {
            kind::ENHANCED_PACKET => self.enhanced_packet(body),
            kind::SIMPLE_PACKET => self.simple_packet(body),
            kind::PACKET => self.obsolete_packet(body),
            kind::SECTION => {
                self.interfaces.clear();
                Ok(Block::Other)
            }
            kind::INTERFACE => self.interface(body),
            kind::STATISTICS => {
                self.interface_statistics(body);
                Ok(Block::Other)
            }
            kind::JOURNAL
            | kind::SYSDIG
            | kind::SYSDIG_2
            | kind::SYSDIG_2_LARGE
            | kind::CUSTOM
            | kind::CUSTOM_NOT_COPIED => Ok(Block::Numbered),
            _ => Ok(Block::Other),
        }
    }

    #[inline]
    fn enhanced_packet(&self, body: &[u8]) -> Result<Block, &'static str> {
        let head: &[u8; 20] = body.first_chunk().ok_or(SHORT)?;
        let word = |at| self.endian.u32_at(head, at);
        self.packet(word(0) as usize, [word(4), word(8)], [word(12), word(16)], body)
    }

    fn obsolete_packet(&self, body: &[u8]) -> Result<Block, &'static str> {
        let head: &[u8; 20] = body.first_chunk().ok_or(SHORT)?;
        let word = |at| self.endian.u32_at(head, at);
        let interface = usize::from(self.endian.u16_at(head, 0));
        self.packet(interface, [word(4), word(8)], [word(12), word(16)], body)
    }

    /// `time` and lengths are words of a packet block: upper and lower half; captured and on the wire. `body` has all 20
    /// bytes of its header.
    #[inline]
    fn packet(
        &self,
        interface: usize,
        time: [u32; 2],
        [captured, orig_len]: [u32; 2],
        body: &[u8],
    ) -> Result<Block, &'static str> {
        let number = interface as u32;
        let interface = self.interfaces.get(interface).ok_or(NO_INTERFACE)?;
        let ticks = u64::from(time[0]) << 32 | u64::from(time[1]);
        if captured as usize > body.len() - 20 {
            return Err(CONTRADICTION);
        }
        let data = 20..20 + captured as usize;
        let options = data.end.next_multiple_of(4).min(body.len())..body.len();
        let direction = match options.is_empty() {
            true => None,
            false => self.direction(&body[options.clone()]),
        };
        Ok(Block::Packet(Record {
            timestamp: interface.ticks.nanoseconds(ticks),
            link_type: interface.link_type,
            interface: number,
            data: data.start + 8..data.end + 8,
            orig_len: orig_len as usize,
            direction,
            options: options.start + 8..options.end + 8,
        }))
    }

    #[inline]
    fn direction(&self, options: &[u8]) -> Option<Direction> {
        let flags = Options::new(options, self.endian).find(|option| option.code == option::FLAGS)?;
        match flags.number()? & 3 {
            1 => Some(Direction::In),
            2 => Some(Direction::Out),
            _ => None,
        }
    }

    fn simple_packet(&self, body: &[u8]) -> Result<Block, &'static str> {
        let interface = self.interfaces.first().ok_or(NO_INTERFACE)?;
        let orig_len = self.endian.u32_at(body.first_chunk::<4>().ok_or(SHORT)?, 0) as usize;
        let captured = orig_len.min(interface.snap_len);
        if captured > body.len() - 4 {
            return Err(CONTRADICTION);
        }
        Ok(Block::Packet(Record {
            timestamp: 0,
            link_type: interface.link_type,
            interface: 0,
            data: 12..12 + captured,
            orig_len,
            direction: None,
            options: 0..0,
        }))
    }

    fn interface(&mut self, body: &[u8]) -> Result<Block, &'static str> {
        let (head, options) = body.split_first_chunk::<8>().ok_or(SHORT)?;
        if self.interfaces.len() == MAX_INTERFACES {
            return Err("its section has more than 65536 interfaces");
        }
        let (mut resolution, mut offset) = (6, 0);
        for option in self.options(options) {
            match (option.code, option.value) {
                (option::IF_TSRESOL, [value, ..]) => resolution = *value,
                (option::IF_TSOFFSET, _) => offset = option.number().unwrap_or(0) as i64,
                _ => {}
            }
        }
        let ticks = Ticks::new(resolution, offset).ok_or("its time resolution is too fine")?;
        let snap_len = match self.endian.u32_at(head, 4) {
            0 => usize::MAX,
            limit => limit as usize,
        };
        self.interfaces.push(Interface { link_type: self.endian.u16_at(head, 0), snap_len, ticks });
        Ok(Block::Other)
    }

    fn interface_statistics(&mut self, body: &[u8]) {
        for option in self.options(body.get(12..).unwrap_or_default()) {
            match option.code {
                option::ISB_IFRECV => self.statistics.received = option.number(),
                option::ISB_IFDROP => self.statistics.dropped = option.number(),
                _ => {}
            }
        }
    }

    pub(crate) fn options<'a>(&self, bytes: &'a [u8]) -> Options<'a> {
        Options::new(bytes, self.endian)
    }
}
