//! A host without memory, and a QP in RTS for it: for measurements of the protocol alone.

use super::Setup;
use crate::{
    Access, AtomicOp, AttrMask, Completion, Denied, Host, Instant, Profile, Qp, QpAttr, QpCaps, QpEvent, QpInit,
    QpState, Queue, Service, Sge, Status, Tuning,
};
use std::sync::Arc;

/// Memory that accepts every access and stores nothing; completions are counted.
#[derive(Debug, Default)]
pub struct NullHost {
    pub sent: usize,
    pub received: usize,
}

impl Host for NullHost {
    fn check_local(&mut self, _: &[Sge], _: Access) -> Result<(), Denied> {
        Ok(())
    }
    fn check_remote(&mut self, _: u32, _: u64, _: u64, _: Access) -> Result<(), Denied> {
        Ok(())
    }
    fn scatter(&mut self, _: &[Sge], _: u64, _: &[u8]) -> Result<(), Denied> {
        Ok(())
    }
    fn write_remote(&mut self, _: u32, _: u64, _: &[u8]) -> Result<(), Denied> {
        Ok(())
    }
    fn atomic(&mut self, _: u32, _: u64, _: AtomicOp) -> Result<u64, Denied> {
        Ok(0)
    }
    /// # Panics
    /// If the completion is not `Success`.
    fn complete(&mut self, queue: Queue, completion: Completion, _: bool) {
        assert_eq!(completion.status, Status::Success);
        match queue {
            Queue::Send => self.sent += 1,
            Queue::Receive => self.received += 1,
        }
    }
    fn event(&mut self, _: QpEvent) {}
}

/// An RC QP in RTS, one of two (`node` 0 or 1) that are connected to each other.
pub fn connected(node: usize, caps: QpCaps, sq_sig_all: bool, setup: &Setup) -> Qp {
    let init = QpInit { qp_num: 0x11 + node as u32, service: Service::Rc, caps, sq_sig_all };
    let mut qp = Qp::new(init, Arc::new(Profile::ideal()), Tuning::default());
    use AttrMask as M;
    let steps = [
        (QpState::Init, M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS),
        (QpState::Rtr, M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN | M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER),
        (QpState::Rts, M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::SQ_PSN | M::MAX_QP_RD_ATOMIC),
    ];
    for (qp_state, mask) in steps {
        let attr = QpAttr { qp_state, ..setup.attr(node) };
        qp.modify(Instant(0), &attr, mask | M::STATE, &mut NullHost::default()).expect("a transition towards RTS");
    }
    qp
}
