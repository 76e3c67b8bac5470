//! Attaching QPs to multicast groups.

use crate::abi::*;
use crate::ffi::{allocating, status};
use crate::living::check;
use crate::qp;
use std::ffi::c_int;
use std::net::{IpAddr, Ipv6Addr};

/// The LID is ignored on RoCE. EINVAL for a GID that is no multicast group or a QP that is not UD, ENOMEM for more
/// than `max_mcast_grp` groups, otherwise the system's error of the join. Attaching an attached QP again has no
/// effect.
///
/// # Safety
/// `qp` is alive, `gid` readable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_attach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, _lid: u16) -> c_int {
    allocating(|| {
        check(qp, "ibv_attach_mcast")?;
        // SAFETY: guaranteed by the caller.
        unsafe { qp::own(qp).device.attach(group(gid)) }
    })
}

/// EINVAL if the QP is not attached to the group.
///
/// # Safety
/// `qp` is alive, `gid` readable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_detach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, _lid: u16) -> c_int {
    status(|| {
        check(qp, "ibv_detach_mcast")?;
        // SAFETY: guaranteed by the caller.
        unsafe { qp::own(qp).device.detach(group(gid)) }
    })
}

/// The group of a GID: IPv4 groups are mapped (annex A17.4.4), like other addresses.
///
/// # Safety
/// `gid` is readable.
unsafe fn group(gid: *const ibv_gid) -> IpAddr {
    // SAFETY: guaranteed by the caller.
    Ipv6Addr::from(unsafe { (*gid).raw }).to_canonical()
}
