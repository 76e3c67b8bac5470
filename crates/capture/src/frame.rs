//! A captured frame.

use crate::options::{COMMENT, Options};
use std::borrow::Cow;

/// A captured frame with its metadata from the file. It borrows the reader's buffer; [`Frame::to_owned`] copies it.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    /// Its number in the file, from 1. All packets count, so that it is Wireshark's `frame.number`.
    pub number: u64,
    /// Nanoseconds since 1970.
    pub timestamp: u64,
    /// The header at the start of `data`.
    pub link_type: LinkType,
    /// Number of its interface in its section of the file, from 0; 0 in a file that describes none.
    pub interface: u32,
    /// The captured bytes; fewer than `orig_len` if the capture has a length limit.
    pub data: &'a [u8],
    /// Bytes of the frame on the wire.
    pub orig_len: usize,
    /// Its direction, if the file has it.
    pub direction: Option<Direction>,
    pub(crate) options: Options<'a>,
}

/// A copy of a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnedFrame {
    /// Its number in the file, from 1.
    pub number: u64,
    /// Nanoseconds since 1970.
    pub timestamp: u64,
    /// The header at the start of `data`.
    pub link_type: LinkType,
    /// Number of its interface in its section of the file, from 0; 0 in a file that describes none.
    pub interface: u32,
    /// The captured bytes.
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
    /// The header of Linux's `any` device (SLL).
    Cooked,
    /// The header of Linux's `any` device, version 2 (SLL2).
    Cooked2,
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
const LINKTYPE_LINUX_SLL: u16 = 113;
pub(crate) const LINKTYPE_ERF: u16 = 197;
const LINKTYPE_INFINIBAND: u16 = 247;
const LINKTYPE_LINUX_SLL2: u16 = 276;

impl<'a> Frame<'a> {
    /// A complete frame without metadata.
    pub fn new(number: u64, timestamp: u64, link_type: LinkType, data: &'a [u8]) -> Self {
        let (orig_len, options) = (data.len(), Options::default());
        Frame { number, timestamp, link_type, interface: 0, data, orig_len, direction: None, options }
    }

    /// Its comments. The options in the file are parsed by this call.
    pub fn comments(&self) -> impl Iterator<Item = Cow<'a, str>> {
        self.options.filter(|option| option.code == COMMENT).map(|option| String::from_utf8_lossy(option.value))
    }

    /// A copy that does not depend on the reader.
    pub fn to_owned(&self) -> OwnedFrame {
        let Frame { number, timestamp, link_type, interface, orig_len, direction, .. } = *self;
        let comment = self.comments().map(Cow::into_owned).reduce(|before, text| format!("{before}; {text}"));
        OwnedFrame { number, timestamp, link_type, interface, data: self.data.to_vec(), orig_len, direction, comment }
    }
}

impl LinkType {
    /// The link type of a LINKTYPE number.
    #[inline]
    pub fn from_number(number: u16) -> Self {
        match number {
            LINKTYPE_ETHERNET => LinkType::Ethernet,
            LINKTYPE_INFINIBAND => LinkType::Infiniband,
            LINKTYPE_LINUX_SLL => LinkType::Cooked,
            LINKTYPE_LINUX_SLL2 => LinkType::Cooked2,
            other => LinkType::Other(other),
        }
    }

    /// The LINKTYPE number.
    pub fn number(self) -> u16 {
        match self {
            LinkType::Ethernet => LINKTYPE_ETHERNET,
            LinkType::Infiniband => LINKTYPE_INFINIBAND,
            LinkType::Cooked => LINKTYPE_LINUX_SLL,
            LinkType::Cooked2 => LINKTYPE_LINUX_SLL2,
            LinkType::Other(number) => number,
        }
    }
}
