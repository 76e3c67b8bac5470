//! Conversion of QP attributes between their C form and the transport's.

use crate::abi::*;
use crate::ffi::{EINVAL, EOPNOTSUPP};
use std::ffi::c_int;
use weir_device::Errno;
use weir_transport::{Access, AddressVector, AttrMask, Mtu, Psn, QpAttr, QpCaps, QpState};
use weir_wire::RnrTimer;

/// The attributes that `mask` names. EOPNOTSUPP for an unknown bit of the mask, EINVAL for an unknown state or MTU.
pub fn to_modify(attr: &ibv_qp_attr, mask: c_int) -> Result<(QpAttr, AttrMask), Errno> {
    let mask = AttrMask::from_bits(mask as u32).ok_or(EOPNOTSUPP)?;
    // An attribute that the mask does not name may have any value.
    let named = |bit, number: c_int, from: fn(c_int) -> Option<_>| {
        if mask.contains(bit) { from(number).ok_or(EINVAL).map(Some) } else { Ok(None) }
    };
    let state = named(AttrMask::STATE, attr.qp_state, state)?;
    let cur_state = named(AttrMask::CUR_STATE, attr.cur_qp_state, self::state)?;
    let path_mtu = match mask.contains(AttrMask::PATH_MTU) {
        true => Mtu::from_number(attr.path_mtu as u32).ok_or(EINVAL)?,
        false => Mtu::default(),
    };
    let attr = QpAttr {
        qp_state: state.unwrap_or_default(),
        cur_qp_state: cur_state.unwrap_or_default(),
        path_mtu,
        path_mig_state: attr.path_mig_state as u32,
        qkey: attr.qkey,
        rq_psn: Psn::new(attr.rq_psn),
        sq_psn: Psn::new(attr.sq_psn),
        dest_qp_num: attr.dest_qp_num,
        access_flags: Access::from_bits_truncate(attr.qp_access_flags),
        caps: caps(&attr.cap),
        ah_attr: address(&attr.ah_attr),
        alt_ah_attr: address(&attr.alt_ah_attr),
        pkey_index: attr.pkey_index,
        alt_pkey_index: attr.alt_pkey_index,
        en_sqd_async_notify: attr.en_sqd_async_notify != 0,
        sq_draining: attr.sq_draining != 0,
        max_rd_atomic: attr.max_rd_atomic,
        max_dest_rd_atomic: attr.max_dest_rd_atomic,
        min_rnr_timer: RnrTimer::new(attr.min_rnr_timer),
        port_num: attr.port_num,
        timeout: attr.timeout,
        retry_cnt: attr.retry_cnt,
        rnr_retry: attr.rnr_retry,
        alt_port_num: attr.alt_port_num,
        alt_timeout: attr.alt_timeout,
        rate_limit: attr.rate_limit,
    };
    Ok((attr, mask))
}

/// All attributes, as `ibv_query_qp` reports them.
pub fn from_query(attr: &QpAttr) -> ibv_qp_attr {
    ibv_qp_attr {
        qp_state: attr.qp_state as c_int,
        cur_qp_state: attr.cur_qp_state as c_int,
        path_mtu: attr.path_mtu as c_int,
        path_mig_state: attr.path_mig_state as c_int,
        qkey: attr.qkey,
        rq_psn: attr.rq_psn.get(),
        sq_psn: attr.sq_psn.get(),
        dest_qp_num: attr.dest_qp_num,
        qp_access_flags: attr.access_flags.bits(),
        cap: from_caps(&attr.caps),
        ah_attr: from_address(&attr.ah_attr),
        alt_ah_attr: from_address(&attr.alt_ah_attr),
        pkey_index: attr.pkey_index,
        alt_pkey_index: attr.alt_pkey_index,
        en_sqd_async_notify: attr.en_sqd_async_notify.into(),
        sq_draining: attr.sq_draining.into(),
        max_rd_atomic: attr.max_rd_atomic,
        max_dest_rd_atomic: attr.max_dest_rd_atomic,
        min_rnr_timer: attr.min_rnr_timer.code(),
        port_num: attr.port_num,
        timeout: attr.timeout,
        retry_cnt: attr.retry_cnt,
        rnr_retry: attr.rnr_retry,
        alt_port_num: attr.alt_port_num,
        alt_timeout: attr.alt_timeout,
        rate_limit: attr.rate_limit,
    }
}

/// The limits of a QP, from the ABI's structure.
pub fn caps(cap: &ibv_qp_cap) -> QpCaps {
    QpCaps {
        max_send_wr: cap.max_send_wr,
        max_recv_wr: cap.max_recv_wr,
        max_send_sge: cap.max_send_sge,
        max_recv_sge: cap.max_recv_sge,
        max_inline_data: cap.max_inline_data,
    }
}

/// The limits of a QP, as the ABI's structure.
pub fn from_caps(caps: &QpCaps) -> ibv_qp_cap {
    ibv_qp_cap {
        max_send_wr: caps.max_send_wr,
        max_recv_wr: caps.max_recv_wr,
        max_send_sge: caps.max_send_sge,
        max_recv_sge: caps.max_recv_sge,
        max_inline_data: caps.max_inline_data,
    }
}

fn state(number: c_int) -> Option<QpState> {
    use QpState::*;
    [Reset, Init, Rtr, Rts, Sqd, Sqe, Error].into_iter().find(|s| *s as c_int == number)
}

/// An address vector, from the ABI's structure.
pub fn address(attr: &ibv_ah_attr) -> AddressVector {
    AddressVector {
        dgid: attr.grh.dgid.raw,
        flow_label: attr.grh.flow_label,
        sgid_index: attr.grh.sgid_index,
        hop_limit: attr.grh.hop_limit,
        traffic_class: attr.grh.traffic_class,
        is_global: attr.is_global != 0,
        dlid: attr.dlid,
        sl: attr.sl,
        src_path_bits: attr.src_path_bits,
        static_rate: attr.static_rate,
        port_num: attr.port_num,
    }
}

fn from_address(av: &AddressVector) -> ibv_ah_attr {
    ibv_ah_attr {
        grh: ibv_global_route {
            dgid: ibv_gid { raw: av.dgid },
            flow_label: av.flow_label,
            sgid_index: av.sgid_index,
            hop_limit: av.hop_limit,
            traffic_class: av.traffic_class,
        },
        dlid: av.dlid,
        sl: av.sl,
        src_path_bits: av.src_path_bits,
        static_rate: av.static_rate,
        is_global: av.is_global.into(),
        port_num: av.port_num,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_attributes_in_the_mask_are_checked() {
        let mut attr = ibv_qp_attr { qp_state: 99, path_mtu: 77, rq_psn: 5, ..Default::default() };
        let (modify, mask) = to_modify(&attr, AttrMask::RQ_PSN.bits() as c_int).unwrap();
        assert_eq!((modify.rq_psn, mask), (Psn::new(5), AttrMask::RQ_PSN));
        assert_eq!(to_modify(&attr, IBV_QP_STATE), Err(EINVAL));
        assert_eq!(to_modify(&attr, IBV_QP_PATH_MTU), Err(EINVAL));
        attr.qp_state = 3;
        assert_eq!(to_modify(&attr, IBV_QP_STATE).unwrap().0.qp_state, QpState::Rts);
        assert_eq!(to_modify(&attr, 1 << 30), Err(EOPNOTSUPP));
    }

    #[test]
    fn query_reports_what_modify_set() {
        let attr = ibv_qp_attr {
            qp_state: 2,
            path_mtu: 5,
            rq_psn: 0xabcdef,
            dest_qp_num: 17,
            min_rnr_timer: 12,
            timeout: 14,
            retry_cnt: 7,
            max_dest_rd_atomic: 16,
            ah_attr: ibv_ah_attr { is_global: 1, port_num: 1, ..Default::default() },
            ..Default::default()
        };
        let all = AttrMask::all().bits() as c_int;
        let back = from_query(&to_modify(&attr, all).map(|(a, _)| a).unwrap_or_default());
        // path_mtu and the states are checked because the mask names them.
        assert_eq!(format!("{attr:?}"), format!("{back:?}"));
    }
}
