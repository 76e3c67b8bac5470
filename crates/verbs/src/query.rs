//! Properties of an open device, of its port and of its GID and P_Key tables.

use crate::abi::*;
use crate::context::{self, ContextOwn};
use crate::ffi::{EINVAL, ENODATA, fill, number, status, zeroed};
use crate::rate::{effective_speed, link_speed};
use crate::tables::{HASH_FIELDS, MAX_LOG_TABLE};
use std::ffi::{c_int, c_uint};
use std::net::IpAddr;
use weir_device::{DeviceLimits, Errno};
use weir_transport::OdpCaps;
use weir_wire::tag::MAX_RENDEZVOUS;

/// The only P_Key, the default P_Key with full membership, in host byte order.
const DEFAULT_PKEY: u16 = 0xffff;
/// The port of every device.
const PORT: u32 = 1;
/// The exported `ibv_query_port` writes the first version of `ibv_port_attr`, up to `link_layer`: 47 bytes.
const LEGACY_PORT_ATTR: usize = 47;
/// IBTA 9.7.5.2.8: the largest message, in bytes.
const MAX_MESSAGE: u32 = 1 << 31;
/// Not an assigned OUI, and not zero: some programs take zero for a device that was not queried.
pub const NO_VENDOR: u32 = 0xff_ffff;
/// The capabilities of every port.
pub const PORT_CAPABILITIES: u32 = IBV_PORT_CM_SUP | IBV_PORT_IP_BASED_GIDS;
/// Physical port states, IBTA 14.2.5.6.
const PHYS_DISABLED: u8 = 3;
const PHYS_LINK_UP: u8 = 5;
/// `ibv_query_gid_type` uses numbers of its own.
const TYPE_ROCE_V1: c_int = 0;
const TYPE_ROCE_V2: c_int = 1;

/// # Safety
/// `context` is open, `attr` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_device(context: *mut ibv_context, attr: *mut ibv_device_attr) -> c_int {
    status(|| {
        // SAFETY: guaranteed by the caller.
        unsafe { *attr = device_attr(context::own(context)) };
        Ok(())
    })
}

/// EINVAL for a `comp_mask` of a later release, and if `size` is less than in the first release.
///
/// # Safety
/// `context` is open; `attr` has `size` writable bytes.
pub unsafe extern "C" fn query_device_ex(
    context: *mut ibv_context,
    input: *const ibv_query_device_ex_input,
    attr: *mut ibv_device_attr_ex,
    size: usize,
) -> c_int {
    status(|| {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let other_release = input.as_ref().is_some_and(|input| input.comp_mask != 0);
            if other_release || size < size_of::<ibv_device_attr>() {
                return Err(EINVAL);
            }
            let mut all: ibv_device_attr_ex = zeroed();
            all.orig_attr = device_attr(context::own(context));
            all.device_cap_flags_ex = all.orig_attr.device_cap_flags.into();
            all.completion_timestamp_mask = u64::MAX;
            all.cq_mod_caps = ibv_cq_moderation_caps { max_cq_count: u16::MAX, max_cq_period: u16::MAX };
            // `ibv_query_rt_values_ex` counts nanoseconds; this member is in kHz.
            all.hca_core_clock = 1_000_000;
            if context::own(context).device.has_on_demand() {
                let odp = context::own(context).device.attributes().odp;
                all.odp_caps = odp_caps(&odp);
                all.xrc_odp_caps = odp.xrc.bits();
            }
            all.rss_caps = ibv_rss_caps {
                supported_qpts: 1 << IBV_QPT_RAW_PACKET,
                max_rwq_indirection_tables: all.orig_attr.max_qp as u32,
                max_rwq_indirection_table_size: 1 << MAX_LOG_TABLE,
                rx_hash_fields_mask: HASH_FIELDS,
                rx_hash_function: IBV_RX_HASH_FUNC_TOEPLITZ,
            };
            all.max_wq_type_rq = all.orig_attr.max_qp as u32;
            all.tm_caps = tm_caps(&context::own(context).device.limits());
            all.max_dm_size = context::own(context).device.limits().max_dm_size;
            all.phys_port_cnt_ex = PORT;
            copy_clamped(&all, attr.cast(), size);
        }
        Ok(())
    })
}

/// # Safety
/// `context` is open; `attr` has room for the first version of `ibv_port_attr`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_port(context: *mut ibv_context, port: u8, attr: *mut ibv_port_attr) -> c_int {
    // SAFETY: guaranteed by the caller.
    unsafe { query_port(context, port, attr, LEGACY_PORT_ATTR) }
}

/// # Safety
/// `context` is open; `attr` has `size` writable bytes.
pub unsafe extern "C" fn query_port(
    context: *mut ibv_context,
    port: u8,
    attr: *mut ibv_port_attr,
    size: usize,
) -> c_int {
    status(|| {
        if u32::from(port) != PORT {
            return Err(EINVAL);
        }
        // SAFETY: guaranteed by the caller.
        unsafe { copy_clamped(&port_attr(context::own(context)), attr.cast(), size) };
        Ok(())
    })
}

/// The speed of the interface, in units of 100 Mb/s.
///
/// # Safety
/// `context` is open, `speed` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_port_speed(context: *mut ibv_context, port: u32, speed: *mut u64) -> c_int {
    status(|| {
        if port != PORT {
            return Err(EINVAL);
        }
        // SAFETY: guaranteed by the caller.
        unsafe { *speed = effective_speed(context::own_checked(context)?.device.port().speed_mbps) };
        Ok(())
    })
}

/// EINVAL for unknown values.
///
/// # Safety
/// `context` is open, `values` is writable.
pub unsafe extern "C" fn query_rt_values(context: *mut ibv_context, values: *mut ibv_values_ex) -> c_int {
    status(|| {
        // SAFETY: guaranteed by the caller.
        let (own, values) = unsafe { (context::own(context), &mut *values) };
        if values.comp_mask & !IBV_VALUES_MASK_RAW_CLOCK != 0 {
            return Err(EINVAL);
        }
        if values.comp_mask & IBV_VALUES_MASK_RAW_CLOCK != 0 {
            // As adapters do: one counter, in the member that programs read.
            values.raw_clock.tv_sec = 0;
            values.raw_clock.tv_nsec = own.device.clock() as libc::c_long;
        }
        Ok(())
    })
}

/// An empty entry of the GID table is a GID of zeros.
///
/// # Safety
/// `context` is open, `gid` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_gid(context: *mut ibv_context, port: u8, index: c_int, gid: *mut ibv_gid) -> c_int {
    number(|| {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let slot = slot(context::own(context), port.into(), index as u32)?;
            *gid = slot.map(from_address).unwrap_or_default();
        }
        Ok(0)
    })
}

/// ENODATA if the entry is empty.
///
/// # Safety
/// `context` is open; `entry` has `size` writable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _ibv_query_gid_ex(
    context: *mut ibv_context,
    port: u32,
    index: u32,
    entry: *mut ibv_gid_entry,
    flags: u32,
    size: usize,
) -> c_int {
    status(|| {
        if flags != 0 {
            return Err(EINVAL);
        }
        // SAFETY: guaranteed by the caller.
        unsafe {
            let own = context::own(context);
            let address = slot(own, port, index)?.ok_or(ENODATA)?;
            copy_clamped(&gid_entry(own, index, address), entry.cast(), size);
        }
        Ok(())
    })
}

/// Returns the number of GIDs written, without empty entries, or a negative errno value.
///
/// # Safety
/// `context` is open; `entries` has room for `max` entries of `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _ibv_query_gid_table(
    context: *mut ibv_context,
    entries: *mut ibv_gid_entry,
    max: usize,
    flags: u32,
    size: usize,
) -> isize {
    let mut written = 0;
    let outcome = status(|| {
        if flags != 0 {
            return Err(EINVAL);
        }
        // SAFETY: guaranteed by the caller.
        let own = unsafe { context::own(context) };
        for (index, address) in own.device.gids().into_iter().enumerate() {
            let Some(address) = address else { continue };
            if written == max {
                return Err(EINVAL);
            }
            // SAFETY: `written` is below `max`, and entries have `size` bytes.
            unsafe {
                let to = entries.cast::<u8>().add(written * size);
                copy_clamped(&gid_entry(own, index as u32, address), to, size);
            }
            written += 1;
        }
        Ok(())
    });
    if outcome == 0 { written as isize } else { -(outcome as isize) }
}

/// `versions.c` exports it as `ibv_query_gid_type` in each of the private version nodes.
///
/// # Safety
/// `context` is open, `gid_type` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_query_gid_type(
    context: *mut ibv_context,
    port: u8,
    index: c_uint,
    gid_type: *mut c_int,
) -> c_int {
    number(|| {
        // SAFETY: guaranteed by the caller.
        unsafe {
            // An empty entry has no type: the default is reported.
            let slot = slot(context::own(context), port.into(), index)?;
            *gid_type = if slot.is_some() { TYPE_ROCE_V2 } else { TYPE_ROCE_V1 };
        }
        Ok(0)
    })
}

/// # Safety
/// `context` is open, `pkey` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_pkey(_context: *mut ibv_context, port: u8, index: c_int, pkey: *mut u16) -> c_int {
    number(|| {
        if u32::from(port) != PORT || index != 0 {
            return Err(EINVAL);
        }
        // SAFETY: guaranteed by the caller.
        unsafe { *pkey = DEFAULT_PKEY.to_be() };
        Ok(0)
    })
}

/// # Safety
/// `context` is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_pkey_index(_context: *mut ibv_context, port: u8, pkey: u16) -> c_int {
    number(|| if u32::from(port) == PORT && u16::from_be(pkey) == DEFAULT_PKEY { Ok(0) } else { Err(EINVAL) })
}

/// Converts an address to a GID: IPv4 as `::ffff:a.b.c.d` (IBTA annex A17.4.4).
pub fn from_address(address: IpAddr) -> ibv_gid {
    let raw = match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    };
    ibv_gid { raw }
}

fn slot(own: &ContextOwn, port: u32, index: u32) -> Result<Option<IpAddr>, Errno> {
    if port != PORT {
        return Err(EINVAL);
    }
    own.device.gids().get(index as usize).copied().ok_or(EINVAL)
}

fn gid_entry(own: &ContextOwn, index: u32, address: IpAddr) -> ibv_gid_entry {
    ibv_gid_entry {
        gid: from_address(address),
        gid_index: index,
        port_num: PORT,
        gid_type: IBV_GID_TYPE_ROCE_V2,
        ndev_ifindex: own.device.ifindex(),
    }
}

fn device_attr(own: &ContextOwn) -> ibv_device_attr {
    let (limits, attributes) = (own.device.limits(), own.device.attributes());
    let int = |n: u32| n.min(i32::MAX as u32) as c_int;
    // SAFETY: integers and arrays.
    let mut attr: ibv_device_attr = unsafe { zeroed() };
    fill(&mut attr.fw_ver, env!("CARGO_PKG_VERSION"));
    attr.node_guid = own.info.guid;
    attr.sys_image_guid = own.info.guid;
    attr.max_mr_size = limits.max_mr_size;
    // Any page size of at least 4 KiB.
    attr.page_size_cap = !0xfff;
    attr.vendor_id = NO_VENDOR;
    attr.max_qp = int(limits.max_qp);
    attr.max_qp_wr = int(limits.max_qp_wr);
    attr.device_cap_flags = IBV_DEVICE_CURR_QP_STATE_MOD
        | IBV_DEVICE_PORT_ACTIVE_EVENT
        | IBV_DEVICE_SYS_IMAGE_GUID
        | IBV_DEVICE_RC_RNR_NAK_GEN
        | IBV_DEVICE_MEM_WINDOW
        | IBV_DEVICE_MEM_WINDOW_TYPE_2B
        | IBV_DEVICE_UD_AV_PORT_ENFORCE
        | IBV_DEVICE_SRQ_RESIZE
        | IBV_DEVICE_XRC;
    attr.max_sge = int(limits.max_sge);
    attr.max_sge_rd = int(limits.max_sge_rd);
    attr.max_cq = int(limits.max_cq);
    attr.max_cqe = int(limits.max_cqe);
    attr.max_mr = int(limits.max_mr);
    attr.max_mw = int(limits.max_mw);
    attr.max_pd = int(limits.max_pd);
    attr.max_qp_rd_atom = attributes.max_qp_rd_atom.into();
    attr.max_res_rd_atom = int(limits.max_qp.saturating_mul(attributes.max_qp_rd_atom.into()));
    attr.max_qp_init_rd_atom = attributes.max_qp_init_rd_atom.into();
    attr.atomic_cap = IBV_ATOMIC_HCA;
    // Creating one needs CAP_NET_RAW.
    attr.max_raw_ethy_qp = attr.max_qp;
    attr.max_mcast_grp = int(limits.max_groups);
    // No limit except the number of QPs.
    attr.max_mcast_qp_attach = int(limits.max_qp);
    attr.max_total_mcast_qp_attach = int(limits.max_groups.saturating_mul(limits.max_qp));
    // An address handle is only a few bytes of the application's memory.
    attr.max_ah = int(limits.max_mr);
    attr.max_srq = int(limits.max_srq);
    attr.max_srq_wr = int(limits.max_qp_wr);
    attr.max_srq_sge = int(limits.max_sge);
    attr.max_pkeys = 1;
    attr.local_ca_ack_delay = attributes.local_ca_ack_delay;
    attr.phys_port_cnt = PORT as u8;
    attr
}

fn odp_caps(odp: &OdpCaps) -> ibv_odp_caps {
    ibv_odp_caps {
        general_caps: IBV_ODP_SUPPORT | if odp.implicit { IBV_ODP_SUPPORT_IMPLICIT } else { 0 },
        per_transport_caps: ibv_odp_per_transport_caps {
            rc_odp_caps: odp.rc.bits(),
            uc_odp_caps: odp.uc.bits(),
            ud_odp_caps: odp.ud.bits(),
        },
    }
}

fn tm_caps(limits: &DeviceLimits) -> ibv_tm_caps {
    ibv_tm_caps {
        max_rndv_hdr_size: MAX_RENDEZVOUS as u32,
        max_num_tags: limits.max_tags.into(),
        flags: IBV_TM_CAP_RC,
        max_ops: limits.max_tag_ops,
        max_sge: limits.max_tag_sge,
    }
}

fn port_attr(own: &ContextOwn) -> ibv_port_attr {
    let port = own.device.port();
    let (active_width, active_speed) = link_speed(port.speed_mbps);
    ibv_port_attr {
        state: if port.active { IBV_PORT_ACTIVE } else { IBV_PORT_DOWN },
        max_mtu: port.max_mtu as c_int,
        active_mtu: port.active_mtu as c_int,
        gid_tbl_len: port.gid_table_len as c_int,
        port_cap_flags: PORT_CAPABILITIES,
        max_msg_sz: MAX_MESSAGE,
        bad_pkey_cntr: port.pkey_violations.try_into().unwrap_or(u32::MAX),
        pkey_tbl_len: 1,
        max_vl_num: 1,
        active_width,
        active_speed,
        phys_state: if port.active { PHYS_LINK_UP } else { PHYS_DISABLED },
        link_layer: IBV_LINK_LAYER_ETHERNET,
        flags: IBV_QPF_GRH_REQUIRED,
        ..Default::default()
    }
}

/// Writes what fits, and zeros beyond this version of the structure.
///
/// # Safety
/// `to` has `size` writable bytes.
unsafe fn copy_clamped<T: Copy>(from: &T, to: *mut u8, size: usize) {
    let known = size.min(size_of::<T>());
    // SAFETY: guaranteed by the caller; `known` is within both.
    unsafe {
        to.copy_from_nonoverlapping(std::ptr::from_ref(from).cast(), known);
        to.add(known).write_bytes(0, size - known);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_byte_beyond_the_given_size_is_written() {
        let mut out = [0xaau8; 12];
        // SAFETY: in bounds.
        unsafe { copy_clamped(&0x0102_0304u32.to_be(), out.as_mut_ptr(), 2) };
        assert_eq!(out[..4], [1, 2, 0xaa, 0xaa]);
        // SAFETY: in bounds.
        unsafe { copy_clamped(&0x0102_0304u32.to_be(), out.as_mut_ptr(), 8) };
        assert_eq!(out[..9], [1, 2, 3, 4, 0, 0, 0, 0, 0xaa]);
    }

    #[test]
    fn an_ipv4_address_is_a_mapped_gid() {
        let gid = from_address("10.1.2.3".parse().unwrap());
        assert_eq!(gid.raw, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 1, 2, 3]);
    }
}
