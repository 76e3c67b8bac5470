//! Objects by handle, for contexts that were imported: a second context of one open device in this process.
//!
//! Importing works on the command descriptor, as with a kernel's adapter; here it is a memory file that stands for an
//! open device of this process. One that came from another process is not found, and not supported.

use crate::abi::*;
use crate::ffi::{EINVAL, EOPNOTSUPP, guard, object};
use crate::pd_mr::{self, Pd, PdOwn};
use crate::{context, device};
use std::collections::HashMap;
use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use weir_device::Errno;

/// What an open device and those imported of it have made, by handle.
pub struct Exports {
    device: *mut ibv_device,
    pds: Mutex<HashMap<u32, Arc<weir_device::Pd>>>,
    mrs: Mutex<HashMap<u32, Arc<weir_device::Mr>>>,
    dms: Mutex<HashMap<u32, Arc<weir_device::Dm>>>,
}

// SAFETY: devices live as long as the process and do not change.
unsafe impl Send for Exports {}
// SAFETY: as above.
unsafe impl Sync for Exports {}

/// A file, as the kernel tells it from others.
type FileId = (libc::dev_t, libc::ino_t);

static OPEN: Mutex<Vec<(FileId, Weak<Exports>)>> = Mutex::new(Vec::new());

impl Exports {
    /// Of a device that was opened just now, and the descriptor that stands for it.
    pub fn new(device: *mut ibv_device) -> Result<(Arc<Exports>, OwnedFd), Errno> {
        // SAFETY: the name is a C string; a new descriptor is ours.
        let fd = unsafe {
            let fd = libc::memfd_create(c"weir".as_ptr(), libc::MFD_CLOEXEC);
            if fd < 0 {
                return Err(Errno(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EMFILE)));
            }
            OwnedFd::from_raw_fd(fd)
        };
        let id = identity(fd.as_raw_fd())?;
        let exports = Exports { device, pds: Mutex::default(), mrs: Mutex::default(), dms: Mutex::default() };
        let exports = Arc::new(exports);
        let mut open = locked(&OPEN);
        open.retain(|(_, exports)| exports.strong_count() > 0);
        open.push((id, Arc::downgrade(&exports)));
        Ok((exports, fd))
    }

    /// What a descriptor stands for. EBADF if it is none, EOPNOTSUPP if it is not of a device of this process.
    fn of(fd: RawFd) -> Result<Arc<Exports>, Errno> {
        let id = identity(fd)?;
        let open = locked(&OPEN);
        open.iter().filter(|(file, _)| *file == id).find_map(|(_, exports)| exports.upgrade()).ok_or(EOPNOTSUPP)
    }

    pub fn pds(&self) -> MutexGuard<'_, HashMap<u32, Arc<weir_device::Pd>>> {
        locked(&self.pds)
    }

    pub fn mrs(&self) -> MutexGuard<'_, HashMap<u32, Arc<weir_device::Mr>>> {
        locked(&self.mrs)
    }

    pub fn dms(&self) -> MutexGuard<'_, HashMap<u32, Arc<weir_device::Dm>>> {
        locked(&self.dms)
    }
}

/// After success the descriptor is the context's, which closes it.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_import_device(cmd_fd: c_int) -> *mut ibv_context {
    object(|| {
        let exports = Exports::of(cmd_fd)?;
        // SAFETY: a device of this process.
        let info = unsafe { device::own(exports.device) };
        let opened = weir_device::Context::open(&info.name)?;
        // SAFETY: an open descriptor, which the caller gives away.
        let cmd_fd = unsafe { OwnedFd::from_raw_fd(cmd_fd) };
        context::make(exports.device, opened, exports, cmd_fd)
    })
}

/// EINVAL if there is no such handle.
///
/// # Safety
/// `context` is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_import_pd(context: *mut ibv_context, handle: u32) -> *mut ibv_pd {
    object(|| {
        // SAFETY: the caller's promise.
        let own = unsafe { context::own(context) };
        let original = own.exports.pds().get(&handle).cloned().ok_or(EINVAL)?;
        let own = PdOwn::new(original.import(&own.device)?);
        Ok(Box::into_raw(Box::new(Pd { ibv: ibv_pd { context, handle }, own })).cast())
    })
}

/// # Safety
/// `pd` is from `ibv_import_pd` and not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_unimport_pd(pd: *mut ibv_pd) {
    // SAFETY: the caller's promise; made from a Box.
    guard((), || unsafe { drop(Box::from_raw(pd.cast::<Pd>())) })
}

/// The region's address is not told. EINVAL if there is no such handle.
///
/// # Safety
/// `pd` is alive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_import_mr(pd: *mut ibv_pd, handle: u32) -> *mut ibv_mr {
    object(|| {
        // SAFETY: the caller's promise.
        unsafe {
            let context = (*pd).context;
            let device = context::own(context).exports.mrs().get(&handle).cloned().ok_or(EINVAL)?;
            let ibv = pd_mr::describe(pd, std::ptr::null_mut(), handle, &device);
            Ok(Box::into_raw(Box::new(pd_mr::Mr { ibv, device, imported: true })).cast())
        }
    })
}

/// # Safety
/// `mr` is from `ibv_import_mr` and not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_unimport_mr(mr: *mut ibv_mr) {
    // SAFETY: the caller's promise; made from a Box.
    guard((), || unsafe { drop(Box::from_raw(mr.cast::<pd_mr::Mr>())) })
}

fn identity(fd: RawFd) -> Result<FileId, Errno> {
    let mut stat = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: a structure to fill, which is looked at only if it was.
    unsafe {
        if libc::fstat(fd, stat.as_mut_ptr()) != 0 {
            return Err(Errno(libc::EBADF));
        }
        let stat = stat.assume_init();
        Ok((stat.st_dev, stat.st_ino))
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
