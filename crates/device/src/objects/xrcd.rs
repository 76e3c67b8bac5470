//! XRC domains, which make SRQs accessible to peers.

use crate::Errno;
use crate::objects::context::Context;
use crate::objects::cq::Cq;
use crate::objects::pd::Pd;
use crate::os::locks::{RankedMutex, rank};
use crate::shared::qp::QpShared;
use crate::shared::srq::{Domain, SrqShared};
use std::any::Any;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};

/// A target QP; the domain does not look into it.
pub(crate) type TargetQp = dyn Any + Send + Sync;

/// A target QP of a domain.
struct Target {
    qp: Weak<TargetQp>,
    shared: Weak<QpShared>,
}

/// An XRC domain: the peers of its target QPs may name its SRQs.
pub struct Xrcd {
    pub(crate) pd: Arc<Pd>,
    pub(crate) cq: Arc<Cq>,
    pub(crate) domain: Arc<Domain>,
    /// Its target QPs by number.
    targets: RankedMutex<HashMap<u32, Target>, { rank::XRC_TARGETS }>,
    users: AtomicU32,
}

impl Xrcd {
    /// Opens a new domain.
    pub fn open(context: &Arc<Context>) -> Result<Arc<Xrcd>, Errno> {
        let (pd, cq) = (context.alloc_pd()?, context.create_cq(1, None, 0)?);
        Ok(Arc::new(Xrcd { pd, cq, domain: Arc::default(), targets: RankedMutex::default(), users: AtomicU32::new(0) }))
    }

    /// Returns whether SRQs or QPs use the domain.
    pub fn is_used(&self) -> bool {
        self.users.load(Ordering::Acquire) > 0
    }

    /// The target QP of this number, if there is one.
    pub(crate) fn find(&self, qp_num: u32) -> Option<Arc<TargetQp>> {
        self.targets.lock().get(&qp_num)?.qp.upgrade()
    }

    /// Adds a target QP: the domain is in use until it leaves.
    pub(crate) fn enter(&self, qp_num: u32, qp: Weak<TargetQp>, shared: &Arc<QpShared>) {
        self.users.fetch_add(1, Ordering::AcqRel);
        let mut targets = self.targets.lock();
        targets.insert(qp_num, Target { qp, shared: Arc::downgrade(shared) });
    }

    /// Removes a target QP.
    pub(crate) fn leave(&self, qp_num: u32) {
        self.users.fetch_sub(1, Ordering::AcqRel);
        self.targets.lock().remove(&qp_num);
    }

    /// Adds an SRQ. ENOMEM without memory.
    pub(crate) fn add_srq(&self, srq: Arc<SrqShared>) -> Result<(), Errno> {
        self.domain.insert(srq)?;
        self.users.fetch_add(1, Ordering::AcqRel);
        Ok(())
    }

    /// An SRQ that was removed from the domain is destroyed.
    pub(crate) fn forget_srq(&self, srq: &Arc<SrqShared>) {
        let targets: Vec<_> = self.targets.lock().values().filter_map(|target| target.shared.upgrade()).collect();
        targets.iter().for_each(|target| target.forget_srq(srq));
        self.users.fetch_sub(1, Ordering::AcqRel);
    }
}
