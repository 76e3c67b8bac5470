//! A QP as the engine sees it: its protocol, its CQs, its source of receives, its doorbell.

use crate::events::AsyncEvent;
use crate::os::locks::{RankedGuard, RankedMutex, rank};
use crate::os::notify::Notify;
use crate::paging::QpFaults;
use crate::shared::cq::{CqShared, RetiredWqes};
use crate::shared::doorbells::Bell;
use crate::shared::srq::{Domain, SrqShared};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use weir_transport::{Completion, Queue, Service, Sge, TaggedReceive};

/// The part of a QP that the application's threads and the engine share.
/// See [`rank`] for the order of its locks.
pub(crate) struct QpShared {
    pub num: u32,
    /// Protection domain; for an XRC target, that of the SRQ of the current message.
    pd: AtomicU32,
    pub cookie: u64,
    pub service: Service,
    protocol: RankedMutex<weir_transport::Qp, { rank::PROTOCOL }>,
    pub send_cq: Arc<CqShared>,
    pub recv_cq: Arc<CqShared>,
    pub retired: Arc<RetiredWqes>,
    pub events: Arc<Notify<AsyncEvent>>,
    pub bell: Bell,
    /// Its network page faults.
    pub faults: Arc<QpFaults>,
    /// Bytes posted since the engine last read this counter.
    pub unsent: AtomicU32,
    /// Requests are in flight: new requests may wait to be sent together.
    pub busy: AtomicBool,
    /// Datagrams of this QP to a multicast group are not delivered to the QP itself.
    pub blocks_own_multicast: AtomicBool,
    /// A receive was posted in the error state: the engine must flush it.
    pub flush_due: AtomicBool,
    receives: ReceiveSource,
    /// XRC: the SRQ that the last message named.
    named: RankedMutex<Option<Arc<SrqShared>>, { rank::NAMED_SRQ }>,
    pub posted: Posted,
}

/// What a QP is made of.
pub(crate) struct Parts {
    pub num: u32,
    pub pd: u32,
    pub cookie: u64,
    pub service: Service,
    pub protocol: weir_transport::Qp,
    pub send_cq: Arc<CqShared>,
    pub recv_cq: Arc<CqShared>,
    pub events: Arc<Notify<AsyncEvent>>,
    pub receives: ReceiveSource,
}

/// Where the engine takes a QP's receives from.
pub(crate) enum ReceiveSource {
    /// The QP's own receive queue, which the protocol keeps.
    Own,
    /// A shared receive queue.
    Shared(Arc<SrqShared>),
    /// XRC: the SRQs of a domain.
    Domain(Arc<Domain>),
}

/// Work requests posted so far, wrapping; changed under the `protocol` lock.
#[derive(Default)]
pub(crate) struct Posted {
    pub send: AtomicU32,
    pub recv: AtomicU32,
}

impl Posted {
    /// Returns whether the queue is full: `max` work requests are posted and not yet polled.
    pub fn full(posted: &AtomicU32, retired: &AtomicU32, max: u32) -> bool {
        posted.load(Ordering::Relaxed).wrapping_sub(retired.load(Ordering::Acquire)) >= max
    }
}

impl QpShared {
    /// A QP in the RESET state, with nothing posted.
    pub fn new(parts: Parts) -> QpShared {
        QpShared {
            num: parts.num,
            pd: AtomicU32::new(parts.pd),
            cookie: parts.cookie,
            service: parts.service,
            protocol: RankedMutex::new(parts.protocol),
            send_cq: parts.send_cq,
            recv_cq: parts.recv_cq,
            retired: Arc::default(),
            events: parts.events,
            bell: Bell::new(),
            faults: Arc::new(QpFaults::new(parts.num)),
            unsent: AtomicU32::new(0),
            busy: AtomicBool::new(false),
            blocks_own_multicast: AtomicBool::new(false),
            flush_due: AtomicBool::new(false),
            receives: parts.receives,
            named: RankedMutex::new(None),
            posted: Posted::default(),
        }
    }

    /// Locks the protocol. A thread that holds this lock must not take that of another QP.
    #[inline]
    pub fn lock(&self) -> RankedGuard<'_, weir_transport::Qp, { rank::PROTOCOL }> {
        self.protocol.lock()
    }

    /// Its protection domain.
    #[inline]
    pub fn pd(&self) -> u32 {
        self.pd.load(Ordering::Relaxed)
    }

    /// Returns whether its own datagrams to a multicast group are not delivered to it.
    pub fn blocks_own_multicast(&self) -> bool {
        self.blocks_own_multicast.load(Ordering::Relaxed)
    }

    /// Adds posted bytes; the caller holds the `protocol` lock.
    #[inline]
    pub fn count_unsent(&self, bytes: u32) {
        let unsent = self.unsent.load(Ordering::Relaxed);
        self.unsent.store(unsent.saturating_add(bytes), Ordering::Relaxed);
    }

    /// Takes the oldest shared receive.
    pub fn take_receive(&self, sges: &mut [Sge]) -> Option<(u64, usize)> {
        match &self.receives {
            ReceiveSource::Own => None,
            ReceiveSource::Shared(srq) => srq.take(sges),
            ReceiveSource::Domain(_) => self.named().as_ref()?.take(sges),
        }
    }

    /// Takes the receive of a TM SRQ for a message with this tag, or without one.
    pub fn take_tagged(&self, tag: Option<u64>, sges: &mut [Sge]) -> Option<TaggedReceive> {
        match &self.receives {
            ReceiveSource::Shared(srq) => srq.take_tagged(tag, sges),
            ReceiveSource::Own | ReceiveSource::Domain(_) => None,
        }
    }

    /// A message with a tag, which took an ordinary receive of a TM SRQ, has failed.
    pub fn uncount_unexpected(&self) {
        if let ReceiveSource::Shared(srq) = &self.receives {
            srq.uncount_unexpected();
        }
    }

    /// Selects the SRQ that a new message names. Returns the protection domain of the SRQ, `None` if the domain has
    /// no SRQ of that number.
    pub fn select_srq(&self, number: u32) -> Option<u32> {
        let ReceiveSource::Domain(domain) = &self.receives else { return None };
        let srq = domain.find(number)?;
        let pd = srq.pd;
        self.pd.store(pd, Ordering::Relaxed);
        *self.named() = Some(srq);
        Some(pd)
    }

    /// An SRQ is destroyed, and the caller holds it: it is not kept for the last message that named it. Otherwise the
    /// next message would free its memory in a turn.
    pub fn forget_srq(&self, srq: &Arc<SrqShared>) {
        self.named().take_if(|named| Arc::ptr_eq(named, srq));
    }

    /// Returns whether the CQ of its receives depends on the SRQ that the message names.
    pub fn recv_cq_varies(&self) -> bool {
        matches!(self.receives, ReceiveSource::Domain(_))
    }

    /// Adds a completion to its CQ.
    pub fn complete(&self, queue: Queue, completion: Completion, solicited: bool) {
        let push = |cq: &CqShared| cq.push(queue, completion, &self.retired, solicited);
        match queue {
            Queue::Send => push(&self.send_cq),
            Queue::Receive if self.recv_cq_varies() => {
                if let Some(cq) = self.named().as_ref().and_then(|srq| srq.cq.as_ref()) {
                    push(cq);
                }
            }
            Queue::Receive => push(&self.recv_cq),
        }
    }

    /// Returns whether a CQ that it completes to has overflowed.
    pub fn has_overflown(&self) -> bool {
        let of_named = || self.named().as_ref().and_then(|srq| srq.cq.as_ref()).is_some_and(|cq| cq.has_overflown());
        self.send_cq.has_overflown() || self.recv_cq.has_overflown() || of_named()
    }

    /// Drops all its completions, and counts work requests from 0 again; the caller holds the `protocol` lock.
    pub fn reset_counts(&self) {
        // Purge the CQs before the counters are reset: a poll of an old completion would change the counters.
        self.purge_cqs();
        for posted in [&self.posted.send, &self.posted.recv] {
            posted.store(0, Ordering::Relaxed);
        }
        self.retired.send.store(0, Ordering::Release);
        self.retired.recv.store(0, Ordering::Release);
    }

    /// Drops all its completions.
    pub fn purge_cqs(&self) {
        self.send_cq.purge(self.num);
        self.recv_cq.purge(self.num);
    }

    fn named(&self) -> RankedGuard<'_, Option<Arc<SrqShared>>, { rank::NAMED_SRQ }> {
        self.named.lock()
    }
}
