//! Target QPs of XRC domains.

use crate::Errno;
use crate::objects::qp::{Qp, QpCreate, Receives};
use crate::objects::xrcd::Xrcd;
use std::sync::Arc;
use weir_transport::{QpCaps, Service};

impl Xrcd {
    /// Creates a target QP in the domain: the QP has no protection domain and no CQ of its own.
    pub fn create_target(self: &Arc<Self>, cookie: u64) -> Result<Arc<Qp>, Errno> {
        let caps = QpCaps { max_send_sge: 1, ..QpCaps::default() };
        let create = QpCreate { service: Service::Xrc, caps, sq_sig_all: false, cookie };
        self.pd.create_qp_with(&create, &self.cq, &self.cq, Receives::Domain(self.clone()))
    }

    /// The target QP of this number. EINVAL if there is none.
    pub fn target(&self, qp_num: u32) -> Result<Arc<Qp>, Errno> {
        self.find(qp_num).and_then(|qp| qp.downcast().ok()).ok_or(Errno(libc::EINVAL))
    }
}
