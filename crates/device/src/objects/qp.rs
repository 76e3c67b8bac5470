//! Queue pairs of the verbs: creation, posting, modification, destruction.

use crate::Errno;
use crate::adapter::Adapter;
use crate::engine::ethernet_port::longest_frame;
use crate::engine::host::QpHost;
use crate::events::AsyncEvent;
use crate::limits::LIMITS;
use crate::memory::keys::Cached;
use crate::objects::cq::Cq;
use crate::objects::pd::Pd;
use crate::objects::qp_caps;
use crate::objects::srq::Srq;
use crate::objects::xrcd::{TargetQp, Xrcd};
use crate::os::clock;
use crate::os::device_info::HEADERS;
use crate::os::refused::refused;
use crate::shared::qp::{Parts, Posted, QpShared, ReceiveSource};
use crate::shared::tagging::Tagging;
use crate::steering::spread::Spread;
use std::fmt;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use weir_transport::{
    AttrMask, Data, ModifyError, Mtu, PostError, QpAttr, QpCaps, QpInit, QpState, RecvWr, SendWr, Service, Side,
    Target, Tuning,
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

impl Receives {
    /// What the engine uses of it; the QP keeps the rest alive.
    fn source(&self) -> ReceiveSource {
        match self {
            Receives::Own => ReceiveSource::Own,
            Receives::Shared(srq) => ReceiveSource::Shared(srq.shared.clone()),
            Receives::Domain(xrcd) => ReceiveSource::Domain(xrcd.domain.clone()),
        }
    }

    /// The tags of a TM SRQ.
    fn tagging(&self) -> Option<&Tagging> {
        match self {
            Receives::Shared(srq) => srq.shared.tagging.as_ref(),
            Receives::Own | Receives::Domain(_) => None,
        }
    }
}

/// A queue pair.
pub struct Qp {
    pd: Arc<Pd>,
    caps: QpCaps,
    pub(crate) shared: Arc<QpShared>,
    send_cq: Arc<Cq>,
    recv_cq: Arc<Cq>,
    receives: Receives,
    /// Raw: it spreads what it receives over work queues.
    spread: OnceLock<Arc<Spread>>,
    /// Raw: its steering rules.
    flows: AtomicU32,
    /// How often the QP is open: the last `destroy` ends it (XRC targets are opened several times).
    handles: AtomicU32,
}

impl Pd {
    /// Creates a queue pair in RESET. EINVAL beyond the limits, EOPNOTSUPP for a service that is not supported.
    pub fn create_qp(
        self: &Arc<Self>,
        create: &QpCreate,
        send_cq: &Arc<Cq>,
        recv_cq: &Arc<Cq>,
    ) -> Result<Arc<Qp>, Errno> {
        self.context.adapter.check()?;
        Qp::create(self, create, send_cq, recv_cq, Receives::Own)
    }

    /// Creates a QP with an SRQ, or an XRC QP.
    pub fn create_qp_with(
        self: &Arc<Self>,
        create: &QpCreate,
        send_cq: &Arc<Cq>,
        recv_cq: &Arc<Cq>,
        receives: Receives,
    ) -> Result<Arc<Qp>, Errno> {
        self.context.adapter.check()?;
        Qp::create(self, create, send_cq, recv_cq, receives)
    }
}

impl Qp {
    /// What the engine keeps of it until it is freed.
    #[cfg(test)]
    pub(crate) fn weak_shared(&self) -> std::sync::Weak<QpShared> {
        Arc::downgrade(&self.shared)
    }

    fn create(
        pd: &Arc<Pd>,
        create: &QpCreate,
        send_cq: &Arc<Cq>,
        recv_cq: &Arc<Cq>,
        receives: Receives,
    ) -> Result<Arc<Qp>, Errno> {
        let served = matches!(
            (create.service, &receives),
            (Service::Rc | Service::Uc | Service::Ud | Service::Raw, Receives::Own | Receives::Shared(_))
                | (Service::Xrc, Receives::Own | Receives::Domain(_))
        );
        let tagging = receives.tagging();
        let served = served && (tagging.is_none() || create.service == Service::Rc);
        if !served {
            let service = create.service;
            let why = format_args!("QP: create: {service:?} is not supported with these receives");
            return Err(pd.refuse(libc::EOPNOTSUPP, why));
        }
        let mut caps = qp_caps::granted(&pd.context.adapter, &create.caps)?;
        if create.service == Service::Xrc || matches!(receives, Receives::Shared(_)) {
            (caps.max_recv_wr, caps.max_recv_sge) = (0, 0);
        }
        let adapter = &pd.context.adapter;
        if create.service == Service::Raw {
            adapter.with_engine(|engine| engine.open_ethernet(adapter)).map_err(|error| no_packet_socket(pd, error))?;
        }
        let shared = adapter.add_qp(|num| {
            let init = QpInit { qp_num: num, service: create.service, caps, sq_sig_all: create.sq_sig_all };
            let mut protocol = weir_transport::Qp::try_new(init, adapter.profile.clone(), Tuning::default())?;
            protocol.set_datagram_mtu(adapter.device.mtu());
            protocol.set_ethernet_limit(longest_frame(adapter));
            match &receives {
                Receives::Own => {}
                Receives::Shared(srq) if tagging.is_some() => {
                    protocol.match_tags(srq.query().1.max(LIMITS.max_tag_sge))?
                }
                Receives::Shared(srq) => protocol.share_receives(srq.query().1)?,
                Receives::Domain(_) => protocol.become_xrc_target(LIMITS.max_sge)?,
            }
            Ok(Arc::new(QpShared::new(Parts {
                num,
                pd: pd.number,
                cookie: create.cookie,
                service: create.service,
                protocol,
                send_cq: send_cq.shared.clone(),
                recv_cq: tagging.map_or(&recv_cq.shared, |tagging| &tagging.cq).clone(),
                events: pd.context.events.clone(),
                receives: receives.source(),
            })))
        })?;
        pd.attach();
        send_cq.attach();
        recv_cq.attach();
        let (send_cq, recv_cq) = (send_cq.clone(), recv_cq.clone());
        let (spread, flows, handles) = (OnceLock::new(), AtomicU32::new(0), AtomicU32::new(1));
        let qp = Qp { pd: pd.clone(), caps, shared, send_cq, recv_cq, receives, spread, flows, handles };
        let qp = Arc::new(qp);
        match &qp.receives {
            Receives::Own => {}
            Receives::Shared(srq) => srq.attach(),
            Receives::Domain(xrcd) => {
                let target: Arc<TargetQp> = qp.clone();
                xrcd.enter(qp.num(), Arc::downgrade(&target), &qp.shared);
            }
        }
        Ok(qp)
    }

    /// Raw: what rules of this QP match goes to receive work queues from now on. EINVAL if it has queues already.
    pub fn spread_over(&self, spread: Spread) -> Result<(), Errno> {
        self.spread.set(Arc::new(spread)).map_err(|_| Errno(libc::EINVAL))
    }

    /// Removes all its steering rules: its device is closed.
    pub fn end_flows(&self) {
        if self.flows.load(Ordering::Acquire) > 0 && self.adapter().is_ours() {
            self.adapter().with_engine(|engine| engine.remove_rules_of(self.num()));
            self.flows.store(0, Ordering::Release);
        }
    }

    pub(super) fn adapter(&self) -> &Arc<Adapter> {
        &self.pd.context.adapter
    }

    pub(super) fn spread(&self) -> Option<&Arc<Spread>> {
        self.spread.get()
    }

    pub(super) fn attach_flow(&self) {
        self.flows.fetch_add(1, Ordering::AcqRel);
    }

    pub(super) fn detach_flow(&self) {
        // The rules may have ended before, with the device.
        let _ = self.flows.fetch_update(Ordering::AcqRel, Ordering::Acquire, |flows| flows.checked_sub(1));
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
        let route = match mask.contains(AttrMask::AV) {
            true => Some(adapter.route_to(&attr.ah_attr, attr.dest_qp_num, self.shared.num)?),
            false => None,
        };
        if route.is_some_and(|route| route.remote.is_multicast()) {
            return Err(self.refuse(libc::EINVAL, format_args!("modify: the destination GID is a multicast group")));
        }
        let ends = matches!(attr.qp_state, QpState::Reset | QpState::Error);
        if ends && mask.contains(AttrMask::STATE) {
            // As on adapters, requests with ACKs that have arrived have succeeded. An ACK may have come without being seen:
            // in a ring that the engine's thread is about to open. The QP forgets the ACKs that it owes.
            adapter.take_packets_while(|| self.shared.lock().has_unacknowledged());
            adapter.flush();
        }
        // Between turns: a WQE that ends here may be part of a burst that still refers to application memory.
        let (result, state, dest) = adapter.between_turns(|| self.modify_protocol(attr, mask));
        if let Err(error) = result {
            return Err(self.refuse(Errno::from(error).0, format_args!("modify: {error}")));
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
            QpState::Reset => adapter.rest(&self.shared),
            QpState::Rtr if self.shared.service == Service::Ud => adapter.expect_foreign_senders(),
            _ => {}
        }
        Ok(())
    }

    /// EINVAL for a path MTU above the port's, as on adapters: peers would drop every full packet. If the MTU of the
    /// interface cannot be queried, any path MTU is accepted.
    fn check_path_mtu(&self, wanted: Mtu) -> Result<(), Errno> {
        let adapter = &self.pd.context.adapter;
        match adapter.watch.device().map(|now| now.mtu()) {
            Some(active) if wanted > active => {
                let name = &adapter.device.ifname;
                let (wanted, active) = (wanted.bytes(), active.bytes());
                let why = format_args!(
                    "modify: path MTU {wanted} is above the {active} that {name} carries; use the port's active_mtu, \
                     or give {name} an MTU of {} or more",
                    wanted + HEADERS
                );
                Err(self.refuse(libc::EINVAL, why))
            }
            _ => Ok(()),
        }
    }

    /// UD: attaches the QP to a multicast group. EINVAL for a unicast address or a QP that is not UD, ENOMEM beyond
    /// the limit, EADDRINUSE if another socket has port 4791 exclusively.
    pub fn attach(&self, group: IpAddr) -> Result<(), Errno> {
        if self.shared.service != Service::Ud || !group.is_multicast() {
            let why = "attach: only QPs of type IBV_QPT_UD have groups, and the GID must be that of a group (ff…)";
            return Err(self.refuse(libc::EINVAL, format_args!("{why}")));
        }
        self.pd.context.adapter.attach(&self.shared, group)
    }

    /// Detaches the QP from the group. EINVAL if it was not attached.
    pub fn detach(&self, group: IpAddr) -> Result<(), Errno> {
        let einval = Errno(libc::EINVAL);
        let detached = match group.is_multicast() {
            true => self.pd.context.adapter.detach(&self.shared, group),
            false => Err(einval),
        };
        detached.inspect_err(|errno| {
            if *errno == einval {
                self.refuse(libc::EINVAL, format_args!("detach: it is not attached to {group}"));
            }
        })
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
        let mut host = QpHost { shared, regions, cached: &mut cached, completions: None, side: Side::Requester };
        let result = protocol.modify(clock::now(), attr, mask, &mut host);
        let (state, dest) = (protocol.state(), protocol.attr().dest_qp_num);
        if state == QpState::Reset {
            shared.reset_counts();
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

    /// Logs why a control call is refused, with device and QP, and returns its error.
    #[cold]
    pub fn refuse(&self, errno: i32, why: fmt::Arguments<'_>) -> Errno {
        refused(errno, format_args!("{}: {why}", self.name()))
    }

    /// Device and QP, for the log.
    pub fn name(&self) -> String {
        format!("{}, QP {:#08x}", self.pd.context.adapter.device.name, self.shared.num)
    }

    /// Destroys the QP: purges its completions, sends owed ACKs. No event of it comes after the return. EBUSY while
    /// it is attached to a multicast group, or has steering rules.
    pub fn destroy(&self) -> Result<(), Errno> {
        if !self.pd.context.adapter.is_ours() {
            return Ok(());
        }
        if self.shared.service == Service::Ud && self.pd.context.adapter.is_attached(&self.shared) {
            let why = format_args!("destroy: it is attached to a multicast group: ibv_detach_mcast first");
            return Err(self.refuse(libc::EBUSY, why));
        }
        if self.flows.load(Ordering::Acquire) > 0 {
            return Err(
                self.refuse(libc::EBUSY, format_args!("destroy: it has steering rules: ibv_destroy_flow first"))
            );
        }
        let last = |handles: u32| handles.checked_sub(1);
        if self.handles.fetch_update(Ordering::AcqRel, Ordering::Acquire, last) == Ok(1) {
            self.pd.context.adapter.remove_qp(&self.shared);
            self.pd.context.adapter.regions.close_windows_of(self.shared.num);
            self.shared.purge_cqs();
            let cookie = self.shared.cookie;
            self.shared.events.remove(|event| matches!(event, AsyncEvent::Qp { cookie: c, .. } if *c == cookie));
            self.send_cq.detach();
            self.recv_cq.detach();
            match &self.receives {
                Receives::Own => {}
                Receives::Shared(srq) => srq.detach(),
                Receives::Domain(xrcd) => xrcd.leave(self.shared.num),
            }
            self.pd.detach();
        }
        Ok(())
    }
}

/// Logs why there is no packet socket for a raw QP, and returns the error.
#[cold]
fn no_packet_socket(pd: &Pd, error: Errno) -> Errno {
    let why = match error.0 {
        libc::EPERM => "frames of an interface need CAP_NET_RAW: run as root, or `setcap cap_net_raw+ep PROGRAM`",
        _ => "the kernel gives no packet socket",
    };
    let cause = std::io::Error::from_raw_os_error(error.0);
    pd.refuse(error.0, format_args!("QP: create: a raw packet QP is refused ({cause}): {why}"))
}

#[cfg(test)]
impl Qp {
    /// The part that the engine uses.
    pub(crate) fn shared_for_tests(&self) -> &Arc<QpShared> {
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
