//! XRC domains, which contexts of a process may share by a file.

use crate::abi::*;
use crate::buried::bury;
use crate::context;
use crate::ffi::{EBUSY, EINVAL, EOPNOTSUPP, status};
use crate::living::{leave, object};
use std::collections::HashMap;
use std::ffi::c_int;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use weir_device::{Errno, PerProcess};

/// An `ibv_xrcd` and Weir's part of it.
#[repr(C)]
struct Xrcd {
    ibv: ibv_xrcd,
    device: Arc<weir_device::Xrcd>,
}

/// Shared domains by device name and file (device and inode).
type Shared = HashMap<(String, u64, u64), Weak<weir_device::Xrcd>>;

static SHARED: PerProcess<Mutex<Shared>> = PerProcess::new();

/// EINVAL without both file and `O_CREAT`, or for an existing domain with `O_EXCL`; EAGAIN for a missing one without
/// `O_CREAT`.
///
/// # Safety
/// `context` is open, `init` as in verbs.h.
pub unsafe extern "C" fn open_xrcd(context: *mut ibv_context, init: *mut ibv_xrcd_init_attr) -> *mut ibv_xrcd {
    object(|| {
        // SAFETY: guaranteed by the caller.
        let (own, init) = unsafe { (context::own_checked(context)?, &*init) };
        const FD_AND_OFLAGS: u32 = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
        let creates = init.oflags & libc::O_CREAT != 0;
        if init.comp_mask & !FD_AND_OFLAGS != 0 {
            return Err(EOPNOTSUPP);
        }
        // SAFETY: guaranteed by the caller.
        let refuse = |errno, why| unsafe { context::refuse(context, errno, why) };
        if init.comp_mask != FD_AND_OFLAGS || (init.fd == -1 && !creates) {
            return Err(refuse(EINVAL, "XRC domain: it needs fd and oflags, and O_CREAT where fd is -1"));
        }
        let device = if init.fd == -1 {
            weir_device::Xrcd::open(&own.device)?
        } else {
            let (dev, ino) = identity(init.fd)?;
            let mut shared = SHARED.get().lock().unwrap_or_else(PoisonError::into_inner);
            let entry = shared.entry((own.info.name.clone(), dev, ino)).or_default();
            match entry.upgrade() {
                Some(_) if creates && init.oflags & libc::O_EXCL != 0 => {
                    return Err(refuse(EINVAL, "XRC domain: the file of fd has one already: leave O_EXCL out"));
                }
                Some(found) => found,
                None if !creates => {
                    return Err(refuse(
                        Errno(libc::EAGAIN),
                        "XRC domain: the file of fd has none yet: O_CREAT makes it",
                    ));
                }
                None => {
                    let made = weir_device::Xrcd::open(&own.device)?;
                    *entry = Arc::downgrade(&made);
                    made
                }
            }
        };
        Ok(Box::into_raw(Box::new(Xrcd { ibv: ibv_xrcd { context }, device })).cast())
    })
}

/// EBUSY while it has SRQs or QPs.
///
/// # Safety
/// `xrcd` is from [`open_xrcd`]; after success it is not used again.
pub unsafe extern "C" fn close_xrcd(xrcd: *mut ibv_xrcd) -> c_int {
    status(|| {
        let leaving = leave(xrcd, "ibv_close_xrcd")?;
        // SAFETY: guaranteed by the caller; created from a Box.
        unsafe {
            if context::is_inherited((*xrcd).context) {
                return Ok(());
            }
            if own(xrcd).is_used() {
                let why = "XRC domain: close: SRQs or QPs belong to it: destroy them first";
                return Err(context::refuse((*xrcd).context, EBUSY, why));
            }
            let _left = leaving.done();
            bury(xrcd.cast::<Xrcd>());
        }
        Ok(())
    })
}

/// The adapter's domain object.
///
/// # Safety
/// `xrcd` is alive for `'a`.
pub unsafe fn own<'a>(xrcd: *const ibv_xrcd) -> &'a Arc<weir_device::Xrcd> {
    // SAFETY: every `ibv_xrcd` that Weir creates is the start of an `Xrcd`.
    unsafe { &(*xrcd.cast::<Xrcd>()).device }
}

/// Device and inode of a file.
fn identity(fd: c_int) -> Result<(u64, u64), Errno> {
    use std::os::unix::fs::MetadataExt;
    if fd < 0 {
        return Err(EINVAL);
    }
    // SAFETY: borrowed only for the duration of the call, which fails for a bad descriptor.
    let file = unsafe { BorrowedFd::borrow_raw(fd) }.try_clone_to_owned()?;
    let metadata = std::fs::File::from(file).metadata()?;
    Ok((metadata.dev(), metadata.ino()))
}
