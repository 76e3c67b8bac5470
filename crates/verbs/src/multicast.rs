//! Attaching QPs to multicast groups.

use crate::abi::*;
use crate::ffi::{EINVAL, allocating, status};
use crate::qp;
use std::ffi::c_int;
use std::net::{IpAddr, Ipv6Addr};

/// The LID means nothing on RoCE. EINVAL for a GID that is no group's or a QP that is not of UD, ENOMEM beyond
/// `max_mcast_grp`, and what the system says of the membership. A QP that is attached may be attached again, once.
///
/// # Safety
/// `qp` is alive, `gid` readable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_attach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, _lid: u16) -> c_int {
    // SAFETY: the caller's promise.
    allocating(|| unsafe { qp::own(qp).device.attach(group(gid)) })
}

/// EINVAL if it is not attached.
///
/// # Safety
/// `qp` is alive, `gid` readable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_detach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, _lid: u16) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let (own, group) = unsafe { (qp::own(qp), group(gid)) };
        if !group.is_multicast() {
            return Err(EINVAL);
        }
        own.device.detach(group)
    })
}

/// The group of a GID: IPv4 ones are mapped (annex A17.4.4), as other addresses are.
///
/// # Safety
/// `gid` is readable.
unsafe fn group(gid: *const ibv_gid) -> IpAddr {
    // SAFETY: the caller's promise.
    Ipv6Addr::from(unsafe { (*gid).raw }).to_canonical()
}
