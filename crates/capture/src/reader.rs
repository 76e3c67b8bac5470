//! Reads the frames of a capture file: pcap (µs and ns, both byte orders), pcapng, and ERF records in them.

use crate::erf;
use crate::frame::{Direction, Frame, LINKTYPE_ERF, LinkType};
use pcap_parser::pcapng::{EnhancedPacketBlock, InterfaceDescriptionBlock, InterfaceStatisticsBlock};
use pcap_parser::traits::{PcapNGPacketBlock, PcapReaderIterator};
use pcap_parser::{Block, IDB_MAGIC, OptionCode, PcapBlockOwned, PcapError, PcapNGOption, create_reader};
use std::collections::VecDeque;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Why a file cannot be read, or not to its end.
#[derive(Debug, Error)]
pub enum CaptureError {
    #[error("cannot open {}: {source}", path.display())]
    Open { path: PathBuf, source: std::io::Error },
    #[error("neither a pcap nor a pcapng file")]
    NotACapture,
    #[error("the file cannot be read beyond byte {offset}")]
    Read { offset: usize },
    #[error("the file is truncated: it ends within the record at byte {offset}")]
    Truncated { offset: usize },
    #[error("the record at byte {offset} is damaged: {what}")]
    Corrupt { offset: usize, what: &'static str },
}

/// The latest interface statistics in the file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Frames that the interface saw (`isb_ifrecv`).
    pub received: Option<u64>,
    /// Frames that could not be written (`isb_ifdrop`).
    pub dropped: Option<u64>,
}

/// The frames of a capture file, in the file's order. The iterator ends after an error.
pub struct Reader {
    blocks: Box<dyn PcapReaderIterator + Send>,
    capacity: usize,
    is_pcapng: bool,
    interfaces: Vec<Interface>,
    big_endian: bool,
    nanoseconds: bool,
    statistics: Statistics,
    ready: VecDeque<Frame>,
    ended: bool,
}

/// An interface description, to which packet blocks refer.
#[derive(Clone, Copy)]
struct Interface {
    link_type: u16,
    /// Units of timestamps per second.
    resolution: u64,
    /// Seconds to add to timestamps.
    offset: i64,
}

const INITIAL_BUFFER: usize = 1 << 18;
/// Limit of a block's length, so that a damaged length cannot use up all memory.
const MAX_BUFFER: usize = 1 << 24;
/// Length of an empty block: type, and the length twice.
const MIN_BLOCK: usize = 12;
const SECTION_HEADER: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];
const BYTE_ORDER_MAGIC: u32 = 0x1a2b_3c4d;
const CONTRADICTION: &str = "its lengths contradict each other";
const TOO_LONG: &str = "its length is too large";

/// Opens a capture file.
pub fn open(path: impl AsRef<Path>) -> Result<Reader, CaptureError> {
    let path = path.as_ref();
    let file = File::open(path).map_err(|source| CaptureError::Open { path: path.into(), source })?;
    Reader::new(file)
}

impl Reader {
    /// Reads from any source.
    pub fn new(source: impl Read + Send + 'static) -> Result<Self, CaptureError> {
        let blocks = create_reader(INITIAL_BUFFER, source).map_err(|error| match error {
            PcapError::ReadError => CaptureError::Read { offset: 0 },
            PcapError::Incomplete(_) | PcapError::UnexpectedEof => CaptureError::Truncated { offset: 0 },
            _ => CaptureError::NotACapture,
        })?;
        Ok(Reader {
            is_pcapng: word(blocks.data(), 0) == Some(SECTION_HEADER),
            blocks,
            capacity: INITIAL_BUFFER,
            interfaces: Vec::new(),
            big_endian: false,
            nanoseconds: false,
            statistics: Statistics::default(),
            ready: VecDeque::new(),
            ended: false,
        })
    }

    /// The latest interface statistics read so far.
    pub fn statistics(&self) -> Statistics {
        self.statistics
    }

    /// Reads the next block; false at the end of the file.
    fn step(&mut self) -> Result<bool, CaptureError> {
        let offset = self.blocks.consumed();
        let complete = self.block_is_complete().map_err(|what| CaptureError::Corrupt { offset, what })?;
        let (consumed, outcome) = match self.blocks.next() {
            Ok((consumed, block)) => {
                let mut view = View {
                    interfaces: &mut self.interfaces,
                    big_endian: &mut self.big_endian,
                    nanoseconds: &mut self.nanoseconds,
                    statistics: &mut self.statistics,
                };
                (consumed, view.take(block))
            }
            Err(PcapError::Eof) => return Ok(false),
            // All bytes of the block are in the buffer, so its inner lengths are wrong.
            Err(PcapError::Incomplete(_) | PcapError::BufferTooSmall | PcapError::UnexpectedEof) if complete => {
                return Err(CaptureError::Corrupt { offset, what: CONTRADICTION });
            }
            Err(PcapError::Incomplete(_)) => return self.refill(offset).map(|()| true),
            Err(PcapError::BufferTooSmall) => {
                if self.capacity >= MAX_BUFFER {
                    return Err(CaptureError::Corrupt { offset, what: TOO_LONG });
                }
                self.capacity *= 2;
                self.blocks.grow(self.capacity);
                return self.refill(offset).map(|()| true);
            }
            Err(PcapError::UnexpectedEof) => return Err(CaptureError::Truncated { offset }),
            Err(PcapError::ReadError) => return Err(CaptureError::Read { offset }),
            Err(_) => return Err(CaptureError::Corrupt { offset, what: CONTRADICTION }),
        };
        if consumed == 0 {
            return Err(CaptureError::Corrupt { offset, what: "it has no length" });
        }
        self.blocks.consume(consumed);
        match outcome {
            Ok(frame) => self.ready.extend(frame),
            Err(what) => return Err(CaptureError::Corrupt { offset, what }),
        }
        Ok(true)
    }

    /// Whether all of the next pcapng block is in the buffer. An error for lengths that the parser cannot handle.
    fn block_is_complete(&self) -> Result<bool, &'static str> {
        let data = self.blocks.data();
        let (Some(kind), Some(len)) = (word(data, 0), word(data, 4)) else { return Ok(false) };
        if !self.is_pcapng {
            return Ok(false);
        }
        let big_endian = match word(data, 8) {
            // A section has its own byte order.
            Some(magic) if kind == SECTION_HEADER => u32::from_be_bytes(magic) == BYTE_ORDER_MAGIC,
            _ => self.big_endian,
        };
        let len = if big_endian { u32::from_be_bytes(len) } else { u32::from_le_bytes(len) } as usize;
        match len {
            ..MIN_BLOCK => Err("its length is less than a block's"),
            MIN_BLOCK..=MAX_BUFFER => Ok(data.len() >= len),
            _ => Err(TOO_LONG),
        }
    }

    fn refill(&mut self, offset: usize) -> Result<(), CaptureError> {
        self.blocks.refill().map_err(|_| CaptureError::Read { offset })
    }
}

impl Iterator for Reader {
    type Item = Result<Frame, CaptureError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(frame) = self.ready.pop_front() {
                return Some(Ok(frame));
            }
            if self.ended {
                return None;
            }
            match self.step() {
                Ok(true) => {}
                Ok(false) => self.ended = true,
                Err(error) => {
                    self.ended = true;
                    return Some(Err(error));
                }
            }
        }
    }
}

/// The fields of a reader that a block changes; separate, because the block borrows the others.
struct View<'a> {
    interfaces: &'a mut Vec<Interface>,
    big_endian: &'a mut bool,
    nanoseconds: &'a mut bool,
    statistics: &'a mut Statistics,
}

impl View<'_> {
    fn take(&mut self, block: PcapBlockOwned<'_>) -> Result<Option<Frame>, &'static str> {
        match block {
            PcapBlockOwned::LegacyHeader(header) => {
                *self.nanoseconds = header.is_nanosecond_precision();
                // The upper bits of the field are the length of the FCS.
                let link_type = header.network.0 as u32 as u16;
                self.interfaces.push(Interface { link_type, resolution: 0, offset: 0 });
                Ok(None)
            }
            PcapBlockOwned::Legacy(packet) => {
                let interface = *self.interfaces.first().ok_or("it comes before the file's header")?;
                let unit = if *self.nanoseconds { 1 } else { 1000 };
                let timestamp = u64::from(packet.ts_sec) * 1_000_000_000 + u64::from(packet.ts_usec) * unit;
                Ok(Some(frame(interface.link_type, timestamp, packet.data, packet.origlen as usize)))
            }
            PcapBlockOwned::NG(Block::SectionHeader(section)) => {
                *self.big_endian = section.big_endian();
                self.interfaces.clear();
                Ok(None)
            }
            PcapBlockOwned::NG(Block::InterfaceDescription(block)) => {
                self.interfaces.push(interface(&block)?);
                Ok(None)
            }
            PcapBlockOwned::NG(Block::EnhancedPacket(block)) => self.enhanced_packet(&block).map(Some),
            PcapBlockOwned::NG(Block::SimplePacket(block)) => {
                let interface = *self.interfaces.first().ok_or("it names an interface that is not described")?;
                Ok(Some(frame(interface.link_type, 0, block.packet_data(), block.orig_len() as usize)))
            }
            PcapBlockOwned::NG(Block::InterfaceStatistics(block)) => {
                self.interface_statistics(&block);
                Ok(None)
            }
            PcapBlockOwned::NG(_) => Ok(None),
        }
    }

    fn enhanced_packet(&self, block: &EnhancedPacketBlock<'_>) -> Result<Frame, &'static str> {
        let interface =
            *self.interfaces.get(block.if_id as usize).ok_or("it names an interface that is not described")?;
        let ticks = u64::from(block.ts_high) << 32 | u64::from(block.ts_low);
        let mut frame =
            frame(interface.link_type, interface.nanoseconds(ticks), block.packet_data(), block.origlen as usize);
        for option in &block.options {
            match option.code {
                OptionCode::Comment => {
                    let text = String::from_utf8_lossy(option.as_bytes().unwrap_or_default()).into_owned();
                    frame.comment = Some(match frame.comment.take() {
                        Some(before) => format!("{before}; {text}"),
                        None => text,
                    });
                }
                EPB_FLAGS => {
                    frame.direction = match self.unsigned(option).unwrap_or(0) & 3 {
                        1 => Some(Direction::In),
                        2 => Some(Direction::Out),
                        _ => None,
                    }
                }
                _ => {}
            }
        }
        Ok(frame)
    }

    fn interface_statistics(&mut self, block: &InterfaceStatisticsBlock<'_>) {
        for option in &block.options {
            match option.code {
                OptionCode::IsbIfRecv => self.statistics.received = self.unsigned(option),
                OptionCode::IsbIfDrop => self.statistics.dropped = self.unsigned(option),
                _ => {}
            }
        }
    }

    fn unsigned(&self, option: &PcapNGOption<'_>) -> Option<u64> {
        unsigned(option, *self.big_endian)
    }
}

/// `epb_flags`; the parser has no name for it, because other blocks use its number for other options.
const EPB_FLAGS: OptionCode = OptionCode(2);

impl Interface {
    fn nanoseconds(&self, ticks: u64) -> u64 {
        let nanoseconds = u128::from(ticks) * 1_000_000_000 / u128::from(self.resolution.max(1));
        (nanoseconds as u64).wrapping_add_signed(self.offset.wrapping_mul(1_000_000_000))
    }
}

fn interface(block: &InterfaceDescriptionBlock<'_>) -> Result<Interface, &'static str> {
    // The parser's `ts_resolution` does not accept powers of two.
    let exponent = u32::from(block.if_tsresol & 0x7f);
    let base = if block.if_tsresol & 0x80 == 0 { 10u64 } else { 2 };
    let resolution = base.checked_pow(exponent).ok_or("its time resolution is too fine")?;
    let offset = block
        .options
        .iter()
        .find(|option| option.code == OptionCode::IfTsoffset)
        .and_then(|option| unsigned(option, block.block_type != IDB_MAGIC))
        .unwrap_or(0);
    Ok(Interface { link_type: block.linktype.0 as u16, resolution, offset: offset as i64 })
}

fn word(data: &[u8], at: usize) -> Option<[u8; 4]> {
    data.get(at..)?.first_chunk().copied()
}

/// The value of an option of 4 or 8 bytes.
fn unsigned(option: &PcapNGOption<'_>, big_endian: bool) -> Option<u64> {
    let bytes = option.as_bytes().ok()?;
    if let Ok(bytes) = <[u8; 4]>::try_from(bytes) {
        return Some(u64::from(if big_endian { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) }));
    }
    let bytes = <[u8; 8]>::try_from(bytes).ok()?;
    Some(if big_endian { u64::from_be_bytes(bytes) } else { u64::from_le_bytes(bytes) })
}

fn frame(link_type: u16, timestamp: u64, data: &[u8], orig_len: usize) -> Frame {
    let plain = Frame {
        timestamp,
        link_type: LinkType::from_number(link_type),
        data: Vec::new(),
        orig_len,
        direction: None,
        comment: None,
    };
    match erf::unwrap(data).filter(|_| link_type == LINKTYPE_ERF) {
        Some(record) => Frame {
            timestamp: record.timestamp,
            link_type: record.link_type,
            data: record.data.to_vec(),
            orig_len: record.orig_len,
            ..plain
        },
        None => Frame { data: data.to_vec(), ..plain },
    }
}
