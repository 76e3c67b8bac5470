//! Queue pairs of the verbs: creation, posting, modification, destruction.

use crate::context::{LIMITS, Pd};
use crate::cq::{Cq, RetiredWqes};
use crate::engine::host::QpHost;
use crate::engine::quirks::Reads;
use crate::handover::Bell;
use crate::interfaces::HEADERS;
use crate::memory::region::Cached;
use crate::notify::Notify;
use crate::paging::QpFaults;
use crate::srq::{Srq, SrqShared, Xrcd};
use crate::{AsyncEvent, Errno, clock};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use weir_transport::{
    AttrMask, Completion, Data, ModifyError, Mtu, PostError, QpAttr, QpCaps, QpInit, QpState, Queue, RecvWr, SendWr,
    Service, Sge, Side, Target, Tuning,
};

/// Attributes of a new QP.
#[derive(Clone, Copy, Debug)]
pub struct QpCreate {
    pub service: Service,
    /// Requested capabilities; [`Qp::caps`] returns the granted ones (at least these). EINVAL beyond the limits.
    pub caps: QpCaps,
    pub sq_sig_all: bool,
    /// The number that comes back with events.
    pub cookie: u64,
}

/// Where a QP takes its receives from.
#[derive(Clone, Default)]
pub enum Receives {
    /// Its own receive queue.
    #[default]
    Own,
    /// A shared receive queue.
    Shared(Arc<Srq>),
    /// XRC: the SRQs of a domain. The QP only responds.
    Domain(Arc<Xrcd>),
}

/// A queue pair.
pub struct Qp {
    pd: Arc<Pd>,
    caps: QpCaps,
    shared: Arc<Shared>,
    /// How often the QP is open: the last `destroy` ends it (XRC targets are opened several times).
    handles: AtomicU32,
}

/// The part of a QP that the application's threads and the engine share. Lock order: engine, `protocol`, CQ.
pub(crate) struct Shared {
    pub num: u32,
    /// Protection domain; for an XRC target, that of the SRQ of the current message.
    pd: AtomicU32,
    pub cookie: u64,
    pub service: Service,
    pub protocol: Mutex<weir_transport::Qp>,
    pub send_cq: Arc<Cq>,
    pub recv_cq: Arc<Cq>,
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
    blocks_own_multicast: AtomicBool,
    /// A receive was posted in the error state: the engine must flush it.
    flush_due: AtomicBool,
    receives: Receives,
    /// The limit of outstanding READs over all QPs, if the profile limits them.
    pub reads: Option<Arc<Reads>>,
    /// XRC: the SRQ that the last message named.
    named: Mutex<Option<Arc<SrqShared>>>,
    posted: Posted,
}

/// Work requests posted so far, wrapping; changed under the `protocol` lock.
#[derive(Default)]
struct Posted {
    send: AtomicU32,
    recv: AtomicU32,
}

impl Posted {
    /// Whether the queue is full: `max` work requests are posted and not yet polled.
    fn full(posted: &AtomicU32, retired: &AtomicU32, max: u32) -> bool {
        posted.load(Ordering::Relaxed).wrapping_sub(retired.load(Ordering::Acquire)) >= max
    }
}

impl Shared {
    pub fn lock(&self) -> MutexGuard<'_, weir_transport::Qp> {
        self.protocol.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its protection domain.
    #[inline]
    pub fn pd(&self) -> u32 {
        self.pd.load(Ordering::Relaxed)
    }

    /// Whether its own datagrams to a multicast group are not delivered to it.
    pub fn blocks_own_multicast(&self) -> bool {
        self.blocks_own_multicast.load(Ordering::Relaxed)
    }

    /// Takes the oldest shared receive.
    pub fn take_receive(&self, sges: &mut [Sge]) -> Option<(u64, usize)> {
        match &self.receives {
            Receives::Own => None,
            Receives::Shared(srq) => srq.shared.take(sges),
            Receives::Domain(_) => self.named().as_ref()?.take(sges),
        }
    }

    /// Selects the SRQ that a new message names. Returns the protection domain of the SRQ, `None` if the domain has
    /// no SRQ of that number.
    pub fn select_srq(&self, number: u32) -> Option<u32> {
        let Receives::Domain(xrcd) = &self.receives else { return None };
        let srq = xrcd.domain.find(number)?;
        let pd = srq.pd;
        self.pd.store(pd, Ordering::Relaxed);
        *self.named() = Some(srq);
        Some(pd)
    }

    /// Whether the CQ of its receives depends on the SRQ that the message names.
    pub fn recv_cq_varies(&self) -> bool {
        matches!(self.receives, Receives::Domain(_))
    }

    /// Adds a completion to its CQ.
    pub fn complete(&self, queue: Queue, completion: Completion, solicited: bool) {
        let push = |cq: &Cq| cq.push(queue, completion, &self.retired, solicited);
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

    /// Whether a CQ that it completes to has overflowed.
    pub fn has_overflown(&self) -> bool {
        let of_named = || self.named().as_ref().and_then(|srq| srq.cq.as_ref()).is_some_and(|cq| cq.has_overflown());
        self.send_cq.has_overflown() || self.recv_cq.has_overflown() || of_named()
    }

    fn named(&self) -> MutexGuard<'_, Option<Arc<SrqShared>>> {
        self.named.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    /// Adds posted bytes; the caller holds the `protocol` lock.
    fn count_unsent(&self, bytes: u32) {
        let unsent = self.unsent.load(Ordering::Relaxed);
        self.unsent.store(unsent.saturating_add(bytes), Ordering::Relaxed);
    }
}

impl Qp {
    pub(crate) fn create(
        pd: &Arc<Pd>,
        create: &QpCreate,
        send_cq: &Arc<Cq>,
        recv_cq: &Arc<Cq>,
        receives: Receives,
    ) -> Result<Arc<Qp>, Errno> {
        let served = matches!(
            (create.service, &receives),
            (Service::Rc | Service::Uc | Service::Ud, Receives::Own | Receives::Shared(_))
                | (Service::Xrc, Receives::Own | Receives::Domain(_))
        );
        if !served {
            return Err(Errno(libc::EOPNOTSUPP));
        }
        let mut caps = granted(&create.caps)?;
        if create.service == Service::Xrc || matches!(receives, Receives::Shared(_)) {
            (caps.max_recv_wr, caps.max_recv_sge) = (0, 0);
        }
        let adapter = &pd.context.adapter;
        let shared = adapter.add_qp(|num| {
            let init = QpInit { qp_num: num, service: create.service, caps, sq_sig_all: create.sq_sig_all };
            let mut protocol = weir_transport::Qp::try_new(init, adapter.profile.clone(), Tuning::default())?;
            protocol.set_datagram_mtu(adapter.device.mtu());
            match &receives {
                Receives::Own => {}
                Receives::Shared(srq) => protocol.share_receives(srq.query().1)?,
                Receives::Domain(_) => protocol.become_xrc_target(LIMITS.max_sge)?,
            }
            Ok(Arc::new(Shared {
                num,
                pd: AtomicU32::new(pd.number),
                cookie: create.cookie,
                service: create.service,
                protocol: Mutex::new(protocol),
                send_cq: send_cq.clone(),
                recv_cq: recv_cq.clone(),
                retired: Arc::default(),
                events: pd.context.events.clone(),
                bell: Bell::new(),
                faults: Arc::new(QpFaults::new(num)),
                unsent: AtomicU32::new(0),
                busy: AtomicBool::new(false),
                blocks_own_multicast: AtomicBool::new(false),
                flush_due: AtomicBool::new(false),
                receives: receives.clone(),
                reads: adapter.reads(),
                named: Mutex::default(),
                posted: Posted::default(),
            }))
        })?;
        pd.attach();
        send_cq.attach();
        recv_cq.attach();
        let qp = Arc::new(Qp { pd: pd.clone(), caps, shared, handles: AtomicU32::new(1) });
        match &receives {
            Receives::Own => {}
            Receives::Shared(srq) => srq.attach(),
            Receives::Domain(xrcd) => xrcd.enter(&qp),
        }
        Ok(qp)
    }

    /// Opens the QP once more; each open needs its own `destroy`.
    pub fn open(&self) {
        self.handles.fetch_add(1, Ordering::AcqRel);
    }

    /// Its number on the wire.
    pub fn num(&self) -> u32 {
        self.shared.num
    }

    /// The granted capabilities.
    pub fn caps(&self) -> QpCaps {
        self.caps
    }

    /// EINVAL for transitions, masks and values that the IBTA does not allow, or for a missing source GID.
    pub fn modify(&self, attr: &QpAttr, mask: AttrMask) -> Result<(), Errno> {
        let adapter = &self.pd.context.adapter;
        adapter.check()?;
        if mask.contains(AttrMask::PATH_MTU) {
            self.check_path_mtu(attr.path_mtu)?;
        }
        let route = if mask.contains(AttrMask::AV) { Some(adapter.route(&attr.ah_attr)?) } else { None };
        if route.is_some_and(|route| route.remote.is_multicast()) {
            return Err(Errno(libc::EINVAL));
        }
        // Between turns: a WQE that ends here may be part of a burst that still refers to application memory.
        let (result, state, dest) = adapter.between_turns(|| self.modify_protocol(attr, mask));
        if let Err(error) = result {
            tracing::warn!("QP {:#08x}: modify: {error}", self.shared.num);
            return Err(error.into());
        }
        if let Some(route) = route {
            adapter.connect(&self.shared, route, dest, mask.contains(AttrMask::RQ_PSN).then_some(attr.rq_psn));
        } else {
            adapter.ring(&self.shared, true);
        }
        if mask.contains(AttrMask::SQ_PSN) {
            adapter.send_from(&self.shared, attr.sq_psn);
        }
        match state {
            QpState::Reset => adapter.disconnect(&self.shared),
            QpState::Rtr if self.shared.service == Service::Ud => adapter.expect_foreign_senders(),
            _ => {}
        }
        Ok(())
    }

    /// EINVAL for a path MTU above the port's, as on adapters: peers would drop every full packet. If the MTU of the
    /// interface cannot be queried, any path MTU is accepted.
    fn check_path_mtu(&self, wanted: Mtu) -> Result<(), Errno> {
        let adapter = &self.pd.context.adapter;
        let device = &adapter.device;
        match adapter.watch.device().map(|now| now.mtu()) {
            Some(active) if wanted > active => {
                let (num, name) = (self.shared.num, &device.ifname);
                let (wanted, active) = (wanted.bytes(), active.bytes());
                tracing::warn!(
                    "QP {num:#08x}: modify: path MTU {wanted} is above the {active} that {name} carries; \
                     use the port's active_mtu, or give {name} an MTU of {} or more",
                    wanted + HEADERS
                );
                Err(Errno(libc::EINVAL))
            }
            _ => Ok(()),
        }
    }

    /// UD: attaches the QP to a multicast group. EINVAL for a unicast address or a QP that is not UD, ENOMEM beyond
    /// the limit, EADDRINUSE if another socket has port 4791 exclusively.
    pub fn attach(&self, group: IpAddr) -> Result<(), Errno> {
        if self.shared.service != Service::Ud || !group.is_multicast() {
            return Err(Errno(libc::EINVAL));
        }
        self.pd.context.adapter.attach(&self.shared, group)
    }

    /// Detaches the QP from the group. EINVAL if it was not attached.
    pub fn detach(&self, group: IpAddr) -> Result<(), Errno> {
        self.pd.context.adapter.detach(&self.shared, group)
    }

    /// Stops the delivery of its own multicast datagrams to itself.
    pub fn block_own_multicast(&self) {
        self.shared.blocks_own_multicast.store(true, Ordering::Relaxed);
    }

    /// Returns the result, the new state, and the destination QPN.
    fn modify_protocol(&self, attr: &QpAttr, mask: AttrMask) -> (Result<(), ModifyError>, QpState, u32) {
        let shared = &self.shared;
        let mut protocol = shared.lock();
        let mut cached = Cached::default();
        let regions = &self.pd.context.adapter.regions;
        let mut host = QpHost { shared, regions, cached: &mut cached, done: None, side: Side::Requester };
        let result = protocol.modify(clock::now(), attr, mask, &mut host);
        let (state, dest) = (protocol.state(), protocol.attr().dest_qp_num);
        if state == QpState::Reset {
            // Purge the CQs before the counters are reset: a poll of an old completion would change the counters.
            shared.send_cq.purge(shared.num);
            shared.recv_cq.purge(shared.num);
            for posted in [&shared.posted.send, &shared.posted.recv] {
                posted.store(0, Ordering::Relaxed);
            }
            shared.retired.send.store(0, Ordering::Release);
            shared.retired.recv.store(0, Ordering::Release);
        }
        (result, state, dest)
    }

    /// All attributes.
    pub fn query(&self) -> QpAttr {
        self.shared.lock().attr()
    }

    /// Posts one send; call [`Qp::doorbell`] after the last of a list.
    pub fn post_send(&self, wr: &SendWr<'_>) -> Result<(), PostError> {
        self.post_send_to(wr, Target::Peer)
    }

    /// Posts one send to an explicit target: the peer, an SRQ of the peer (XRC), or an address (UD).
    #[inline]
    pub fn post_send_to(&self, wr: &SendWr<'_>, to: Target) -> Result<(), PostError> {
        let shared = &*self.shared;
        let mut protocol = shared.lock();
        self.check(&protocol)?;
        if Posted::full(&shared.posted.send, &shared.retired.send, self.caps.max_send_wr) {
            return Err(PostError::QueueFull);
        }
        protocol.post_send_to(wr, to)?;
        shared.posted.send.fetch_add(1, Ordering::Relaxed);
        shared.count_unsent(cost(wr));
        Ok(())
    }

    /// Posts sends as a unit, all or none, with no send of another thread between them; then call [`Qp::doorbell`].
    pub fn post_sends<'a>(&self, wrs: impl ExactSizeIterator<Item = (SendWr<'a>, Target)>) -> Result<(), PostError> {
        let shared = &*self.shared;
        let count = wrs.len() as u32;
        let mut protocol = shared.lock();
        self.check(&protocol)?;
        let used = shared.posted.send.load(Ordering::Relaxed);
        let used = used.wrapping_sub(shared.retired.send.load(Ordering::Acquire));
        if used.saturating_add(count) > self.caps.max_send_wr {
            return Err(PostError::QueueFull);
        }
        let mut bytes = 0u32;
        for (done, (wr, to)) in wrs.enumerate() {
            if let Err(error) = protocol.post_send_to(&wr, to) {
                protocol.take_back_sends(done as u32);
                return Err(error);
            }
            bytes = bytes.saturating_add(cost(&wr));
        }
        shared.posted.send.fetch_add(count, Ordering::Relaxed);
        shared.count_unsent(bytes);
        Ok(())
    }

    /// Posts one receive; call [`Qp::doorbell_receive`] after the last of a list.
    pub fn post_recv(&self, wr: &RecvWr<'_>) -> Result<(), PostError> {
        let shared = &*self.shared;
        let mut protocol = shared.lock();
        self.check(&protocol)?;
        if Posted::full(&shared.posted.recv, &shared.retired.recv, self.caps.max_recv_wr) {
            return Err(PostError::QueueFull);
        }
        protocol.post_recv(wr)?;
        shared.posted.recv.fetch_add(1, Ordering::Relaxed);
        if protocol.state() == QpState::Error {
            shared.flush_due.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    /// EIO after an adapter failure: the QPs are in the error state, nothing is flushed and no request is accepted.
    #[inline]
    fn check(&self, protocol: &weir_transport::Qp) -> Result<(), PostError> {
        let failed = protocol.state() == QpState::Error && !self.pd.context.adapter.condition.works();
        if failed { Err(PostError::Failed) } else { Ok(()) }
    }

    /// Tells the engine that sends were posted.
    pub fn doorbell(&self) {
        let adapter = &self.pd.context.adapter;
        adapter.ring(&self.shared, false);
    }

    /// Tells the engine that receives were posted: needed only in the error state, where the engine flushes them.
    pub fn doorbell_receive(&self) {
        let due = &self.shared.flush_due;
        if due.load(Ordering::Relaxed) && due.swap(false, Ordering::AcqRel) {
            self.pd.context.adapter.ring(&self.shared, true);
        }
    }

    /// Destroys the QP: purges its completions, sends owed ACKs. No event of it comes after the return. EBUSY while
    /// it is attached to a multicast group.
    pub fn destroy(&self) -> Result<(), Errno> {
        if !self.pd.context.adapter.is_ours() {
            return Ok(());
        }
        if self.shared.service == Service::Ud && self.pd.context.adapter.is_attached(&self.shared) {
            return Err(Errno(libc::EBUSY));
        }
        let last = |handles: u32| handles.checked_sub(1);
        if self.handles.fetch_update(Ordering::AcqRel, Ordering::Acquire, last) == Ok(1) {
            self.pd.context.adapter.remove_qp(&self.shared);
            self.pd.context.adapter.regions.close_windows_of(self.shared.num);
            self.shared.send_cq.purge(self.shared.num);
            self.shared.recv_cq.purge(self.shared.num);
            let cookie = self.shared.cookie;
            self.shared.events.remove(|event| matches!(event, AsyncEvent::Qp { cookie: c, .. } if *c == cookie));
            self.shared.send_cq.detach();
            self.shared.recv_cq.detach();
            match &self.shared.receives {
                Receives::Own => {}
                Receives::Shared(srq) => srq.detach(),
                Receives::Domain(xrcd) => xrcd.leave(self.shared.num),
            }
            self.pd.detach();
        }
        Ok(())
    }
}

#[cfg(test)]
impl Qp {
    /// The part that the engine uses.
    pub(crate) fn shared_for_tests(&self) -> &Arc<Shared> {
        &self.shared
    }
}

impl Drop for Qp {
    fn drop(&mut self) {
        self.handles.fetch_min(1, Ordering::AcqRel);
        if self.shared.service == Service::Ud {
            self.pd.context.adapter.detach_all(&self.shared);
        }
        let _ = self.destroy();
    }
}

/// Approximate bytes on the wire: each packet has a cost beside its payload.
fn cost(wr: &SendWr<'_>) -> u32 {
    let bytes = match wr.data {
        Data::Inline(bytes) => bytes.len() as u32,
        Data::Gather(sges) => sges.iter().fold(0u32, |sum, sge| sum.saturating_add(sge.length)),
    };
    bytes.saturating_add(1024)
}

/// The granted capabilities: at least the requested ones. EINVAL beyond the limits.
fn granted(wanted: &QpCaps) -> Result<QpCaps, Errno> {
    let fits = wanted.max_send_wr <= LIMITS.max_qp_wr
        && wanted.max_recv_wr <= LIMITS.max_qp_wr
        && wanted.max_send_sge <= LIMITS.max_sge
        && wanted.max_recv_sge <= LIMITS.max_sge
        && wanted.max_inline_data <= LIMITS.max_inline;
    if !fits {
        return Err(Errno(libc::EINVAL));
    }
    Ok(QpCaps {
        max_send_wr: wanted.max_send_wr,
        max_recv_wr: wanted.max_recv_wr,
        max_send_sge: wanted.max_send_sge.max(1),
        max_recv_sge: wanted.max_recv_sge.max(1),
        max_inline_data: wanted.max_inline_data,
    })
}
