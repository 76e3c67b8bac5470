//! The memory of a tap: a ring of records in which the newest replace the oldest. One thread at a time writes; any
//! number of processes read, each at its own pace, and count what they missed.
//!
//! | offset | bytes | field |
//! | ---: | ---: | --- |
//! | 0 | 8 | [`MAGIC`] |
//! | 8 | 8 | the nonce of this tap |
//! | 64 | 8 | number of records written |
//! | 4096 | | [`RECORDS`] entries of 128 bytes: the number of the record in it, from 1, and its words |
//!
//! The number of an entry is 0 while its record is written: a reader that finds another number before or after it has
//! copied the words has missed the record.

use crate::os::sealed::{Rights, Sealed};
use crate::tap::record::{Record, WORDS};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// Records in the ring: what an adapter sends and receives in more than 10 ms.
pub const RECORDS: usize = 1 << 16;
/// "weirtap", and the version of this layout.
const MAGIC: u64 = 0x7765_6972_7461_7001;
const CONTROL: usize = 4096;
const NONCE: usize = 8;
const WRITTEN: usize = 64;
const ENTRY: usize = 8 * (1 + WORDS);
const LEN: usize = CONTROL + RECORDS * ENTRY;

/// The end that writes.
pub struct Writer {
    memory: Sealed,
    file: OwnedFd,
    nonce: u64,
    written: u64,
}

/// An end that reads.
pub struct Reader {
    memory: Sealed,
    read: u64,
    missed: u64,
}

impl Writer {
    /// A new ring. Error: no memory, no descriptors, a sandbox.
    pub fn create(nonce: u64) -> io::Result<Writer> {
        let (memory, file) = Sealed::create(c"weir-tap", LEN)?;
        memory.populate();
        word(&memory, NONCE).store(nonce, Ordering::Relaxed);
        word(&memory, 0).store(MAGIC, Ordering::Release);
        Ok(Writer { memory, file, nonce, written: 0 })
    }

    /// The file of its memory.
    pub fn file(&self) -> &OwnedFd {
        &self.file
    }

    /// The number that distinguishes it from other rings.
    pub fn nonce(&self) -> u64 {
        self.nonce
    }

    /// Writes a record over the oldest.
    pub fn write(&mut self, words: &[u64; WORDS]) {
        let entry = entry(self.written);
        word(&self.memory, entry).store(0, Ordering::Relaxed);
        // A reader that sees a word of this record sees the zero.
        fence(Ordering::Release);
        for (at, value) in words.iter().enumerate() {
            word(&self.memory, entry + 8 * (at + 1)).store(*value, Ordering::Relaxed);
        }
        self.written += 1;
        word(&self.memory, entry).store(self.written, Ordering::Release);
        word(&self.memory, WRITTEN).store(self.written, Ordering::Release);
    }
}

impl Reader {
    /// Maps the ring with this nonce, to be read from its oldest record on. `InvalidData` if the file is none.
    pub fn open(file: &impl AsRawFd, nonce: u64) -> io::Result<Reader> {
        let memory = Sealed::open(file, LEN, Rights::Read)?;
        let found = (word(&memory, 0).load(Ordering::Acquire), word(&memory, NONCE).load(Ordering::Relaxed));
        if found != (MAGIC, nonce) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(Reader { memory, read: 0, missed: 0 })
    }

    /// Gives the records that were written before this call and not read yet, each with its number from 1.
    pub fn read(&mut self, mut each: impl FnMut(u64, Record)) {
        let written = word(&self.memory, WRITTEN).load(Ordering::Acquire);
        // A count that goes back is no adapter's.
        let ahead = written.saturating_sub(self.read);
        let lost = ahead.saturating_sub(RECORDS as u64);
        self.missed = self.missed.saturating_add(lost);
        self.read += lost;
        while self.read < written {
            match self.copy(self.read) {
                Some(record) => each(self.read + 1, record),
                None => self.missed += 1,
            }
            self.read += 1;
        }
    }

    /// Records that were replaced before they were read.
    pub fn missed(&self) -> u64 {
        self.missed
    }

    fn copy(&self, at: u64) -> Option<Record> {
        let entry = entry(at);
        if word(&self.memory, entry).load(Ordering::Acquire) != at + 1 {
            return None;
        }
        let words = std::array::from_fn(|at| word(&self.memory, entry + 8 * (at + 1)).load(Ordering::Relaxed));
        fence(Ordering::Acquire);
        let same = word(&self.memory, entry).load(Ordering::Relaxed) == at + 1;
        same.then(|| Record::decode(&words)).flatten()
    }
}

/// Where the entry of a record begins.
#[inline]
fn entry(at: u64) -> usize {
    CONTROL + (at as usize & (RECORDS - 1)) * ENTRY
}

/// The word at an offset within the memory, a multiple of 8.
#[inline]
fn word(memory: &Sealed, offset: usize) -> &AtomicU64 {
    debug_assert!(offset.is_multiple_of(8) && offset + 8 <= LEN);
    // SAFETY: within the mapping, aligned, and accessed by atomics only.
    unsafe { memory.base().add(offset).cast().as_ref() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tap::record::tests::of_psn;
    use std::sync::atomic::AtomicBool;

    fn psns(reader: &mut Reader) -> Vec<(u64, u32)> {
        let mut found = Vec::new();
        reader.read(|number, record| found.push((number, record.headers.bth.psn.get())));
        found
    }

    #[test]
    fn each_reader_gets_all_records_once() {
        let mut writer = Writer::create(5).unwrap();
        let mut readers = [0; 2].map(|_| Reader::open(writer.file(), 5).unwrap());
        writer.write(&of_psn(7).encode());
        assert_eq!(psns(&mut readers[0]), [(1, 7)]);
        writer.write(&of_psn(8).encode());
        assert_eq!(psns(&mut readers[0]), [(2, 8)]);
        assert_eq!(psns(&mut readers[1]), [(1, 7), (2, 8)]);
        assert!(psns(&mut readers[0]).is_empty());
        assert_eq!(readers.map(|reader| reader.missed()), [0, 0]);
    }

    #[test]
    fn a_slow_reader_counts_what_it_missed() {
        let mut writer = Writer::create(5).unwrap();
        let mut reader = Reader::open(writer.file(), 5).unwrap();
        for psn in 0..RECORDS as u32 + 10 {
            writer.write(&of_psn(psn).encode());
        }
        let found = psns(&mut reader);
        assert_eq!((found.len(), found[0], reader.missed()), (RECORDS, (11, 10), 10));
        writer.write(&of_psn(1).encode());
        assert_eq!((psns(&mut reader).len(), reader.missed()), (1, 10));
    }

    #[test]
    fn no_record_is_mixed_from_two_while_the_writer_overtakes_the_reader() {
        let mut writer = Writer::create(5).unwrap();
        let mut reader = Reader::open(writer.file(), 5).unwrap();
        let done = AtomicBool::new(false);
        const COUNT: u32 = 20 * RECORDS as u32;
        let mut got = 0;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for psn in 0..COUNT {
                    // All words depend on the number.
                    let record = Record { time: psn.into(), payload: psn, ..of_psn(psn & 0xff_ffff) };
                    writer.write(&record.encode());
                }
                done.store(true, Ordering::Release);
            });
            loop {
                let last = done.load(Ordering::Acquire);
                reader.read(|number, record| {
                    got += 1;
                    let psn = record.payload;
                    assert_eq!((number, record.time), (u64::from(psn) + 1, u64::from(psn)));
                    assert_eq!(record.headers.bth.psn.get(), psn & 0xff_ffff);
                });
                if last {
                    break;
                }
            }
        });
        assert_eq!(got + reader.missed(), u64::from(COUNT));
    }

    #[test]
    fn other_memory_and_another_ring_are_refused() {
        let writer = Writer::create(5).unwrap();
        assert!(Reader::open(writer.file(), 6).is_err());
        let (_memory, file) = Sealed::create(c"weir-test", LEN).unwrap();
        assert!(Reader::open(&file, 0).is_err(), "no magic number");
        let (_memory, file) = Sealed::create(c"weir-test", 4096).unwrap();
        assert!(Reader::open(&file, 0).is_err());
    }

    #[test]
    fn a_reader_survives_what_no_adapter_writes() {
        let mut writer = Writer::create(5).unwrap();
        let mut reader = Reader::open(writer.file(), 5).unwrap();
        for psn in 0..3 {
            writer.write(&of_psn(psn).encode());
        }
        writer.write(&[u64::MAX; WORDS]);
        assert_eq!((psns(&mut reader).len(), reader.missed()), (3, 1));
        for count in [u64::MAX, 0, 1 << 40] {
            word(&writer.memory, WRITTEN).store(count, Ordering::Relaxed);
            assert!(psns(&mut reader).is_empty(), "{count}");
        }
    }
}
