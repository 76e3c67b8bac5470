//! Records from a data path that must never block: frames become blocks of the file in a batch, and go through a ring
//! of fixed size to a thread that writes them.
//!
//! Frames that do not fit into the ring are counted and dropped. Only complete blocks are written, at least every 20
//! ms, so that a process that SIGKILL ends loses only its last frames and leaves a readable file. A process that ends
//! otherwise can have its last frames written before ([`flush_all`](crate::flush_all)).
//!
//! A recorder with a history ([`Recorder::remember`]) writes nothing until a mark says that something happened; see
//! `history.rs`. Each mark begins a section of the file, with the mark as its comment, until the eighth.

use crate::amount::HistorySize;
use crate::block::{self, PacketInfo, RecordedInterface};
use crate::drain::{Blocks, Drain, Open, OwnedInfo, Section, wall_clock};
use crate::history::{History, Text, count_blocks, push_blocks};
use crate::kept::Descriptors;
use crate::shared::{Ending, Shared};
use crate::wake;
use rtrb::{Consumer, Producer, RingBuffer};
use std::fmt::{self, Write};
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

/// Default size of the ring, bytes.
pub const DEFAULT_RING: usize = 8 << 20;

/// Starts a detached thread.
pub type Spawn = fn(Box<dyn FnOnce() + Send>) -> io::Result<()>;

/// Options of a recorder.
#[derive(Clone, Copy, Debug)]
pub struct RecorderOptions<'a> {
    /// The interfaces, for the file; packets name one by its place ([`PacketInfo::interface`]). None: one without a name.
    pub interfaces: &'a [RecordedInterface<'a>],
    /// Description of each interface, for the file.
    pub description: &'a str,
    /// Name of the capturing program, for the file.
    pub application: &'a str,
    /// Size of the ring, bytes; a larger ring bridges longer waits for the disk.
    pub ring: usize,
    /// The most bytes that are kept of a frame, for the file; 0 = no limit.
    pub snap: u32,
    /// Starts the thread that writes.
    pub spawn: Spawn,
    /// What is told of descriptors, and asked.
    pub descriptors: Descriptors,
}

/// Numbers of recorded and of dropped frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recorded {
    /// Frames in the file.
    pub written: u64,
    /// Frames that could not be written.
    pub dropped: u64,
}

/// Takes frames without blocking or allocating.
pub struct Recorder {
    ring: Producer<u8>,
    /// Blocks that are not yet in the ring.
    batch: Vec<u8>,
    history: Option<History>,
    shared: Arc<Shared>,
    finished: bool,
    process: u32,
}

/// Bytes of a batch; the longest block fits.
const BATCH: usize = 128 << 10;
/// A batch goes to the ring when it has so many bytes: they are still in the cache.
const FULL_BATCH: usize = 16 << 10;

impl Default for RecorderOptions<'_> {
    fn default() -> Self {
        RecorderOptions {
            interfaces: &[],
            description: "",
            application: "weir",
            ring: DEFAULT_RING,
            snap: 0,
            spawn: |body| std::thread::Builder::new().name("weir-capture".into()).spawn(body).map(drop),
            descriptors: Descriptors::default(),
        }
    }
}

impl Recorder {
    /// Creates the file, replacing an old one, and starts the thread that writes it. The thread inherits the signal
    /// mask, so the caller must block all signals during this call, unless [`RecorderOptions::spawn`] does.
    pub fn create(path: &Path, options: &RecorderOptions<'_>) -> io::Result<Self> {
        let file = Blocks::new(File::create(path)?, options.descriptors);
        let (ring, source) = RingBuffer::new(options.ring.max(1 << 12).next_multiple_of(4));
        let opened = Box::new(|| Err(io::ErrorKind::Unsupported.into()));
        Self::start(
            options,
            ring,
            Sources { open: opened, file: Some(file), source: Some(source), history: None },
            None,
        )
    }

    /// Keeps the last `size` bytes of blocks in memory. The file is opened at the first mark. Error: the memory is not
    /// available.
    pub fn remember(open: Open, size: HistorySize, options: &RecorderOptions<'_>) -> io::Result<Self> {
        let keep = size.bytes().next_multiple_of(4);
        let (ring, source) = allocate(size)?;
        let sources = Sources { open, file: None, source: None, history: Some(keep) };
        Self::start(options, ring, sources, Some(History::new(keep, source)))
    }

    fn start(
        options: &RecorderOptions<'_>,
        ring: Producer<u8>,
        sources: Sources,
        history: Option<History>,
    ) -> io::Result<Self> {
        let (waker, sleeper) = wake::pair(options.descriptors)?;
        let shared = Arc::new(Shared::new(waker));
        let Sources { open, file, source, history: keep } = sources;
        let mut drain = Drain {
            shared: shared.clone(),
            sleeper,
            info: OwnedInfo {
                interfaces: options.interfaces.iter().map(|one| (one.name.into(), one.mac)).collect(),
                description: options.description.into(),
                application: options.application.into(),
                snap: options.snap,
            },
            open,
            descriptors: options.descriptors,
            source,
            file,
            history: keep,
            section: Section::default(),
            excerpts: 0,
            failure: None,
        };
        if keep.is_none() {
            drain.start("", u64::MAX);
            if let Some(error) = drain.failure {
                return Err(error);
            }
        }
        let ending = Ending(shared.clone());
        (options.spawn)(Box::new(move || {
            let outcome = drain.run();
            ending.0.note_end(outcome);
        }))?;
        shared.enlist();
        let batch = Vec::with_capacity(BATCH);
        Ok(Recorder { ring, batch, history, shared, finished: false, process: std::process::id() })
    }

    /// Records a frame, given as slices; false if the ring has no room for it.
    pub fn record(&mut self, info: &PacketInfo<'_>, slices: &[&[u8]]) -> bool {
        let original = slices.iter().map(|slice| slice.len()).sum();
        self.add(info, original, slices) && self.commit()
    }

    /// Adds a frame of `original` bytes, of which the slices are kept, to the batch; false if it is too long.
    #[inline]
    pub fn add(&mut self, info: &PacketInfo<'_>, original: usize, slices: &[&[u8]]) -> bool {
        let mut marked: Text;
        let mut info = *info;
        if let Some(history) = &mut self.history {
            if !history.records() {
                return false;
            }
            if let Some(mark) = history.take_mark() {
                marked = mark;
                if !info.comment.is_empty() {
                    let _ = write!(marked, "; {}", info.comment);
                }
                info.comment = marked.as_str();
            }
        }
        let most = block::most(slices.iter().map(|slice| slice.len()).sum(), info.comment.len());
        if most > BATCH || self.finished {
            self.shared.dropped.fetch_add(1, Ordering::Relaxed);
            return false;
        }
        if self.batch.len() >= FULL_BATCH || self.batch.len() + most > BATCH {
            self.commit();
        }
        block::packet(&mut self.batch, &info, original, slices);
        true
    }

    /// Moves the batch to the ring; false if some frames did not fit.
    pub fn commit(&mut self) -> bool {
        if self.batch.is_empty() {
            return true;
        }
        if let Some(history) = &mut self.history {
            if history.look_for_return(&self.shared.handover) {
                self.shared.waker.wake();
            }
            history.make_room(self.batch.len());
        }
        let mut dropped = 0;
        if self.ring.push_entire_slice(&self.batch).is_err() {
            dropped = count_blocks(push_blocks(&mut self.ring, &self.batch));
            self.shared.dropped.fetch_add(dropped, Ordering::Relaxed);
        }
        self.batch.clear();
        if self.history.as_ref().is_none_or(History::is_read) {
            // Pairs with the fence in `Drain::sleep`: either this thread sees `asleep`, or the other sees the frames.
            fence(Ordering::SeqCst);
            let asleep =
                self.shared.asleep.load(Ordering::Relaxed) && self.shared.asleep.swap(false, Ordering::Relaxed);
            let is_half_full = || self.ring.slots() < self.ring.buffer().capacity() / 2;
            if asleep || (is_half_full() && !self.shared.nudged.swap(true, Ordering::Relaxed)) {
                self.shared.waker.wake();
            }
        }
        dropped == 0
    }

    /// Something happened that the history is for: it is written, with `what` as a comment. Without a history it does
    /// nothing.
    pub fn mark(&mut self, what: &dyn fmt::Display) {
        if self.history.is_none() {
            return;
        }
        self.commit();
        let Some(history) = &mut self.history else { return };
        let handover = &self.shared.handover;
        let returned = history.look_for_return(handover);
        if history.set_mark(handover, what, wall_clock()) || returned {
            self.shared.waker.wake();
        }
    }

    /// Numbers of frames so far.
    pub fn recorded(&self) -> Recorded {
        Recorded {
            written: self.shared.written.load(Ordering::Relaxed),
            dropped: self.shared.dropped.load(Ordering::Relaxed),
        }
    }

    /// Writes all frames in the ring, ends the thread and closes the file. It waits for the disk; later frames are
    /// dropped. In a forked child it does nothing, because the thread exists only in the parent.
    pub fn finish(&mut self) -> io::Result<Recorded> {
        if self.finished || std::process::id() != self.process {
            return Ok(self.recorded());
        }
        self.commit();
        self.finished = true;
        self.shared.strike();
        self.shared.stop.store(true, Ordering::Release);
        self.shared.waker.wake();
        self.shared.wait_for_end()?;
        Ok(self.recorded())
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        // Callers that need the error call `finish`.
        let _ = self.finish();
    }
}

/// What a recorder's thread writes, and where.
struct Sources {
    open: Open,
    file: Option<Blocks>,
    source: Option<Consumer<u8>>,
    history: Option<usize>,
}

/// A ring for a history of this size. Its pages are present, so that the data path meets no page fault.
fn allocate(size: HistorySize) -> io::Result<(Producer<u8>, Consumer<u8>)> {
    // The ring's own allocation ends the process if it fails.
    size.check_memory().map_err(|error| io::Error::new(io::ErrorKind::OutOfMemory, error))?;
    let total = size.ring();
    let (mut ring, mut source) = RingBuffer::new(total);
    if let Ok(chunk) = ring.write_chunk(total) {
        chunk.commit_all();
    }
    if let Ok(chunk) = source.read_chunk(total) {
        chunk.commit_all();
    }
    Ok((ring, source))
}
