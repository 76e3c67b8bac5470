//! Conversion between the structures of the kernel's connection manager and those of verbs.

use crate::abi::*;
use crate::ffi::guard;
use std::ffi::c_int;

/// # Safety
/// `to` is writable, `from` readable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_copy_ah_attr_from_kern(to: *mut ibv_ah_attr, from: *const ib_uverbs_ah_attr) {
    // SAFETY: guaranteed by the caller.
    guard((), || unsafe { *to = ah_attr(&*from) })
}

/// # Safety
/// `to` is writable, `from` readable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_copy_qp_attr_from_kern(to: *mut ibv_qp_attr, from: *const ib_uverbs_qp_attr) {
    guard((), || {
        // SAFETY: guaranteed by the caller. `rate_limit` is not in the kernel's structure and keeps its value.
        let (to, from) = unsafe { (&mut *to, &*from) };
        to.cur_qp_state = from.cur_qp_state as c_int;
        to.qp_state = from.qp_state as c_int;
        to.path_mtu = from.path_mtu as c_int;
        to.path_mig_state = from.path_mig_state as c_int;
        to.qkey = from.qkey;
        to.rq_psn = from.rq_psn;
        to.sq_psn = from.sq_psn;
        to.dest_qp_num = from.dest_qp_num;
        to.qp_access_flags = from.qp_access_flags;
        to.cap = ibv_qp_cap {
            max_send_wr: from.max_send_wr,
            max_recv_wr: from.max_recv_wr,
            max_send_sge: from.max_send_sge,
            max_recv_sge: from.max_recv_sge,
            max_inline_data: from.max_inline_data,
        };
        to.ah_attr = ah_attr(&from.ah_attr);
        to.alt_ah_attr = ah_attr(&from.alt_ah_attr);
        to.pkey_index = from.pkey_index;
        to.alt_pkey_index = from.alt_pkey_index;
        to.en_sqd_async_notify = from.en_sqd_async_notify;
        to.sq_draining = from.sq_draining;
        to.max_rd_atomic = from.max_rd_atomic;
        to.max_dest_rd_atomic = from.max_dest_rd_atomic;
        to.min_rnr_timer = from.min_rnr_timer;
        to.port_num = from.port_num;
        to.timeout = from.timeout;
        to.retry_cnt = from.retry_cnt;
        to.rnr_retry = from.rnr_retry;
        to.alt_port_num = from.alt_port_num;
        to.alt_timeout = from.alt_timeout;
    })
}

/// # Safety
/// `to` is writable, `from` readable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_copy_path_rec_from_kern(to: *mut ibv_sa_path_rec, from: *const ib_user_path_rec) {
    guard((), || {
        // SAFETY: guaranteed by the caller.
        let (to, from) = unsafe { (&mut *to, &*from) };
        *to = ibv_sa_path_rec {
            dgid: ibv_gid { raw: from.dgid },
            sgid: ibv_gid { raw: from.sgid },
            dlid: from.dlid,
            slid: from.slid,
            raw_traffic: from.raw_traffic as c_int,
            flow_label: from.flow_label,
            hop_limit: from.hop_limit,
            traffic_class: from.traffic_class,
            reversible: from.reversible as c_int,
            numb_path: from.numb_path,
            pkey: from.pkey,
            sl: from.sl,
            mtu_selector: from.mtu_selector,
            mtu: from.mtu as u8,
            rate_selector: from.rate_selector,
            rate: from.rate,
            packet_life_time_selector: from.packet_life_time_selector,
            packet_life_time: from.packet_life_time,
            preference: from.preference,
        };
    })
}

/// # Safety
/// `to` is writable, `from` readable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_copy_path_rec_to_kern(to: *mut ib_user_path_rec, from: *const ibv_sa_path_rec) {
    guard((), || {
        // SAFETY: guaranteed by the caller.
        let (to, from) = unsafe { (&mut *to, &*from) };
        *to = ib_user_path_rec {
            dgid: from.dgid.raw,
            sgid: from.sgid.raw,
            dlid: from.dlid,
            slid: from.slid,
            raw_traffic: from.raw_traffic as u32,
            flow_label: from.flow_label,
            reversible: from.reversible as u32,
            mtu: from.mtu.into(),
            pkey: from.pkey,
            hop_limit: from.hop_limit,
            traffic_class: from.traffic_class,
            numb_path: from.numb_path,
            sl: from.sl,
            mtu_selector: from.mtu_selector,
            rate_selector: from.rate_selector,
            rate: from.rate,
            packet_life_time_selector: from.packet_life_time_selector,
            packet_life_time: from.packet_life_time,
            preference: from.preference,
        };
    })
}

fn ah_attr(from: &ib_uverbs_ah_attr) -> ibv_ah_attr {
    ibv_ah_attr {
        grh: ibv_global_route {
            dgid: ibv_gid { raw: from.grh.dgid },
            flow_label: from.grh.flow_label,
            sgid_index: from.grh.sgid_index,
            hop_limit: from.grh.hop_limit,
            traffic_class: from.grh.traffic_class,
        },
        dlid: from.dlid,
        sl: from.sl,
        src_path_bits: from.src_path_bits,
        static_rate: from.static_rate,
        is_global: from.is_global,
        port_num: from.port_num,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_unchanged_after_conversion_to_kernel_and_back() {
        let mut kernel = ib_user_path_rec::default();
        let mut path = ibv_sa_path_rec {
            dgid: ibv_gid { raw: *b"destination gid." },
            pkey: 0xffff,
            mtu: 5,
            hop_limit: 64,
            reversible: 1,
            preference: 3,
            ..Default::default()
        };
        let before = format!("{path:?}");
        // SAFETY: structures of this test.
        unsafe {
            ibv_copy_path_rec_to_kern(&mut kernel, &path);
            path = ibv_sa_path_rec::default();
            ibv_copy_path_rec_from_kern(&mut path, &kernel);
        }
        assert_eq!(before, format!("{path:?}"));
    }
}
