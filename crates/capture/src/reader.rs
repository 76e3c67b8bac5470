//! Reads the frames of a capture file: pcap (µs and ns, both byte orders), pcapng, and ERF records in them.
//!
//! The blocks are parsed here and not by a library, so that a frame is a view of the buffer: nothing is copied or
//! allocated for a packet.

use crate::error::CaptureError;
use crate::frame::{Direction, Frame, LINKTYPE_ERF, LinkType, OwnedFrame};
use crate::input::{Input, MAX_RECORD};
use crate::mapped::Mapped;
use crate::pcap::{FILE_HEADER, Pcap};
use crate::pcapng::{BLOCK_START, Block, Pcapng, SECTION_HEADER, Statistics};
use crate::record::Record;
use crate::{decompress, erf};
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Opens a capture file, or standard input for the path `-`.
pub fn open(path: impl AsRef<Path>) -> Result<Reader, CaptureError> {
    let path = path.as_ref();
    if path == "-" {
        // `Stdin` would copy all bytes through a buffer of its own.
        return Reader::new(dup(io::stdin()).map_err(|source| CaptureError::Open { path: path.into(), source })?);
    }
    let file = File::open(path).map_err(|source| CaptureError::Open { path: path.into(), source })?;
    match Mapped::new(&file).filter(|file| !decompress::is_compressed(file.bytes())) {
        Some(file) => Reader::of(Input::mapped(file), None),
        None => Reader::new(file),
    }
}

/// The frames of a capture file, in the file's order.
pub struct Reader {
    input: Input,
    format: Format,
    /// Number of the last frame.
    number: u64,
    ended: bool,
    /// Bytes read from a source that is no file in memory.
    position: Option<Arc<AtomicU64>>,
}

enum Format {
    Pcap(Pcap),
    Pcapng(Pcapng),
}

impl Reader {
    /// Reads from any source. A compressed one is decompressed.
    pub fn new(source: impl Read + Send + 'static) -> Result<Self, CaptureError> {
        let position = Arc::<AtomicU64>::default();
        let counted = Counted { source, position: position.clone() };
        Reader::of(Input::new(decompress::contents(counted)), Some(position))
    }

    fn of(mut input: Input, position: Option<Arc<AtomicU64>>) -> Result<Self, CaptureError> {
        let format = format(&mut input)?;
        Ok(Reader { input, format, number: 0, ended: false, position })
    }

    /// The next frame; `None` at the end of the file and after an error.
    #[inline]
    pub fn next_frame(&mut self) -> Result<Option<Frame<'_>>, CaptureError> {
        if self.ended {
            return Ok(None);
        }
        let record = match &mut self.format {
            Format::Pcap(pcap) => pcap_record(pcap, &mut self.input),
            Format::Pcapng(pcapng) => pcapng_record(pcapng, &mut self.input, &mut self.number),
        };
        let (start, record) = match record {
            Ok(Some(found)) if !self.input.has_failed() => found,
            other => {
                self.ended = true;
                self.input.check();
                let why = if self.input.has_failed() { ends(&mut self.input) } else { other };
                return why.map(|_| None);
            }
        };
        self.number += 1;
        Ok(Some(self.frame(start, &record)))
    }

    /// Copies of all frames that follow. After an error no more come.
    pub fn owned_frames(&mut self) -> impl Iterator<Item = Result<OwnedFrame, CaptureError>> {
        std::iter::from_fn(|| self.next_frame().map(|frame| frame.map(|frame| frame.to_owned())).transpose())
    }

    /// The latest interface statistics read so far.
    pub fn statistics(&self) -> Statistics {
        match &self.format {
            Format::Pcap(_) => Statistics::default(),
            Format::Pcapng(pcapng) => pcapng.statistics,
        }
    }

    /// Bytes of the file that were read so far, for a progress bar; of a compressed file its compressed bytes.
    pub fn position(&self) -> u64 {
        self.position.as_ref().map_or(self.input.offset(), |position| position.load(Ordering::Relaxed))
    }

    /// The frame of a record at `start` in the input's buffer.
    #[inline]
    fn frame(&self, start: usize, record: &Record) -> Frame<'_> {
        let bytes = |range: &std::ops::Range<usize>| self.input.taken(start + range.start..start + range.end);
        let options = match &self.format {
            Format::Pcapng(pcapng) => pcapng.options(bytes(&record.options)),
            Format::Pcap(_) => Default::default(),
        };
        let data = bytes(&record.data);
        let mut frame = Frame {
            number: self.number,
            timestamp: record.timestamp,
            link_type: LinkType::from_number(record.link_type),
            interface: record.interface,
            data,
            orig_len: record.orig_len,
            direction: record.direction,
            options,
        };
        match frame.link_type {
            LinkType::Other(LINKTYPE_ERF) => {
                if let Some(inner) = erf::unwrap(data) {
                    frame.timestamp = inner.timestamp;
                    frame.link_type = inner.link_type;
                    frame.data = inner.data;
                    frame.orig_len = inner.orig_len;
                }
            }
            LinkType::Cooked => frame.direction = frame.direction.or(cooked_direction(data.get(1))),
            LinkType::Cooked2 => frame.direction = frame.direction.or(cooked_direction(data.get(10))),
            _ => {}
        }
        frame
    }
}

/// The format of a file, by its first bytes. The header of a pcap file is taken.
fn format(input: &mut Input) -> Result<Format, CaptureError> {
    let is_there = input.fill(FILE_HEADER);
    if input.ready().starts_with(&SECTION_HEADER) {
        return Ok(Format::Pcapng(Pcapng::default()));
    }
    let mut header = [0; FILE_HEADER];
    let len = FILE_HEADER.min(input.ready().len());
    header[..len].copy_from_slice(&input.ready()[..len]);
    let Some(pcap) = Pcap::parse(&header) else {
        return Err(match input.failure() {
            Some(source) if source.kind() != io::ErrorKind::UnexpectedEof => CaptureError::Read { offset: 0, source },
            _ if len == 0 => CaptureError::Empty,
            _ => CaptureError::NotACapture { start: header[..len.min(8)].to_vec() },
        });
    };
    if !is_there {
        return ends(input).and(Err(CaptureError::Truncated { offset: 0 }));
    }
    input.take(FILE_HEADER);
    Ok(Format::Pcap(pcap))
}

/// A record and its place in the buffer.
type Found = Result<Option<(usize, Record)>, CaptureError>;

const TOO_LONG: &str = "its length is too large";
const CHANGED: &str = "it was changed while it was read";

#[inline]
fn pcap_record(pcap: &Pcap, input: &mut Input) -> Found {
    if !input.fill(pcap.record_header) {
        return ends(input);
    }
    let Some(header) = input.ready().first_chunk::<16>() else { return ends(input) };
    let data_len = pcap.data_len(header);
    if data_len > MAX_RECORD {
        return Err(CaptureError::Corrupt { offset: input.offset(), what: TOO_LONG });
    }
    let len = pcap.record_header + data_len;
    if !input.fill(len) {
        return ends(input);
    }
    let Some(header) = input.ready().first_chunk::<16>() else { return ends(input) };
    let record = pcap.record(header);
    // A file in memory may have been changed since its length was read.
    if record.data.end != len {
        return Err(CaptureError::Corrupt { offset: input.offset(), what: CHANGED });
    }
    Ok(Some((input.take(len).start, record)))
}

#[inline]
fn pcapng_record(pcapng: &mut Pcapng, input: &mut Input, number: &mut u64) -> Found {
    loop {
        if !input.fill(BLOCK_START) {
            return ends(input);
        }
        let Some(start) = input.ready().first_chunk() else { return ends(input) };
        let len = pcapng.length(start).and_then(|len| if len > MAX_RECORD { Err(TOO_LONG) } else { Ok(len) });
        let len = len.map_err(|what| CaptureError::Corrupt { offset: input.offset(), what })?;
        if !input.fill(len) {
            return ends(input);
        }
        let block = pcapng.block(&input.ready()[..len]);
        let block = block.map_err(|what| CaptureError::Corrupt { offset: input.offset(), what })?;
        let taken = input.take(len);
        match block {
            Block::Packet(record) => return Ok(Some((taken.start, record))),
            Block::Numbered => *number += 1,
            Block::Other => {}
        }
    }
}

/// The file ends here: between two records, or with an error.
#[cold]
fn ends(input: &mut Input) -> Found {
    let offset = input.offset();
    match input.failure() {
        Some(error) if error.kind() == io::ErrorKind::UnexpectedEof => Err(CaptureError::Truncated { offset }),
        Some(source) => Err(CaptureError::Read { offset, source }),
        None if input.ready().is_empty() => Ok(None),
        None => Err(CaptureError::Truncated { offset }),
    }
}

/// The direction by the low byte of the packet type of a cooked header.
fn cooked_direction(packet_type: Option<&u8>) -> Option<Direction> {
    match packet_type? {
        0..=2 => Some(Direction::In),
        4 => Some(Direction::Out),
        _ => None,
    }
}

/// Standard input as a file.
fn dup(stdin: io::Stdin) -> io::Result<File> {
    use std::os::fd::AsFd;
    stdin.as_fd().try_clone_to_owned().map(File::from)
}

/// Counts the bytes that are read.
struct Counted<R> {
    source: R,
    position: Arc<AtomicU64>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.source.read(buffer)?;
        self.position.fetch_add(count as u64, Ordering::Relaxed);
        Ok(count)
    }
}
