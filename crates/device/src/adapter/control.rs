//! What the control path does to QPs in the engine: it waits for the engine.

use crate::Errno;
use crate::adapter::Adapter;
use crate::engine::peers::parked::Parked;
use crate::os::clock;
use crate::shared::qp::QpShared;
use crate::shared::route::Route;
use std::net::IpAddr;
use std::sync::Arc;
use weir_transport::Psn;

impl Adapter {
    /// Adds a QP; `make` gets its number. ENOMEM if the table is full.
    pub fn add_qp(
        self: &Arc<Self>,
        make: impl FnOnce(u32) -> Result<Arc<QpShared>, Errno>,
    ) -> Result<Arc<QpShared>, Errno> {
        let (shared, count) = self.with_engine(|engine| {
            self.check()?;
            let shared = engine.add_qp(make)?;
            // No turn comes between growing the one list and the other: each turn swaps them.
            self.doorbells.reserve(engine.qps());
            Ok::<_, Errno>((shared, engine.qps()))
        })?;
        if let Some(resolver) = self.resolver.get()
            && let Err(error) = self.make_room_for_faults(resolver, count)
        {
            self.with_engine(|engine| engine.remove_qp(self, shared.num, self.clone()));
            return Err(error);
        }
        Ok(shared)
    }

    /// Removes a QP, and sends its peer the ACKs that it owes.
    pub fn remove_qp(self: &Arc<Self>, shared: &QpShared) {
        if self.is_ours() {
            self.with_engine(|engine| engine.remove_qp(self, shared.num, self.clone()));
        }
    }

    /// Binds a QP to a route and a destination QPN. With `rq_psn`, a new connection begins, and that is the first PSN
    /// that it receives.
    pub fn connect(&self, shared: &QpShared, route: Route, dest: u32, rq_psn: Option<Psn>) {
        self.make_room_for_peers();
        self.with_engine(|engine| engine.connect(self, shared.num, route, dest, rq_psn, clock::now()));
        self.ring(shared, true);
    }

    /// A connected QP will send, and `psn` is the PSN of its first packet.
    pub fn send_from(&self, shared: &QpShared, psn: Psn) {
        self.with_engine(|engine| engine.send_from(self, shared.num, psn, clock::now()));
    }

    /// A QP was reset.
    pub fn rest(&self, shared: &QpShared) {
        self.with_engine(|engine| engine.rest(shared.num));
    }

    /// A UD QP is ready to receive, from foreign adapters too.
    pub fn expect_foreign_senders(&self) {
        let parked = Box::new(Parked::new());
        self.with_engine(|engine| engine.provide_parked(parked));
        self.with_engine(|engine| engine.expect_foreign_senders(self, clock::now()));
    }

    /// Attaches a QP to a multicast group. ENOMEM beyond the limit; EADDRINUSE where another socket has port 4791
    /// exclusively.
    pub fn attach(&self, shared: &QpShared, group: IpAddr) -> Result<(), Errno> {
        self.check()?;
        self.with_engine(|engine| engine.attach(self, shared.num, group))
    }

    /// Detaches a QP from a multicast group. EINVAL if it is not attached.
    pub fn detach(&self, shared: &QpShared, group: IpAddr) -> Result<(), Errno> {
        if !self.is_ours() {
            return Err(Errno(libc::EIO));
        }
        self.with_engine(|engine| engine.detach(self, shared.num, group))
    }

    /// Returns whether a QP is attached to a multicast group.
    pub fn is_attached(&self, shared: &QpShared) -> bool {
        self.is_ours() && self.with_engine(|engine| engine.is_attached(shared.num))
    }

    /// Detaches a QP from all its multicast groups.
    pub fn detach_all(&self, shared: &QpShared) {
        if self.is_ours() {
            self.with_engine(|engine| engine.detach_all(self, shared.num));
        }
    }
}
