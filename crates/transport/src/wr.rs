//! Work requests in the form in which the caller posts them.

use crate::{Access, Bind};
use bitflags::bitflags;
use thiserror::Error;

/// A segment of local memory; laid out as `ibv_sge`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Sge {
    /// Virtual address.
    pub addr: u64,
    /// Bytes.
    pub length: u32,
    /// Local key.
    pub lkey: u32,
}

bitflags! {
    /// `ibv_send_flags`, bit for bit.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct SendFlags: u32 {
        /// Wait for earlier READs and atomics (IBTA 10.8.3.3).
        const FENCE = 1;
        /// Complete to the CQ even if the QP does not signal every work request.
        const SIGNALED = 2;
        /// Raise a solicited event at the receiver.
        const SOLICITED = 4;
        /// The data was copied at posting.
        const INLINE = 8;
    }
}

/// What a send work request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendOp {
    Send,
    /// Immediate data is a raw big-endian word, as the application wrote it.
    SendImm {
        imm: u32,
    },
    Write {
        remote_addr: u64,
        rkey: u32,
    },
    WriteImm {
        remote_addr: u64,
        rkey: u32,
        imm: u32,
    },
    Read {
        remote_addr: u64,
        rkey: u32,
    },
    CompareSwap {
        remote_addr: u64,
        rkey: u32,
        compare: u64,
        swap: u64,
    },
    FetchAdd {
        remote_addr: u64,
        rkey: u32,
        add: u64,
    },
    /// A SEND that invalidates a window's rkey at the peer (IBTA 9.4.1.1.1).
    SendInvalidate {
        rkey: u32,
    },
    /// An ATOMIC WRITE: eight bytes that become visible at once (IBTA annex A19).
    AtomicWrite {
        remote_addr: u64,
        rkey: u32,
    },
    /// A FLUSH: earlier WRITEs to this memory of the peer are visible there before it completes (IBTA annex A19).
    Flush {
        remote_addr: u64,
        rkey: u32,
        length: u32,
        flush: Flush,
    },
    /// Invalidates a key of this process, after every earlier work request is complete (IBTA 10.6.5).
    LocalInvalidate {
        key: u32,
    },
    /// Binds a memory window before any later work request begins (IBTA 10.6.7).
    BindWindow(Bind),
}

/// What a FLUSH is about (IBTA annex A19).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flush {
    /// Data becomes visible to the peer's processors (`IBV_FLUSH_GLOBAL`).
    pub global: bool,
    /// Data becomes persistent (`IBV_FLUSH_PERSISTENT`).
    pub persistent: bool,
    /// The whole region or window of the key, not a range.
    pub whole: bool,
}

impl Flush {
    /// The bits of the FLUSH extended transport header.
    pub(crate) fn bits(self) -> u32 {
        u32::from(self.global) | u32::from(self.persistent) << 1 | u32::from(self.whole) << 4
    }

    /// `None`: no placement type, an unknown one, or an unknown selectivity.
    pub(crate) fn from_bits(bits: u32) -> Option<Flush> {
        let flush = Flush { global: bits & 1 != 0, persistent: bits & 2 != 0, whole: bits >> 4 & 3 == 1 };
        (flush.bits() == bits & 0x3f && bits & 3 != 0).then_some(flush)
    }

    /// The rights that it needs.
    pub(crate) fn access(self) -> Access {
        let mut access = Access::empty();
        access.set(Access::FLUSH_GLOBAL, self.global);
        access.set(Access::FLUSH_PERSISTENT, self.persistent);
        access
    }
}

/// The destination of a send work request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Target {
    /// The peer that the QP is connected to.
    #[default]
    Peer,
    /// Any QP: UD.
    Datagram(Datagram),
    /// A shared receive queue in the connected peer's XRC domain, by number: XRC.
    Srq(u32),
}

/// The destination of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// The carrier's index of an address; the protocol only passes it on.
    pub address: u32,
    /// The destination QP's number.
    pub dest_qp: u32,
    /// The destination's Q_Key; if its high bit is set, the packet carries the sending QP's own Q_Key (IBTA 10.2.5).
    pub qkey: u32,
}

/// The location of a work request's data.
#[derive(Clone, Copy, Debug)]
pub enum Data<'a> {
    /// In registered memory.
    Gather(&'a [Sge]),
    /// In these bytes, which posting copies.
    Inline(&'a [u8]),
}

/// A send work request.
#[derive(Clone, Copy, Debug)]
pub struct SendWr<'a> {
    /// The application's identifier for it.
    pub wr_id: u64,
    /// The operation.
    pub op: SendOp,
    /// Its flags.
    pub flags: SendFlags,
    /// Its data.
    pub data: Data<'a>,
}

/// A receive work request.
#[derive(Clone, Copy, Debug)]
pub struct RecvWr<'a> {
    /// The application's identifier for it.
    pub wr_id: u64,
    /// The buffers for the message.
    pub sges: &'a [Sge],
}

/// Why a work request was refused. A refused work request changes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PostError {
    /// ENOMEM.
    #[error("the work queue is full")]
    QueueFull,
    /// EINVAL.
    #[error("more scatter/gather elements than the queue pair was created for")]
    TooManySges,
    /// EINVAL: longer than `max_inline_data`, or inline data with an operation that returns data.
    #[error("inline data is too long, or not possible with this operation")]
    Inline,
    /// EINVAL: a send before RTS, a receive before INIT.
    #[error("the queue pair is not in a state to take this work request")]
    State,
    /// EINVAL: more than 2^31 bytes, or an atomic that is not 8 bytes.
    #[error("the length is not possible with this operation")]
    Length,
    /// EINVAL: the service does not have the operation, or needs a destination that the work request lacks.
    #[error("the queue pair's service does not have this operation")]
    Operation,
    /// EIO.
    #[error("the adapter has failed")]
    Failed,
}
