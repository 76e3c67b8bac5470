//! The interface that the protocol needs from the adapter around a queue pair.

use crate::{Access, AtomicOp, Bind, Completion, Datagram, Denied, QpEvent, Remote, Sge};
use weir_wire::{Headers, Placement, frame};

/// Which work queue a completion belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queue {
    /// The send CQ.
    Send,
    /// The receive CQ.
    Receive,
}

/// The receive that a TM SRQ gives a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaggedReceive {
    pub wr_id: u64,
    /// Its SGEs, at the front of the array.
    pub num_sge: usize,
    /// It belongs to a tag that the message matches; otherwise it is an ordinary receive of the queue.
    pub matched: bool,
    /// The program is asked to report its count of unexpected messages.
    pub sync_requested: bool,
}

/// Bytes of the network header that precedes a received datagram (IBTA 11.4.1.2): an IPv6 header, or 20 unused bytes
/// and an IPv4 header (annex A17.4.5.1).
pub const GRH_LEN: usize = 40;

/// A message of UC or UD that is dropped without a reply.
#[derive(Clone, Copy, Debug)]
pub struct Dropped<'a> {
    pub why: DropCause,
    /// The QP that sent it.
    pub sender: u32,
    /// UD: the network header, which has the sender's address.
    pub network_header: Option<&'a [u8; GRH_LEN]>,
}

/// Why a message is dropped, as far as a program can cause it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DropCause {
    /// UD: it has this Q_Key, and the QP another.
    QKey { sent: u32, own: u32 },
    /// No receive is posted.
    NoReceive,
    /// It does not fit into its receive of `room` bytes; UD: with its GRH.
    TooLong { room: u64 },
    /// UD: its payload is longer than the port's MTU.
    AboveMtu { length: usize, mtu: usize },
    /// UC: the access flags of the QP or of the memory do not allow it, or the key is wrong.
    Refused,
}

/// Memory and queues of the process, within the QP's protection domain. Functions that copy may meet a page fault
/// ([`Denied::PageFault`]). Functions that only check look at permissions, not at pages.
pub trait Host {
    /// Whether the adapter may use these SGEs: for reading if `access` is empty, for writing with `LOCAL_WRITE`.
    fn check_local(&mut self, sges: &[Sge], access: Access) -> Result<(), Denied>;

    /// Whether a peer may use `len` bytes from `va` by `rkey`. Never called for zero bytes (IBTA C9-88).
    fn check_remote(&mut self, rkey: u32, va: u64, len: u64, access: Access) -> Result<(), Denied>;

    /// Copies `bytes` to the SGEs, starting at byte `offset` of their concatenation; writes the last cache line last.
    fn scatter(&mut self, sges: &[Sge], offset: u64, bytes: &[u8]) -> Result<(), Denied>;

    /// Copies `bytes` to `va` on behalf of a peer; writes the last cache line last. Checks the key again.
    fn write_remote(&mut self, rkey: u32, va: u64, bytes: &[u8]) -> Result<(), Denied>;

    /// Performs an atomic at an aligned `va` on behalf of a peer and returns the previous value.
    fn atomic(&mut self, rkey: u32, va: u64, op: AtomicOp) -> Result<u64, Denied>;

    /// Checks that a key allows a FLUSH of a range (address and bytes, not 0), or of all of its memory, and makes what
    /// was written there visible.
    fn flush_remote(&mut self, _rkey: u32, _range: Option<(u64, u64)>, _access: Access) -> Result<(), Denied> {
        Err(Denied::Protection)
    }

    /// Makes `len` bytes, starting at byte `offset` of the SGEs' concatenation, writable. The requester calls it
    /// before a READ or an atomic leaves, so that the response meets no page fault.
    fn prepare_local(&mut self, _sges: &[Sge], _offset: u64, _len: u64, _access: Access) -> Result<(), Denied> {
        Ok(())
    }

    /// After a page fault on behalf of a peer: the rest of the peer's message covers `range`. The host may resolve
    /// all of it at once.
    fn expect_remote(&mut self, _range: &Remote, _access: Access) {}

    /// Binds a memory window. `Denied`: the request completes with a memory window bind error.
    fn bind_window(&mut self, _bind: &Bind) -> Result<(), Denied> {
        Err(Denied::Protection)
    }

    /// Invalidates a key of this process on behalf of a local work request. `Denied`: the request completes with a
    /// local QP operation or bind error.
    fn invalidate_local(&mut self, _key: u32) -> Result<(), Denied> {
        Err(Denied::Protection)
    }

    /// Invalidates a window's rkey on behalf of a peer. `Denied`: the QP sends a remote access error NAK
    /// (IBTA 9.4.1.1.2).
    fn invalidate_remote(&mut self, _rkey: u32) -> Result<(), Denied> {
        Err(Denied::Protection)
    }

    /// Takes the oldest receive of the QP's shared receive queue, or of the queue that `select_srq` selected last.
    /// Writes its SGEs to the front of `sges` and returns its `wr_id` and their number. `None`: the queue is empty.
    fn take_receive(&mut self, _sges: &mut [Sge]) -> Option<(u64, usize)> {
        None
    }

    /// TM SRQ: takes the receive for a message with this tag, or without one. Writes its SGEs to the front of `sges`.
    /// `None`: the message matches no tag, and the queue is empty.
    fn take_tagged(&mut self, _tag: Option<u64>, _sges: &mut [Sge]) -> Option<TaggedReceive> {
        None
    }

    /// TM SRQ: a message with a tag that took an ordinary receive ends without a successful completion, so the program does
    /// not count it among its unexpected messages.
    fn uncount_unexpected(&mut self) {}

    /// XRC: the message that begins is for the shared receive queue `number`. The message's memory accesses use that
    /// queue's protection domain, and its completion goes to that queue's CQ. Returns the protection domain. `None`:
    /// the QP's XRC domain has no queue of that number.
    fn select_srq(&mut self, _number: u32) -> Option<u32> {
        None
    }

    /// Takes a completion. `solicited`: it is an error, or it completes a request with the solicited bit.
    fn complete(&mut self, queue: Queue, completion: Completion, solicited: bool);

    /// Takes an asynchronous event.
    fn event(&mut self, event: QpEvent);

    /// A message of UC or UD is dropped.
    fn dropped(&mut self, _message: &Dropped<'_>) {}
}

/// The location of a packet's payload.
#[derive(Clone, Copy, Debug)]
pub enum Payload<'a> {
    /// No payload.
    None,
    /// `len` bytes, starting at byte `offset` of the concatenation of these SGEs.
    Gather { sges: &'a [Sge], offset: u64, len: usize },
    /// In these bytes.
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

    /// Whether there is no payload.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A packet to send. The pad count in its BTH is set; the carrier adds the pad bytes and the ICRC.
#[derive(Clone, Copy, Debug)]
pub struct Outgoing<'a> {
    /// BTH and extension headers.
    pub headers: Headers,
    /// The location of its payload.
    pub payload: Payload<'a>,
    /// Where the payload belongs: the packet leaves as a frame ([`weir_wire::frame`]). `None`: as a RoCE packet.
    pub placement: Option<Placement>,
    /// The destination, if it is not the QP's connected peer.
    pub to: Option<Datagram>,
}

impl Outgoing<'_> {
    /// Length in bytes of everything before the payload.
    #[inline]
    pub fn header_len(&self) -> usize {
        if self.placement.is_some() { frame::HEADER_LEN } else { self.headers.len() }
    }

    /// Writes everything before the payload to the front of `out` and returns its length.
    ///
    /// # Panics
    /// If `out` is shorter than that.
    #[inline]
    pub fn emit_header(&self, out: &mut [u8]) -> usize {
        match &self.placement {
            Some(placement) => frame::emit(&self.headers, placement, out),
            None => self.headers.emit(out),
        }
    }
}

/// Why the egress did not take a packet; nothing of the packet is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// No room at present: offer the packet again at the next `poll_transmit`.
    Full,
    /// The payload cannot be read.
    Denied(Denied),
}

/// Takes the outgoing packets of one QP; `push` copies the payload before it returns.
pub trait Egress {
    /// Whether `push` can take another packet. False: it would return [`Refused::Full`], so that the QP need not
    /// build the packet.
    #[inline]
    fn has_room(&self) -> bool {
        true
    }

    /// Takes one packet.
    fn push(&mut self, packet: &Outgoing<'_>) -> Result<(), Refused>;
}
