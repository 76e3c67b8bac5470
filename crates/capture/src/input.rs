//! The bytes of a file in a buffer or a mapping, of which the parser takes records without copying them.

use crate::mapped::Mapped;
use std::io::{self, Read};
use std::ops::Range;

/// Limit of a record's length, so that a damaged length cannot use up all memory.
pub(crate) const MAX_RECORD: usize = 1 << 24;
/// Small enough to stay in the processor's second-level cache.
const INITIAL: usize = 1 << 18;
/// So much of a mapping is ready at a time, and stays in memory behind it.
const WINDOW: usize = 1 << 22;

/// A source and the bytes that were read from it.
pub(crate) struct Input {
    source: Source,
    /// The bytes that were read and not consumed.
    ready: Range<usize>,
    /// Offset in the file of the start of `ready`.
    offset: u64,
    /// Why no more bytes come.
    end: Option<End>,
}

enum Source {
    Stream { source: Box<dyn Read + Send>, buffer: Vec<u8> },
    Mapped(Mapped),
}

enum End {
    Regular,
    Failed(io::Error),
}

impl Input {
    pub(crate) fn new(source: Box<dyn Read + Send>) -> Self {
        Input::of(Source::Stream { source, buffer: vec![0; INITIAL] })
    }

    /// Of a file in memory.
    pub(crate) fn mapped(file: Mapped) -> Self {
        Input::of(Source::Mapped(file))
    }

    fn of(source: Source) -> Self {
        Input { source, ready: 0..0, offset: 0, end: None }
    }

    /// Offset in the file of the next byte.
    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    /// The bytes that are in the buffer.
    #[inline]
    pub(crate) fn ready(&self) -> &[u8] {
        self.taken(self.ready.clone())
    }

    /// Reads until `len` bytes are ready; false if the file ends before.
    #[inline]
    pub(crate) fn fill(&mut self, len: usize) -> bool {
        self.ready.len() >= len || self.read(len)
    }

    /// Takes `len` bytes that are ready. They stay in the buffer until the next [`Input::fill`].
    #[inline]
    pub(crate) fn take(&mut self, len: usize) -> Range<usize> {
        let taken = self.ready.start..self.ready.start + len;
        self.ready.start = taken.end;
        self.offset += len as u64;
        taken
    }

    /// Bytes that were taken.
    #[inline]
    pub(crate) fn taken(&self, range: Range<usize>) -> &[u8] {
        match &self.source {
            Source::Stream { buffer, .. } => &buffer[range],
            Source::Mapped(file) => &file.bytes()[range],
        }
    }

    /// Whether bytes that were ready are not the file's: it became shorter, or its disk failed.
    #[inline]
    pub(crate) fn has_failed(&self) -> bool {
        matches!(&self.source, Source::Mapped(file) if file.has_failed())
    }

    /// Notices that a file in memory became shorter.
    pub(crate) fn check(&self) {
        if let Source::Mapped(file) = &self.source {
            file.check();
        }
    }

    /// Why the source failed, if it did.
    pub(crate) fn failure(&mut self) -> Option<io::Error> {
        if self.has_failed() {
            return Some(io::Error::other("it became shorter while it was read, or its disk failed"));
        }
        match self.end.take() {
            Some(End::Failed(error)) => {
                self.end = Some(End::Regular);
                Some(error)
            }
            other => {
                self.end = other;
                None
            }
        }
    }

    #[cold]
    #[inline(never)]
    fn read(&mut self, len: usize) -> bool {
        let (source, buffer) = match &mut self.source {
            Source::Stream { source, buffer } => (source, buffer),
            Source::Mapped(file) => {
                file.release(self.ready.start);
                let least = self.ready.start + len;
                if file.bytes().len() < least
                    && let Err(error) = file.grow()
                {
                    self.end = Some(End::Failed(error));
                }
                file.check();
                self.ready.end = file.bytes().len().min(least.next_multiple_of(WINDOW));
                return self.ready.len() >= len;
            }
        };
        buffer.copy_within(self.ready.clone(), 0);
        self.ready = 0..self.ready.len();
        if len > buffer.len() {
            buffer.resize(len.next_power_of_two(), 0);
        }
        while self.ready.len() < len && self.end.is_none() {
            match source.read(&mut buffer[self.ready.end..]) {
                Ok(0) => self.end = Some(End::Regular),
                Ok(count) => self.ready.end += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => self.end = Some(End::Failed(error)),
            }
        }
        self.ready.len() >= len
    }
}
