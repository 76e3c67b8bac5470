//! Endace's extensible record format, which `ibdump` uses for InfiniBand packets (LINKTYPE_ERF).
//!
//! A record has a timestamp (little-endian, 32.32 seconds), type, flags, record length, loss counter, wire length
//! (big-endian), extension headers of 8 bytes as long as the top bit of the previous type is set, and the packet.

use crate::frame::LinkType;

const HEADER: usize = 16;
const MORE: u8 = 0x80;
const TYPE_ETHERNET: u8 = 2;
const TYPE_INFINIBAND: u8 = 21;
/// Alignment bytes before the frame in Ethernet records.
const ETHERNET_PAD: usize = 2;

/// The contents of a record.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Record<'a> {
    /// Nanoseconds since 1970.
    pub timestamp: u64,
    pub link_type: LinkType,
    pub data: &'a [u8],
    /// Bytes of the frame on the wire.
    pub orig_len: usize,
}

/// Unwraps a record; `None` if it is too short or neither InfiniBand nor Ethernet.
pub(crate) fn unwrap(record: &[u8]) -> Option<Record<'_>> {
    let head: &[u8; HEADER] = record.first_chunk()?;
    let stamp = u64::from_le_bytes(*head.first_chunk()?);
    let fraction = ((stamp & 0xffff_ffff) * 1_000_000_000) >> 32;
    let timestamp = (stamp >> 32) * 1_000_000_000 + fraction;
    let record_len = usize::from(u16::from_be_bytes([head[10], head[11]]));
    let orig_len = usize::from(u16::from_be_bytes([head[14], head[15]]));

    let mut start = HEADER;
    let mut kind = head[8];
    while kind & MORE != 0 {
        kind = *record.get(start)? & MORE | kind & !MORE;
        start += 8;
    }
    let link_type = match kind & !MORE {
        TYPE_INFINIBAND => LinkType::Infiniband,
        TYPE_ETHERNET => {
            start += ETHERNET_PAD;
            LinkType::Ethernet
        }
        _ => return None,
    };
    // Records are padded to eight bytes; the wire length is that of the packet.
    let end = record_len.min(record.len());
    let data = record.get(start..end)?;
    Some(Record { timestamp, link_type, data: &data[..data.len().min(orig_len)], orig_len })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(kind: u8, extensions: &[u8], payload: &[u8], wire: u16) -> Vec<u8> {
        let mut bytes = (3u64 << 32 | 1 << 31).to_le_bytes().to_vec();
        bytes.extend([kind, 4]);
        bytes.extend(((HEADER + extensions.len() + payload.len()) as u16).to_be_bytes());
        bytes.extend([0, 0]);
        bytes.extend(wire.to_be_bytes());
        bytes.extend(extensions);
        bytes.extend(payload);
        bytes
    }

    #[test]
    fn an_infiniband_record_is_unwrapped_without_its_padding() {
        let bytes = record(TYPE_INFINIBAND, &[], &[7; 32], 30);
        let got = unwrap(&bytes).unwrap();
        assert_eq!(got.timestamp, 3_500_000_000);
        assert_eq!(got.link_type, LinkType::Infiniband);
        assert_eq!((got.data, got.orig_len), (&[7u8; 30][..], 30));
    }

    #[test]
    fn extension_headers_are_skipped() {
        let mut extensions = [0x11; 16];
        extensions[0] |= MORE;
        let bytes = record(TYPE_ETHERNET | MORE, &extensions, &[0, 0, 9, 9, 9], 3);
        let got = unwrap(&bytes).unwrap();
        assert_eq!((got.link_type, got.data), (LinkType::Ethernet, &[9u8; 3][..]));
    }

    #[test]
    fn truncated_records_and_other_types_are_refused() {
        let bytes = record(TYPE_INFINIBAND | MORE, &[MORE; 8], &[], 0);
        assert_eq!(unwrap(&bytes), None);
        assert_eq!(unwrap(&record(1, &[], &[0; 8], 8)), None);
        assert_eq!(unwrap(&[0; 15]), None);
    }
}
