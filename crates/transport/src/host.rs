//! The adapter around a queue pair, as the protocol sees it.

use crate::{Completion, Datagram, QpEvent, Sge};
use bitflags::bitflags;
use weir_wire::Headers;

bitflags! {
    /// `ibv_access_flags`, bit for bit, as far as the protocol asks for them.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Access: u32 {
        /// The adapter may write for its own process.
        const LOCAL_WRITE = 1;
        /// A peer may WRITE.
        const REMOTE_WRITE = 2;
        /// A peer may READ.
        const REMOTE_READ = 4;
        /// A peer may do atomics.
        const REMOTE_ATOMIC = 8;
        /// Memory windows may be bound to it.
        const MW_BIND = 16;
        /// Addressed from 0 on.
        const ZERO_BASED = 32;
    }
}

/// Access to memory was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denied {
    /// No such key, wrong protection domain, out of bounds or missing permission.
    Protection,
    /// The region allows it, but the application unmapped the memory.
    Unmapped,
    /// The region allows it, but its pages are not in the adapter's translation table: a network page fault. The host
    /// has begun to resolve it and will tell by [`crate::Qp::page_resolved`].
    PageFault,
}

/// Which work queue a completion belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queue {
    /// To the send CQ.
    Send,
    /// To the receive CQ.
    Receive,
}

/// An atomic operation on 8 bytes, in the host's byte order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomicOp {
    CompareSwap { compare: u64, swap: u64 },
    FetchAdd { add: u64 },
}

/// A memory window and what it is to open (IBTA 10.6.7.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bind {
    /// The key that the window has had until now.
    pub window_rkey: u32,
    /// The key that it will have; they differ in the low byte only.
    pub new_rkey: u32,
    /// Of the region beneath. Ignored where `len` is 0.
    pub mr_lkey: u32,
    /// First byte, as the region is addressed.
    pub addr: u64,
    /// Bytes; 0 unbinds a window of type 1.
    pub len: u64,
    /// What peers may do there, and whether they count from 0 (`ZERO_BASED`).
    pub access: Access,
}

/// Memory and queues of the process, within the QP's protection domain. What copies may meet a page fault
/// ([`Denied::PageFault`]); what only checks asks for permission and looks at no page.
pub trait Host {
    /// Whether the adapter may use these pieces: for reading with empty `access`, for writing with `LOCAL_WRITE`.
    fn check_local(&mut self, sges: &[Sge], access: Access) -> Result<(), Denied>;

    /// Whether a peer may use `len` bytes from `va` by `rkey`. Never called for zero bytes (IBTA C9-88).
    fn check_remote(&mut self, rkey: u32, va: u64, len: u64, access: Access) -> Result<(), Denied>;

    /// Copies `bytes` to the list of pieces, from byte `offset` of their sum on; the last cache line is written last.
    fn scatter(&mut self, sges: &[Sge], offset: u64, bytes: &[u8]) -> Result<(), Denied>;

    /// Copies `bytes` to `va` on behalf of a peer; the last cache line is written last. Checks the key again.
    fn write_remote(&mut self, rkey: u32, va: u64, bytes: &[u8]) -> Result<(), Denied>;

    /// Performs an atomic at an aligned `va` on behalf of a peer and returns the value before.
    fn atomic(&mut self, rkey: u32, va: u64, op: AtomicOp) -> Result<u64, Denied>;

    /// Sees to it that `len` bytes from byte `offset` of the pieces' sum can be written: asked before a READ or an atomic
    /// leaves, so that its answer meets no page fault.
    fn prepare_local(&mut self, _sges: &[Sge], _offset: u64, _len: u64, _access: Access) -> Result<(), Denied> {
        Ok(())
    }

    /// Says, after a page fault on behalf of a peer, how far its message goes on from there: all of it may be resolved
    /// at once.
    fn expect_remote(&mut self, _range: &Remote, _access: Access) {}

    /// Binds a memory window. `Denied`: the request completes with a memory window bind error.
    fn bind_window(&mut self, _bind: &Bind) -> Result<(), Denied> {
        Err(Denied::Protection)
    }

    /// Ends a key of this process on behalf of a local work request. `Denied`: it completes with a local QP operation
    /// or bind error.
    fn invalidate_local(&mut self, _key: u32) -> Result<(), Denied> {
        Err(Denied::Protection)
    }

    /// Ends a window's key on behalf of a peer that is done with it. `Denied`: a remote access error NAK
    /// (IBTA 9.4.1.1.2).
    fn invalidate_remote(&mut self, _rkey: u32) -> Result<(), Denied> {
        Err(Denied::Protection)
    }

    /// Takes the oldest receive of the QP's shared receive queue, or of the one selected last: writes its pieces to
    /// the front of `sges` and returns its `wr_id` and their number. `None`: there is none.
    fn take_receive(&mut self, _sges: &mut [Sge]) -> Option<(u64, usize)> {
        None
    }

    /// XRC: the message that begins is for the shared receive queue of this number, whose protection domain is that
    /// of its memory accesses and whose CQ gets its completion. Returns that protection domain. `None`: the QP's XRC
    /// domain has no queue of that number.
    fn select_srq(&mut self, _number: u32) -> Option<u32> {
        None
    }

    /// Whether the adapter has a place for one more outstanding READ or atomic ([`crate::Outstanding`]): asked where the
    /// profile has `outstanding_reads`, before the first packet of one leaves for the first time. False: the QP says
    /// `Limited`, and is to be polled again when any QP has given a place back.
    fn take_read(&mut self) -> bool {
        true
    }

    /// So many of them are answered, or given up.
    fn give_back_reads(&mut self, _count: u32) {}

    /// Takes a completion. `solicited`: it is an error, or answers a request with the solicited bit.
    fn complete(&mut self, queue: Queue, completion: Completion, solicited: bool);

    /// Takes an asynchronous event.
    fn event(&mut self, event: QpEvent);
}

/// Memory that a peer names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// The protection domain that the request named by its SRQ. `None`: that of the QP, or of the request in hand.
    pub pd: Option<u32>,
    pub rkey: u32,
    /// First byte.
    pub va: u64,
    /// Bytes.
    pub len: u64,
}

/// Where a packet's payload lies.
#[derive(Clone, Copy, Debug)]
pub enum Payload<'a> {
    /// Nowhere: there is none.
    None,
    /// `len` bytes from byte `offset` of the sum of these pieces.
    Gather { sges: &'a [Sge], offset: u64, len: usize },
    /// Here.
    Bytes(&'a [u8]),
    /// In memory that a peer READs.
    Remote(Remote),
}

impl Payload<'_> {
    /// Bytes.
    pub fn len(&self) -> usize {
        match *self {
            Payload::None => 0,
            Payload::Gather { len, .. } => len,
            Payload::Remote(Remote { len, .. }) => len as usize,
            Payload::Bytes(bytes) => bytes.len(),
        }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A packet to send: the pad count in its BTH is set; pad and ICRC are the carrier's side to add.
#[derive(Clone, Copy, Debug)]
pub struct Outgoing<'a> {
    /// BTH and extension headers.
    pub headers: Headers,
    /// Where its payload lies.
    pub payload: Payload<'a>,
    /// Where it goes, if not to the peer that the QP is connected to.
    pub to: Option<Datagram>,
}

/// Why a packet was not taken; nothing of it goes out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// No room now: offer it again at the next `poll_transmit`.
    Full,
    /// Its payload cannot be read.
    Denied(Denied),
}

/// Takes packets of one QP on their way out; payload is copied before `push` returns.
pub trait Egress {
    /// Takes one packet.
    fn push(&mut self, packet: &Outgoing<'_>) -> Result<(), Refused>;

    /// A packet that the adapter itself loses (packet damming): its captures show it, nobody sends it. Its payload need
    /// not be read, nor be there.
    fn lose(&mut self, _packet: &Outgoing<'_>) {}
}
