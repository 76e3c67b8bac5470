//! Changing a memory region.

use crate::abi::*;
use crate::context;
use crate::ffi::{EINVAL, EIO, guard, set_errno};
use crate::living::check;
use crate::pd;
use crate::pd_mr::{self, Mr};
use std::ffi::{c_int, c_void};
use std::fmt;
use weir_device::{Errno, Rereg, headroom};

/// The part of `ibv_rereg_mr` that failed: its own checks, or the adapter.
enum Failed {
    Input(Errno),
    Command(Errno),
}

/// Returns 0; or `IBV_REREG_MR_ERR_INPUT` with EINVAL for invalid arguments; or `IBV_REREG_MR_ERR_CMD` with errno if
/// the adapter refused. After an error the region is unchanged, but the caller must not rely on that.
///
/// # Safety
/// `mr` is alive, and `pd` too if the flags need it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_rereg_mr(
    mr: *mut ibv_mr,
    flags: c_int,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> c_int {
    // SAFETY: guaranteed by the caller.
    let outcome = guard(Err(Failed::Command(EIO)), || unsafe { change(mr, flags, pd, addr, length, access) });
    let (errno, code) = match outcome {
        Ok(()) => return 0,
        Err(Failed::Input(errno)) => (errno, IBV_REREG_MR_ERR_INPUT),
        Err(Failed::Command(errno)) => (errno, IBV_REREG_MR_ERR_CMD),
    };
    set_errno(errno);
    code
}

/// # Safety
/// As for [`ibv_rereg_mr`].
unsafe fn change(
    mr: *mut ibv_mr,
    flags: c_int,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> Result<(), Failed> {
    let moved = flags & IBV_REREG_MR_CHANGE_TRANSLATION != 0;
    let new_pd = flags & IBV_REREG_MR_CHANGE_PD != 0;
    let new_access = flags & IBV_REREG_MR_CHANGE_ACCESS != 0;
    check(mr, "ibv_rereg_mr").map_err(Failed::Input)?;
    // SAFETY: guaranteed by the caller.
    let imported = unsafe { (*mr.cast::<Mr>()).imported };
    if flags & !IBV_REREG_MR_FLAGS_SUPPORTED != 0
        || imported
        || (moved && (length == 0 || addr.is_null()))
        || (access != 0 && !new_access)
        || (new_pd && pd.is_null())
    {
        return Err(Failed::Input(EINVAL));
    }
    if flags == 0 {
        return Err(Failed::Command(EINVAL));
    }
    let refuse = |errno, why: fmt::Arguments<'_>| {
        // SAFETY: guaranteed by the caller; a region belongs to a context.
        unsafe { context::own((*mr).context) }.device.refuse(errno, why)
    };
    let access = new_access.then(|| pd_mr::access_flags(access as u32, refuse)).transpose();
    let flags = access.map_err(Failed::Command)?;
    headroom::check(headroom::OBJECT).map_err(Failed::Command)?;
    // SAFETY: guaranteed by the caller.
    unsafe {
        let rereg = Rereg {
            translation: moved.then_some((addr as u64, length as u64)),
            pd: new_pd.then(|| pd::own(pd).device.clone()),
            access: flags.map(|flags| flags.access),
            on_demand: flags.map(|flags| flags.on_demand),
        };
        (*mr.cast::<Mr>()).device.rereg(&rereg).map_err(Failed::Command)?;
        if moved {
            ((*mr).addr, (*mr).length) = (addr, length);
        }
        if new_pd {
            (*mr).pd = pd;
        }
    }
    Ok(())
}
