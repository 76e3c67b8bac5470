//! Steering rules for raw QPs.

use crate::Errno;
use crate::objects::qp::Qp;
use crate::steering::{Destination, Entry, MOST, Rule};
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
            let why = format_args!("steering rule: only QPs of type IBV_QPT_RAW_PACKET have them");
            return Err(self.refuse(libc::EOPNOTSUPP, why));
        }
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        let to = match self.spread() {
            Some(spread) => Destination::Spread(spread.clone()),
            None => Destination::Qp(self.num()),
        };
        let adapter = self.adapter();
        adapter.check()?;
        let entry = Entry { id, qp: self.num(), rule: rule.clone(), to };
        adapter.with_engine(|engine| engine.add_rule(adapter, entry)).map_err(|error| self.no_rule(error))?;
        rule.counters.iter().for_each(|counters| counters.used(true));
        self.attach_flow();
        Ok(Flow { qp: self.clone(), rule, id })
    }

    /// Logs why there is no rule, and returns the error.
    #[cold]
    fn no_rule(&self, error: Errno) -> Errno {
        if error.0 == libc::ENOMEM {
            let why =
                format_args!("steering rule: a device has {MOST} at most: destroy others first (ibv_destroy_flow)");
            return self.refuse(error.0, why);
        }
        let (cause, name) = (std::io::Error::from_raw_os_error(error.0), &self.adapter().device.ifname);
        let why = format_args!(
            "steering rule: the kernel refuses it for interface {name} ({cause}): see `ip link show {name}`"
        );
        self.refuse(error.0, why)
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
