//! Steering rules for raw QPs.

use crate::Errno;
use crate::objects::qp::Qp;
use crate::steering::{Destination, Entry, Rule};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use weir_transport::Service;

/// A steering rule of a QP, which keeps the QP alive.
pub struct Flow {
    qp: Arc<Qp>,
    rule: Rule,
    id: u64,
}

impl Qp {
    /// Creates a steering rule: the frames that it matches go to this QP. EOPNOTSUPP for a QP that is not raw; ENOMEM
    /// beyond the limit.
    pub fn create_flow(self: &Arc<Self>, rule: Rule) -> Result<Flow, Errno> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        if self.shared.service != Service::Raw {
            return Err(Errno(libc::EOPNOTSUPP));
        }
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        let to = match self.spread() {
            Some(spread) => Destination::Spread(spread.clone()),
            None => Destination::Qp(self.num()),
        };
        let adapter = self.adapter();
        adapter.check()?;
        let entry = Entry { id, qp: self.num(), rule: rule.clone(), to };
        adapter.with_engine(|engine| engine.add_rule(adapter, entry))?;
        rule.counters.iter().for_each(|counters| counters.used(true));
        self.attach_flow();
        Ok(Flow { qp: self.clone(), rule, id })
    }
}

impl Drop for Flow {
    fn drop(&mut self) {
        let adapter = self.qp.adapter();
        if adapter.is_ours() {
            adapter.with_engine(|engine| engine.remove_rule(self.id));
        }
        self.rule.counters.iter().for_each(|counters| counters.used(false));
        self.qp.detach_flow();
    }
}
