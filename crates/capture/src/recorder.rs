//! Records from a data path that must never block: frames go through a ring of fixed size to a thread that writes them.
//!
//! Frames that do not fit into the ring are counted and dropped. Only complete blocks are written, at least every
//! 20 ms, so that a process that SIGKILL ends loses only its last frames and leaves a readable file. A process that ends
//! otherwise can have its last frames written before ([`flush_all`]).

use crate::frame::Direction;
use crate::writer::{InterfaceInfo, PacketInfo, Writer};
use rtrb::{Consumer, Producer, RingBuffer};
use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Default size of the ring, bytes.
pub const DEFAULT_RING: usize = 8 << 20;

/// Options of a recorder.
#[derive(Clone, Copy, Debug)]
pub struct RecorderOptions<'a> {
    /// Interface name, for the file.
    pub interface: &'a str,
    /// Description of the interface, for the file.
    pub description: &'a str,
    /// Name of the capturing program, for the file.
    pub application: &'a str,
    /// Size of the ring, bytes; a larger ring bridges longer waits for the disk.
    pub ring: usize,
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
    shared: Arc<Shared>,
    thread: Option<JoinHandle<io::Result<()>>>,
    process: u32,
}

/// State that the recorder and its thread share.
#[derive(Default)]
struct Shared {
    written: AtomicU64,
    dropped: AtomicU64,
    /// The writing thread is about to park without a timeout.
    asleep: AtomicBool,
    /// The writing thread has been woken because the ring is half full.
    nudged: AtomicBool,
    stop: AtomicBool,
    /// How often a flush was asked for, and the last of these that is done.
    asked: AtomicU64,
    flushed: AtomicU64,
    /// The writing thread, and the process that it is in.
    writer: OnceLock<Thread>,
    process: AtomicU32,
}

/// The recorders of this process: their frames are written before it ends.
static OPEN: Mutex<Vec<Arc<Shared>>> = Mutex::new(Vec::new());
/// Longest wait of `flush_all` for the disk.
const LONGEST_WAIT: Duration = Duration::from_millis(500);

/// Writes what all recorders of this process hold, because it is about to end. Waits half a second at most. Takes no
/// lock that it would have to wait for, and allocates nothing: a signal handler may call it. `pause` waits some
/// microseconds.
pub fn flush_all(pause: impl Fn()) {
    let Ok(open) = OPEN.try_lock() else { return };
    let began = Instant::now();
    for shared in open.iter().filter(|shared| shared.process.load(Ordering::Relaxed) == std::process::id()) {
        let ticket = shared.asked.fetch_add(1, Ordering::AcqRel) + 1;
        if let Some(writer) = shared.writer.get() {
            writer.unpark();
        }
        while shared.flushed.load(Ordering::Acquire) < ticket && began.elapsed() < LONGEST_WAIT {
            pause();
        }
    }
}

/// Length of an entry's header in the ring: two lengths, time, direction.
const ENTRY: usize = 4 + 4 + 8 + 8;
const FLUSH_EVERY: Duration = Duration::from_millis(10);
const LOOK_EVERY: Duration = Duration::from_millis(5);

impl Default for RecorderOptions<'_> {
    fn default() -> Self {
        RecorderOptions { interface: "", description: "", application: "weir", ring: DEFAULT_RING }
    }
}

impl Recorder {
    /// Creates the file, replacing an old one, and starts the thread that writes it. The thread inherits the signal
    /// mask, so the caller must block all signals during this call.
    pub fn create(path: &Path, options: &RecorderOptions<'_>) -> io::Result<Self> {
        let file = File::create(path)?;
        let info = InterfaceInfo {
            name: options.interface,
            description: options.description,
            application: options.application,
        };
        let mut writer = Writer::new(Blocks { file, whole: 0 }, &info, wall_clock());
        writer.flush()?;
        let (producer, consumer) = RingBuffer::new(options.ring.max(1 << 12));
        let shared = Arc::new(Shared::default());
        let drain =
            Drain { ring: consumer, writer, shared: shared.clone(), comment: Vec::new(), gathered: 0, failure: None };
        let thread = thread::Builder::new().name("weir-capture".into()).spawn(move || drain.run())?;
        let process = std::process::id();
        shared.process.store(process, Ordering::Relaxed);
        let _ = shared.writer.set(thread.thread().clone());
        // In a forked child, a thread of the parent may have held it at the fork: no wait without end.
        for _ in 0..100 {
            if let Ok(mut open) = OPEN.try_lock() {
                open.push(shared.clone());
                break;
            }
            thread::sleep(Duration::from_micros(100));
        }
        Ok(Recorder { ring: producer, shared, thread: Some(thread), process })
    }

    /// Records a frame, given as slices; false if the ring has no room for it.
    pub fn record(&mut self, info: &PacketInfo<'_>, slices: &[&[u8]]) -> bool {
        let frame: usize = slices.iter().map(|slice| slice.len()).sum();
        let comment = info.comment.as_bytes();
        let Ok(mut chunk) = self.ring.write_chunk(ENTRY + comment.len() + frame) else {
            self.shared.dropped.fetch_add(1, Ordering::Relaxed);
            self.nudge();
            return false;
        };
        let (first, second) = chunk.as_mut_slices();
        let mut space = Space { first, second };
        space.put(&(frame as u32).to_le_bytes());
        space.put(&(comment.len() as u32).to_le_bytes());
        space.put(&info.timestamp.to_le_bytes());
        space.put(&u64::from(info.direction == Direction::Out).to_le_bytes());
        space.put(comment);
        for slice in slices {
            space.put(slice);
        }
        chunk.commit_all();
        // Pairs with the fence in `Drain::sleep`: either this thread sees `asleep`, or the other sees the frame.
        fence(Ordering::SeqCst);
        if self.shared.asleep.load(Ordering::Relaxed) && self.shared.asleep.swap(false, Ordering::Relaxed) {
            self.unpark();
        } else if self.ring.slots() < self.ring.buffer().capacity() / 2 {
            self.nudge();
        }
        true
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
        let Some(thread) = self.thread.take() else { return Ok(self.recorded()) };
        if std::process::id() != self.process {
            std::mem::forget(thread);
            return Ok(self.recorded());
        }
        if let Ok(mut open) = OPEN.try_lock() {
            open.retain(|open| !Arc::ptr_eq(open, &self.shared));
        }
        self.shared.stop.store(true, Ordering::Release);
        thread.thread().unpark();
        thread.join().map_err(|_| io::Error::other("the capture's writing thread panicked"))??;
        Ok(self.recorded())
    }

    fn nudge(&self) {
        if !self.shared.nudged.swap(true, Ordering::Relaxed) {
            self.unpark();
        }
    }

    fn unpark(&self) {
        if let Some(thread) = &self.thread {
            thread.thread().unpark();
        }
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        // Callers that need the error call `finish`.
        let _ = self.finish();
    }
}

/// Free space in the ring, in two parts if it wraps.
struct Space<'a> {
    first: &'a mut [u8],
    second: &'a mut [u8],
}

impl Space<'_> {
    fn put(&mut self, bytes: &[u8]) {
        let split = bytes.len().min(self.first.len());
        let (now, later) = bytes.split_at(split);
        take_mut(&mut self.first, now.len()).copy_from_slice(now);
        take_mut(&mut self.second, later.len()).copy_from_slice(later);
    }
}

fn take_mut<'a>(slice: &mut &'a mut [u8], len: usize) -> &'a mut [u8] {
    let (taken, rest) = std::mem::take(slice).split_at_mut(len);
    *slice = rest;
    taken
}

/// The state of the writing thread.
struct Drain {
    ring: Consumer<u8>,
    writer: Writer<Blocks>,
    shared: Arc<Shared>,
    comment: Vec<u8>,
    /// Frames in the writer's buffer.
    gathered: u64,
    failure: Option<io::Error>,
}

impl Drain {
    fn run(mut self) -> io::Result<()> {
        let mut flushed = Instant::now();
        loop {
            let stop = self.shared.stop.load(Ordering::Acquire);
            let asked = self.shared.asked.load(Ordering::Acquire);
            self.shared.nudged.store(false, Ordering::Relaxed);
            while self.take_one() && flushed.elapsed() < FLUSH_EVERY {}
            if self.writer.is_pending() && flushed.elapsed() >= FLUSH_EVERY {
                self.flush();
                flushed = Instant::now();
            }
            if !self.ring.is_empty() {
                continue;
            }
            if asked > self.shared.flushed.load(Ordering::Relaxed) {
                if self.writer.is_pending() {
                    self.flush();
                    flushed = Instant::now();
                }
                self.shared.flushed.store(asked, Ordering::Release);
            }
            if stop {
                self.flush();
                self.shared.flushed.store(u64::MAX, Ordering::Release);
                return self.failure.map_or(Ok(()), Err);
            }
            if self.writer.is_pending() { thread::park_timeout(LOOK_EVERY) } else { self.sleep() }
        }
    }

    /// Parks until a frame arrives; the first frame after a pause wakes this thread.
    fn sleep(&self) {
        self.shared.asleep.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let asked = self.shared.asked.load(Ordering::Acquire) > self.shared.flushed.load(Ordering::Relaxed);
        if self.ring.is_empty() && !asked && !self.shared.stop.load(Ordering::Acquire) {
            thread::park();
        }
        self.shared.asleep.store(false, Ordering::Relaxed);
    }

    /// Moves one frame from the ring to the writer; false if there is none.
    fn take_one(&mut self) -> bool {
        let mut head = [0; ENTRY];
        if self.ring.pop_entire_slice(&mut head).is_err() {
            return false;
        }
        let number = |at: usize, len: usize| {
            head[at..at + len].iter().rev().fold(0u64, |number, byte| number << 8 | u64::from(*byte))
        };
        let (frame, comment) = (number(0, 4) as usize, number(4, 4) as usize);
        self.comment.resize(comment, 0);
        // An entry is committed as a whole, so all of it is in the ring.
        self.ring.pop_entire_slice(&mut self.comment).expect("a comment follows its head");
        let chunk = self.ring.read_chunk(frame).expect("a frame follows its comment");
        let (first, second) = chunk.as_slices();
        let info = PacketInfo {
            timestamp: number(8, 8),
            direction: if number(16, 8) == 0 { Direction::In } else { Direction::Out },
            comment: std::str::from_utf8(&self.comment).unwrap_or_default(),
        };
        let outcome = if self.failure.is_none() { self.writer.packet(&info, &[first, second]) } else { Ok(()) };
        chunk.commit_all();
        self.gathered += 1;
        self.account(outcome);
        true
    }

    fn flush(&mut self) {
        if self.failure.is_some() {
            return;
        }
        let written = self.shared.written.load(Ordering::Relaxed) + self.gathered;
        let dropped = self.shared.dropped.load(Ordering::Relaxed);
        self.writer.statistics(wall_clock(), written + dropped, dropped);
        let outcome = self.writer.flush();
        self.account(outcome);
    }

    /// Counts buffered frames as written or dropped, once the outcome is known.
    fn account(&mut self, outcome: io::Result<()>) {
        self.failure = self.failure.take().or(outcome.err());
        if self.failure.is_some() {
            self.shared.dropped.fetch_add(std::mem::take(&mut self.gathered), Ordering::Relaxed);
        } else if !self.writer.is_pending() {
            self.shared.written.fetch_add(std::mem::take(&mut self.gathered), Ordering::Relaxed);
        }
    }
}

/// A file of complete blocks: after a failed write it is truncated to the last complete one.
struct Blocks {
    file: File,
    whole: u64,
}

impl Write for Blocks {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.file.write_all(bytes) {
            Ok(()) => {
                self.whole += bytes.len() as u64;
                Ok(bytes.len())
            }
            Err(error) => {
                // Pipes cannot be truncated; the first error is the one to report.
                let _ = self.file.set_len(self.whole).and_then(|()| self.file.seek(SeekFrom::Start(self.whole)));
                Err(error)
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

fn wall_clock() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}
