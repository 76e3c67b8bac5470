//! The classic pcap format: a header of the file, then records.

use crate::options::Endian;
use crate::record::Record;

/// Length in bytes of the file's header.
pub(crate) const FILE_HEADER: usize = 24;
/// The longest header of a record.
const MAX_HEADER: usize = 24;

/// What a file's header says.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pcap {
    endian: Endian,
    pub link_type: u16,
    /// Nanoseconds for each unit of the second field of timestamps.
    unit: u64,
    /// Length in bytes of a record's header.
    pub record_header: usize,
}

impl Pcap {
    /// From a file's header; `None` without one of the magic numbers.
    pub(crate) fn parse(header: &[u8; FILE_HEADER]) -> Option<Self> {
        /// Alexey Kuznetzov's variant, with eight more bytes in a record's header.
        const MODIFIED: u32 = 0xa1b2_cd34;
        let magic = header.first_chunk::<4>()?;
        let (endian, unit, record_header) = [Endian::Little, Endian::Big].into_iter().find_map(|endian| {
            let (unit, record_header) = match endian.u32(*magic) {
                0xa1b2_c3d4 => (1000, 16),
                0xa1b2_3c4d => (1, 16),
                MODIFIED => (1000, MAX_HEADER),
                _ => return None,
            };
            Some((endian, unit, record_header))
        })?;
        // The upper bits of the field are the length of the FCS.
        let link_type = endian.u32_at(header, 20) as u16;
        Some(Pcap { endian, link_type, unit, record_header })
    }

    /// Length in bytes of the data of a record, from its header.
    #[inline]
    pub(crate) fn data_len(&self, header: &[u8; 16]) -> usize {
        self.endian.u32_at(header, 8) as usize
    }

    /// The packet of a record.
    #[inline]
    pub(crate) fn record(&self, header: &[u8; 16]) -> Record {
        let word = |at| self.endian.u32_at(header, at);
        Record {
            timestamp: u64::from(word(0)) * 1_000_000_000 + u64::from(word(4)) * self.unit,
            link_type: self.link_type,
            interface: 0,
            data: self.record_header..self.record_header + word(8) as usize,
            orig_len: word(12) as usize,
            direction: None,
            options: 0..0,
        }
    }
}
