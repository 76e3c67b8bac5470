//! Why a capture file cannot be read.

use std::io;
use std::path::PathBuf;
use thiserror::Error;

/// Why a file cannot be read, or not to its end. Offsets are those in the uncompressed file. What the
/// system said is the source of the error.
#[derive(Debug, Error)]
pub enum CaptureError {
    #[error("cannot open {}", path.display())]
    Open { path: PathBuf, source: io::Error },
    #[error("neither a pcap nor a pcapng file: it starts with the bytes {start:02x?}")]
    NotACapture { start: Vec<u8> },
    #[error("the file cannot be read beyond byte {offset}")]
    Read { offset: u64, source: io::Error },
    #[error("the file is cut: it ends within the record at byte {offset}")]
    Truncated { offset: u64 },
    #[error("the record at byte {offset} is damaged: {what}")]
    Corrupt { offset: u64, what: &'static str },
}
