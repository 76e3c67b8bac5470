//! A captured frame.

/// A captured frame with its metadata from the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Nanoseconds since 1970.
    pub timestamp: u64,
    /// The header at the start of `data`.
    pub link_type: LinkType,
    /// The captured bytes; fewer than `orig_len` if the capture has a length limit.
    pub data: Vec<u8>,
    /// Bytes of the frame on the wire.
    pub orig_len: usize,
    /// Its direction, if the file has it.
    pub direction: Option<Direction>,
    /// Comments, joined by "; ".
    pub comment: Option<String>,
}

/// The header at the start of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LinkType {
    /// An Ethernet header.
    Ethernet,
    /// An InfiniBand local route header (LRH).
    Infiniband,
    /// Something else: its LINKTYPE number.
    Other(u16),
}

/// The direction of a frame at the capturing interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Received.
    In,
    /// Sent.
    Out,
}

pub(crate) const LINKTYPE_ETHERNET: u16 = 1;
pub(crate) const LINKTYPE_ERF: u16 = 197;
pub(crate) const LINKTYPE_INFINIBAND: u16 = 247;

impl LinkType {
    /// The link type of a LINKTYPE number.
    pub fn from_number(number: u16) -> Self {
        match number {
            LINKTYPE_ETHERNET => LinkType::Ethernet,
            LINKTYPE_INFINIBAND => LinkType::Infiniband,
            other => LinkType::Other(other),
        }
    }

    /// The LINKTYPE number.
    pub fn number(self) -> u16 {
        match self {
            LinkType::Ethernet => LINKTYPE_ETHERNET,
            LinkType::Infiniband => LINKTYPE_INFINIBAND,
            LinkType::Other(number) => number,
        }
    }
}
