//! What the program has set on a QP: to take the QP through RESET and back, and to show the program its own values
//! where a guard has set others.

use crate::next::{MODIFY_QP, QUERY_QP};
use std::ffi::c_int;
use weir_abi::*;

/// Attributes that QPs of reliable connections have.
#[derive(Clone, Copy, Default)]
pub struct Attributes {
    pub attr: ibv_qp_attr,
    /// All that were set (IBV_QP_*).
    mask: c_int,
    /// The smallest RNR delay is set in place of the program's.
    pub quick: bool,
}

const TO_INIT: c_int = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
const TO_RTR: c_int = IBV_QP_STATE
    | IBV_QP_AV
    | IBV_QP_PATH_MTU
    | IBV_QP_DEST_QPN
    | IBV_QP_RQ_PSN
    | IBV_QP_MAX_DEST_RD_ATOMIC
    | IBV_QP_MIN_RNR_TIMER;
const TO_RTS: c_int =
    IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;

impl Attributes {
    /// The program has set attributes.
    pub fn set(&mut self, new: &ibv_qp_attr, mask: c_int) {
        if mask & IBV_QP_STATE != 0 && new.qp_state == IBV_QPS_RESET {
            *self = Attributes::default();
        }
        self.mask |= mask;
        let to = &mut self.attr;
        macro_rules! copy {
            ($($bit:ident: $($member:ident),*;)*) => {
                $(if mask & $bit != 0 { $(to.$member = new.$member;)* })*
            };
        }
        copy! {
            IBV_QP_STATE: qp_state;
            IBV_QP_PKEY_INDEX: pkey_index;
            IBV_QP_PORT: port_num;
            IBV_QP_ACCESS_FLAGS: qp_access_flags;
            IBV_QP_AV: ah_attr;
            IBV_QP_PATH_MTU: path_mtu;
            IBV_QP_DEST_QPN: dest_qp_num;
            IBV_QP_RQ_PSN: rq_psn;
            IBV_QP_SQ_PSN: sq_psn;
            IBV_QP_MAX_DEST_RD_ATOMIC: max_dest_rd_atomic;
            IBV_QP_MAX_QP_RD_ATOMIC: max_rd_atomic;
            IBV_QP_MIN_RNR_TIMER: min_rnr_timer;
            IBV_QP_TIMEOUT: timeout;
            IBV_QP_RETRY_CNT: retry_cnt;
            IBV_QP_RNR_RETRY: rnr_retry;
        }
    }

    /// Whether the QP can be connected again as the program has connected it.
    pub fn can_connect_again(&self) -> bool {
        let needed = TO_INIT | TO_RTR | TO_RTS;
        let known = needed | IBV_QP_CUR_STATE;
        self.mask & needed == needed && self.mask & !known == 0
    }

    /// Takes the QP from RESET to RTS. False: the library refuses.
    ///
    /// # Safety
    /// A QP that exists, in RESET.
    pub unsafe fn connect_again(&self, qp: *mut ibv_qp, sq_psn: u32) -> bool {
        let mut attr = self.attr;
        attr.sq_psn = sq_psn;
        if self.quick {
            attr.min_rnr_timer = weir_guard::SMALLEST_DELAY;
        }
        [(IBV_QPS_INIT, TO_INIT), (IBV_QPS_RTR, TO_RTR), (IBV_QPS_RTS, TO_RTS)].into_iter().all(|(state, mask)| {
            attr.qp_state = state;
            // SAFETY: guaranteed by the caller.
            unsafe { modify(qp, &mut attr, mask) }
        })
    }
}

/// `ibv_modify_qp` of the library.
///
/// # Safety
/// A QP that exists.
pub unsafe fn modify(qp: *mut ibv_qp, attr: &mut ibv_qp_attr, mask: c_int) -> bool {
    // SAFETY: guaranteed by the caller.
    MODIFY_QP.get().is_some_and(|real| unsafe { real(qp, attr, mask) == 0 })
}

/// The PSN that the QP expects of the next request of its peer.
///
/// # Safety
/// A QP that exists.
pub unsafe fn expected_psn(qp: *mut ibv_qp) -> Option<u32> {
    let real = QUERY_QP.get()?;
    let mut attr = ibv_qp_attr::default();
    // SAFETY: guaranteed by the caller; all-zero structures of numbers and pointers, which the library fills.
    unsafe {
        let mut init: ibv_qp_init_attr = std::mem::zeroed();
        (real(qp, &mut attr, IBV_QP_RQ_PSN, &mut init) == 0).then_some(attr.rq_psn)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_qp_connects_again_only_with_attributes_that_are_known() {
        let mut set = Attributes::default();
        let attr = ibv_qp_attr { qp_state: IBV_QPS_RTS, sq_psn: 5, min_rnr_timer: 14, ..Default::default() };
        set.set(&attr, TO_INIT);
        set.set(&attr, TO_RTR);
        assert!(!set.can_connect_again());
        set.set(&attr, TO_RTS);
        assert!(set.can_connect_again());
        assert_eq!((set.attr.sq_psn, set.attr.min_rnr_timer), (5, 14));
        set.set(&attr, IBV_QP_ALT_PATH);
        assert!(!set.can_connect_again(), "an alternate path is not kept");
        set.set(&ibv_qp_attr { qp_state: IBV_QPS_RESET, ..attr }, IBV_QP_STATE);
        assert_eq!(set.mask, IBV_QP_STATE);
    }
}
