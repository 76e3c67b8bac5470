//! The protocol's output: completions and asynchronous events.

use bitflags::bitflags;

/// `ibv_wc_status`, number for number (IBTA 11.6.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Status {
    Success = 0,
    LocalLength = 1,
    LocalQpOperation = 2,
    LocalEecOperation = 3,
    LocalProtection = 4,
    WrFlushed = 5,
    MwBind = 6,
    BadResponse = 7,
    LocalAccess = 8,
    RemoteInvalidRequest = 9,
    RemoteAccess = 10,
    RemoteOperation = 11,
    RetryExceeded = 12,
    RnrRetryExceeded = 13,
    /// The tag to delete was not in the list.
    TagError = 22,
    /// The tag's buffer is shorter than the data of a rendezvous, or too many are under way: the program completes it.
    RendezvousIncomplete = 23,
}

/// `ibv_wc_opcode`, number for number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum WcOpcode {
    Send = 0,
    RdmaWrite = 1,
    RdmaRead = 2,
    CompSwap = 3,
    FetchAdd = 4,
    BindWindow = 5,
    LocalInvalidate = 6,
    Flush = 8,
    AtomicWrite = 9,
    Recv = 128,
    RecvRdmaWithImm = 129,
    TagAdd = 130,
    TagDel = 131,
    TagSync = 132,
    /// A message for a TM SRQ.
    TagRecv = 133,
    /// A message without a tag for a TM SRQ.
    NoTag = 134,
}

bitflags! {
    /// `ibv_wc_flags`, bit for bit.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct WcFlags: u8 {
        /// The first 40 bytes are a GRH.
        const GRH = 1;
        /// Immediate data is valid.
        const WITH_IMM = 2;
        /// The message invalidated a window's rkey; the `imm` field holds that rkey.
        const WITH_INV = 8;
        /// TM SRQ: the list does not match new tags until the program reports its count of unexpected messages.
        const TM_SYNC_REQ = 16;
        /// TM SRQ: the message matched a tag.
        const TM_MATCH = 32;
        /// TM SRQ: the data of a matched message is complete.
        const TM_DATA_VALID = 64;
    }
}

/// The network header of a received datagram, with the number by which adapters report it in the low three bits of a
/// completion's service level: an Ethernet frame has no service level. UCX finds the datagram's addresses by it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Network {
    /// Not a datagram.
    #[default]
    None = 0,
    Ipv6 = 1,
    Ipv4 = 2,
}

impl WcOpcode {
    /// Whether it is an operation of a TM SRQ, or a message for one.
    pub fn is_of_tags(self) -> bool {
        self as u8 >= WcOpcode::TagAdd as u8
    }
}

/// A work completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The application's identifier for the work request.
    pub wr_id: u64,
    /// Its result. If it is not `Success`, only `wr_id`, `qp_num` and `vendor_err` are valid.
    pub status: Status,
    /// The operation.
    pub opcode: WcOpcode,
    /// Bytes received or read.
    pub byte_len: u32,
    /// Immediate data, raw big-endian; or the invalidated rkey, in host byte order.
    pub imm: u32,
    /// Which other fields are valid.
    pub flags: WcFlags,
    /// Weir's own detail of an error; 0 on success.
    pub vendor_err: u32,
    /// The local QP.
    pub qp_num: u32,
    /// The remote QP of a received message.
    pub src_qp: u32,
    /// UD: the network header of the received datagram (annex A17.4.5.1).
    pub network: Network,
    /// `TM_MATCH`: the tag of the message's tag matching header, and the opaque data beside it.
    pub tag: u64,
    pub app_ctx: u32,
    /// The number of work requests of this queue that have been retired in total, this one included (wrapping):
    /// polling the completion frees their WQE slots, including those of unsignalled work requests.
    pub retired: u32,
}

/// An asynchronous event of a QP (IBTA 11.6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QpEvent {
    /// First packet in RTR.
    CommunicationEstablished,
    /// A completion could not be reported, or a similar failure: the QP is in the error state.
    Fatal,
    /// An incoming request was invalid.
    RequestError,
    /// An incoming request violated access rights.
    AccessError,
    /// SQD reached and the send queue is drained.
    SendQueueDrained,
    /// In the error state and the last receive was flushed (QPs with an SRQ).
    LastWqeReached,
}

/// Weir's own detail of an error, for `Completion::vendor_err`. For a NAK it is the syndrome byte, for a bad response
/// the opcode; the other codes are here.
pub(crate) mod vendor {
    use crate::Denied;

    /// Out of the region's bounds, permissions or protection domain.
    const PROTECTION: u32 = 0x101;
    /// Registered, but unmapped by the application.
    const UNMAPPED: u32 = 0x102;
    /// No response within the ACK timeout, and the retries are exhausted.
    pub const ACK_TIMEOUT: u32 = 0x103;
    /// A PSN sequence NAK, and the retries are exhausted.
    pub const SEQUENCE_NAK: u32 = 0x104;
    /// An RNR NAK, and the RNR retries are exhausted.
    pub const RNR_NAK: u32 = 0x105;
    /// A READ or atomic on a QP with a `max_rd_atomic` of 0.
    pub const NO_READS: u32 = 0x106;
    /// A message longer than its receive work request.
    pub const TOO_LONG: u32 = 0x107;
    /// A datagram longer than the path MTU.
    pub const OVER_MTU: u32 = 0x108;
    /// A page fault of an operation for which the adapter has no ODP.
    pub const NO_ODP: u32 = 0x109;

    /// The vendor error of a refused access to local memory.
    pub fn denied(denied: Denied) -> u32 {
        match denied {
            Denied::Protection => PROTECTION,
            Denied::Unmapped => UNMAPPED,
            Denied::PageFault => NO_ODP,
        }
    }
}
