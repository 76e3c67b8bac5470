//! Memory windows.

use crate::abi::*;
use crate::buried::bury;
use crate::ffi::{EINVAL, status};
use crate::living::{leave, object};
use crate::pd;
use crate::refused_post;
use crate::registry::new_handle;
use crate::{context, qp};
use std::ffi::c_int;
use std::sync::Arc;
use weir_device::WindowType;
use weir_transport::{Access, Bind, Data, PostError, SendFlags, SendOp, SendWr, Service, Target};

#[repr(C)]
struct Mw {
    ibv: ibv_mw,
    device: Arc<weir_device::Mw>,
}

/// Called through `ibv_context_ops`. EINVAL for any type except 1 and 2.
///
/// # Safety
/// `pd` is alive.
pub unsafe extern "C" fn alloc_mw(pd: *mut ibv_pd, mw_type: c_int) -> *mut ibv_mw {
    object(|| {
        // SAFETY: guaranteed by the caller.
        let (own, context) = unsafe { (pd::own(pd), (*pd).context) };
        let window_type = match mw_type {
            IBV_MW_TYPE_1 => WindowType::One,
            IBV_MW_TYPE_2 => WindowType::Two,
            _ => {
                let why = format_args!("MW: type must be IBV_MW_TYPE_1 or IBV_MW_TYPE_2");
                return Err(own.device.refuse(EINVAL.0, why));
            }
        };
        let device = own.device.alloc_mw(window_type)?;
        let ibv = ibv_mw { context, pd, rkey: device.rkey(), handle: new_handle(), r#type: mw_type };
        Ok(Box::into_raw(Box::new(Mw { ibv, device })).cast())
    })
}

/// Called through `ibv_context_ops`. A bound window is invalidated too.
///
/// # Safety
/// `mw` is from [`alloc_mw`]; after success it is not used again.
pub unsafe extern "C" fn dealloc_mw(mw: *mut ibv_mw) -> c_int {
    status(|| {
        let leaving = leave(mw, "ibv_dealloc_mw")?;
        // SAFETY: guaranteed by the caller; created from a Box.
        unsafe {
            if context::is_inherited((*mw).context) {
                return Ok(());
            }
            (*mw.cast::<Mw>()).device.dealloc()?;
            let _left = leaving.done();
            bury(mw.cast::<Mw>());
        }
        Ok(())
    })
}

/// Called through `ibv_context_ops`: posts a bind of a type 1 window, which then has its next rkey. The header's
/// inline function has checked type and PD. EINVAL for a zero-based region, otherwise the errors of `ibv_post_send`.
///
/// # Safety
/// QP, window and region are alive.
pub unsafe extern "C" fn bind_mw(qp: *mut ibv_qp, mw: *mut ibv_mw, bind: *mut ibv_mw_bind) -> c_int {
    status(|| {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let bind = &*bind;
            let new_rkey = next_rkey((*mw).rkey);
            let own = qp::own_checked(qp)?;
            let refuse = |error| refused_post::bind(own, error);
            let op = SendOp::BindWindow(request(mw, new_rkey, &bind.bind_info).map_err(refuse)?);
            let flags = SendFlags::from_bits_truncate(bind.send_flags);
            let device = &own.device;
            // Nothing of it is sent; an XRC send queue accepts only requests that name an SRQ.
            let to = if own.service == Service::Xrc { Target::Srq(0) } else { Target::Peer };
            device
                .post_send_to(&SendWr { wr_id: bind.wr_id, op, flags, data: Data::Gather(&[]) }, to)
                .map_err(refuse)?;
            (*mw).rkey = new_rkey;
            device.doorbell();
        }
        Ok(())
    })
}

/// The bind of a type 2 window by a work request; an error for a type 1 window.
///
/// # Safety
/// Window and region are alive.
pub unsafe fn by_request(wr: &ibv_wr_bind_mw) -> Result<Bind, PostError> {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let mw = wr.mw.as_ref().ok_or(PostError::Operation)?;
        if mw.r#type != IBV_MW_TYPE_2 {
            return Err(PostError::Operation);
        }
        request(mw, wr.rkey, &wr.bind_info)
    }
}

/// # Safety
/// Window and region are alive.
unsafe fn request(mw: *const ibv_mw, new_rkey: u32, info: &ibv_mw_bind_info) -> Result<Bind, PostError> {
    // SAFETY: guaranteed by the caller; a request that only invalidates the window needs no region.
    let (window_rkey, mr_lkey) = unsafe {
        match info.mr.as_ref() {
            Some(mr) => ((*mw).rkey, mr.lkey),
            None if info.length == 0 => ((*mw).rkey, 0),
            None => return Err(PostError::Operation),
        }
    };
    let access = Access::from_bits_truncate(info.mw_access_flags);
    Ok(Bind { window_rkey, new_rkey, mr_lkey, addr: info.addr, len: info.length, access })
}

/// `ibv_inc_rkey`: increments the tag in the low 8 bits and keeps the index.
fn next_rkey(rkey: u32) -> u32 {
    (rkey & !0xff) | (rkey.wrapping_add(1) & 0xff)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tag_wraps_and_the_index_stays() {
        assert_eq!(next_rkey(0x1234_5601), 0x1234_5602);
        assert_eq!(next_rkey(0x1234_56ff), 0x1234_5600);
    }

    #[test]
    fn a_bind_needs_a_region_unless_its_length_is_zero() {
        let mw = ibv_mw { context: std::ptr::null_mut(), pd: std::ptr::null_mut(), rkey: 5, handle: 0, r#type: 2 };
        let mut info = ibv_mw_bind_info { mr: std::ptr::null_mut(), addr: 0, length: 0, mw_access_flags: 0 };
        // SAFETY: a window of this test, no region.
        unsafe {
            assert_eq!(request(&mw, 6, &info).map(|bind| (bind.window_rkey, bind.new_rkey)), Ok((5, 6)));
            info.length = 1;
            assert_eq!(request(&mw, 6, &info), Err(PostError::Operation));
        }
    }
}
