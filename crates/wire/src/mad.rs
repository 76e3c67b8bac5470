//! Management datagrams (MADs): what QP 1, the general services interface, sends and receives (IBTA 13.4).

use zerocopy::byteorder::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of each MAD (IBTA 13.4.2).
pub const LEN: usize = 256;
/// The QP number of the general services interface.
pub const GSI_QPN: u32 = 1;
/// The Q_Key of the general services interface.
pub const GSI_QKEY: u32 = 0x8001_0000;
/// The management class of connection management (IBTA 13.4.4).
pub const CLASS_CM: u8 = 0x07;
/// The version of that class (IBTA 16.7).
pub const CM_VERSION: u8 = 2;
/// The version of the common header.
pub const BASE_VERSION: u8 = 1;
/// The only method of connection management messages (IBTA 16.7).
pub const METHOD_SEND: u8 = 0x03;

/// A whole MAD.
pub type Mad = [u8; LEN];

header! {
    /// The header that all MADs have (IBTA 13.4.2).
    MadHeader {
        base_version: u8,
        /// Which protocol the MAD belongs to.
        class: u8,
        class_version: u8,
        method: u8,
        status: U16,
        class_specific: U16,
        /// Transaction ID: a response repeats that of its request.
        tid: U64,
        /// Which message it is.
        attribute: U16,
        reserved: U16,
        modifier: U32,
    }
}
