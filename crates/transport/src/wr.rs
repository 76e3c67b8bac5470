//! Work requests as they are posted.

use crate::Bind;
use bitflags::bitflags;
use thiserror::Error;

/// A piece of local memory; laid out as `ibv_sge`.
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
        /// Complete to the CQ even where the QP does not signal all.
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
    /// A SEND that ends a window's key at the peer (IBTA 9.4.1.1.1).
    SendInvalidate {
        rkey: u32,
    },
    /// Eight bytes that appear at once (IBTA annex A19).
    AtomicWrite {
        remote_addr: u64,
        rkey: u32,
    },
    /// Ends a key of this process, once everything before it is complete (IBTA 10.6.5).
    LocalInvalidate {
        key: u32,
    },
    /// Binds a memory window before anything after it is begun (IBTA 10.6.7).
    BindWindow(Bind),
}

/// Whom a send work request is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Target {
    /// The peer that the QP is connected to.
    #[default]
    Peer,
    /// Anybody: UD.
    Datagram(Datagram),
    /// A shared receive queue of the connected peer's domain, by number: XRC.
    Srq(u32),
}

/// Where a datagram goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// The carrier's number of an address; the protocol only hands it on.
    pub address: u32,
    /// QP there.
    pub dest_qp: u32,
    /// Its Q_Key; with the high bit set, the sending QP's own goes out instead (IBTA 10.2.5).
    pub qkey: u32,
}

/// Where a work request's data lies.
#[derive(Clone, Copy, Debug)]
pub enum Data<'a> {
    /// In registered memory.
    Gather(&'a [Sge]),
    /// Here, to be copied now.
    Inline(&'a [u8]),
}

/// A send work request.
#[derive(Clone, Copy, Debug)]
pub struct SendWr<'a> {
    /// The application's name for it.
    pub wr_id: u64,
    /// What to do.
    pub op: SendOp,
    /// How.
    pub flags: SendFlags,
    /// With what.
    pub data: Data<'a>,
}

/// A receive work request.
#[derive(Clone, Copy, Debug)]
pub struct RecvWr<'a> {
    /// The application's name for it.
    pub wr_id: u64,
    /// Where a message goes.
    pub sges: &'a [Sge],
}

/// Why a work request was not taken. Nothing of it stays behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PostError {
    /// ENOMEM.
    #[error("the work queue is full")]
    QueueFull,
    /// EINVAL.
    #[error("more scatter/gather elements than the queue pair was made for")]
    TooManySges,
    /// EINVAL: over `max_inline_data`, or inline where data comes back.
    #[error("inline data is too long, or not possible with this operation")]
    Inline,
    /// EINVAL: a send before RTS, a receive before INIT.
    #[error("the queue pair is not in a state to take this work request")]
    State,
    /// EINVAL: more than 2^31 bytes, or an atomic that is not 8 bytes.
    #[error("the length is not possible with this operation")]
    Length,
    /// EINVAL: the service does not have the operation, or no destination was given where it needs one.
    #[error("the queue pair's service does not have this operation")]
    Operation,
    /// EIO.
    #[error("the adapter has failed")]
    Failed,
}
