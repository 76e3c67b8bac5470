//! A packet in a file, of either format.

use crate::frame::Direction;
use std::ops::Range;

/// A packet in a file. Ranges are relative to the start of its record or block.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    /// Nanoseconds since 1970.
    pub timestamp: u64,
    pub link_type: u16,
    /// Number of its interface in its section; 0 in pcap.
    pub interface: u32,
    /// The captured bytes in the record.
    pub data: Range<usize>,
    /// Bytes of the packet on the wire.
    pub orig_len: usize,
    pub direction: Option<Direction>,
    /// Options in the record.
    pub options: Range<usize>,
}
