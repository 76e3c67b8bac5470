//! Capture files for the bench.

use super::traffic::Traffic;
use anyhow::{Context, Result};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

/// A kind of file.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    pub name: &'static str,
    pub what: &'static str,
    /// The most that is captured of a frame, bytes.
    pub snap: usize,
    pub format: Format,
}

/// The format of a file: as tcpdump writes it, or as dumpcap does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Pcap,
    Pcapng,
}

/// A file that was written.
pub struct Capture {
    pub kind: Kind,
    pub path: PathBuf,
    /// Bytes of the file.
    pub len: u64,
    pub packets: u64,
    /// Bytes of payload of all packets on the wire.
    pub payload: u64,
}

/// Nanoseconds from one packet to the next: 100 Gbit/s.
const INTERVAL: u64 = 330;
const START: u64 = 1_700_000_000_000_000_000;

impl Capture {
    /// Writes a file of at least `size` bytes.
    pub fn write(folder: &Path, kind: Kind, size: u64) -> Result<Self> {
        let path = folder.join(kind.name);
        let file = File::create(&path).with_context(|| path.display().to_string())?;
        let mut out = BufWriter::with_capacity(1 << 20, file);
        let mut capture = Capture { kind, path, len: 0, packets: 0, payload: 0 };
        let start = kind.format.start();
        out.write_all(&start)?;
        capture.len = start.len() as u64;
        let mut traffic = Traffic::new();
        let mut record = Vec::new();
        while capture.len < size {
            let packet = traffic.next();
            let kept = &packet.frame[..packet.frame.len().min(kind.snap)];
            record.clear();
            kind.format.put(&mut record, START + capture.packets * INTERVAL, kept, packet.frame.len());
            out.write_all(&record)?;
            capture.len += record.len() as u64;
            capture.packets += 1;
            capture.payload += packet.payload as u64;
        }
        out.flush()?;
        Ok(capture)
    }
}

impl Format {
    /// What stands before the packets: Ethernet, nanoseconds.
    fn start(self) -> Vec<u8> {
        let words: &[u32] = match self {
            Format::Pcap => &[0xa1b2_3c4d, 4 << 16 | 2, 0, 0, 1 << 18, 1],
            Format::Pcapng => &[
                // Section header.
                0x0a0d_0d0a,
                28,
                0x1a2b_3c4d,
                1,
                u32::MAX,
                u32::MAX,
                28,
                // Interface description with if_tsresol.
                1,
                32,
                1,
                0,
                1 << 16 | 9,
                9,
                0,
                32,
            ],
        };
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    fn put(self, record: &mut Vec<u8>, time: u64, data: &[u8], orig_len: usize) {
        let (kept, orig_len) = (data.len() as u32, orig_len as u32);
        let mut words = |words: &[u32]| words.iter().for_each(|word| record.extend(word.to_le_bytes()));
        match self {
            Format::Pcap => {
                let second = 1_000_000_000;
                words(&[(time / second) as u32, (time % second) as u32, kept, orig_len]);
                record.extend(data);
            }
            Format::Pcapng => {
                let len = 32 + kept.next_multiple_of(4);
                words(&[6, len, 0, (time >> 32) as u32, time as u32, kept, orig_len]);
                record.extend(data);
                record.resize(len as usize - 4, 0);
                record.extend(len.to_le_bytes());
            }
        }
    }
}
