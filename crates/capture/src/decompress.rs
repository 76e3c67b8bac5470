//! Compressed captures: gzip and zstd, recognised by their first bytes.
//!
//! Both decoders are Rust code, because this crate is part of the library that programs load: no C library joins it.

use flate2::read::MultiGzDecoder;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};
use std::io::{self, BufRead, BufReader, Read};

/// The contents of a file: decompressed if it is compressed.
pub(crate) fn contents(mut source: impl Read + Send + 'static) -> Box<dyn Read + Send> {
    let mut start = Vec::new();
    let outcome = source.by_ref().take(ZSTD_MAGIC.len() as u64).read_to_end(&mut start);
    let source = Prefixed { start: io::Cursor::new(start), failure: outcome.err(), source };
    let start = source.start.get_ref();
    if is_gzip(start) {
        Box::new(MultiGzDecoder::new(BufReader::with_capacity(BUFFER, source)))
    } else if is_zstd(start) {
        let source = BufReader::with_capacity(BUFFER, source);
        Box::new(Zstd { source, decoder: FrameDecoder::new(), in_frame: false })
    } else {
        Box::new(source)
    }
}

const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// Buffer of compressed bytes.
const BUFFER: usize = 1 << 16;

/// Whether a file that starts so is compressed.
pub(crate) fn is_compressed(start: &[u8]) -> bool {
    is_gzip(start) || is_zstd(start)
}

fn is_gzip(start: &[u8]) -> bool {
    start.starts_with(&GZIP_MAGIC)
}

/// A frame of zstd, or one without contents: parallel compressors write one first.
fn is_zstd(start: &[u8]) -> bool {
    start.starts_with(&ZSTD_MAGIC) || matches!(start, [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..])
}

/// A source of which the first bytes were read already.
struct Prefixed<R> {
    start: io::Cursor<Vec<u8>>,
    /// Why no more of them could be read.
    failure: Option<io::Error>,
    source: R,
}

impl<R: Read> Read for Prefixed<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self.start.read(buffer)? {
            0 if !buffer.is_empty() => self.failure.take().map_or_else(|| self.source.read(buffer), Err),
            count => Ok(count),
        }
    }
}

/// Decompresses the frames of a zstd file in turn. The decoder refuses windows of more than 128 MiB.
struct Zstd<R> {
    source: BufReader<R>,
    decoder: FrameDecoder,
    in_frame: bool,
}

impl<R: Read> Read for Zstd<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if !self.in_frame && !self.next_frame()? {
                return Ok(0);
            }
            while self.decoder.can_collect() == 0 && !self.decoder.is_finished() {
                let outcome = self.decoder.decode_blocks(&mut self.source, BlockDecodingStrategy::UptoBlocks(1));
                outcome.map_err(|error| self.failure(error))?;
            }
            let count = self.decoder.read(buffer)?;
            if count > 0 || buffer.is_empty() {
                return Ok(count);
            }
            if self.decoder.is_finished() {
                self.in_frame = false;
                let [stored, computed] =
                    [self.decoder.get_checksum_from_data(), self.decoder.get_calculated_checksum()];
                if stored.is_some() && stored != computed {
                    return Err(io::Error::new(io::ErrorKind::InvalidData, "the checksum of its zstd frame is wrong"));
                }
            }
        }
    }
}

impl<R: Read> Zstd<R> {
    /// Begins the next frame; false at the end of the file.
    fn next_frame(&mut self) -> io::Result<bool> {
        while !self.source.fill_buf()?.is_empty() {
            match self.decoder.reset(&mut self.source) {
                Ok(()) => {
                    self.in_frame = true;
                    return Ok(true);
                }
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame { length, .. })) => {
                    io::copy(&mut self.source.by_ref().take(length.into()), &mut io::sink())?;
                }
                Err(error) => return Err(self.failure(error)),
            }
        }
        Ok(false)
    }

    /// The decoder does not tell a file that is cut from a damaged one.
    fn failure(&mut self, error: FrameDecoderError) -> io::Error {
        let kind = match self.source.fill_buf() {
            Ok([]) => io::ErrorKind::UnexpectedEof,
            Ok(_) => io::ErrorKind::InvalidData,
            Err(failure) => return failure,
        };
        io::Error::new(kind, error)
    }
}
