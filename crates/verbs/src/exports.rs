//! The objects of open devices by handle, and the descriptors that identify the devices.

use crate::abi::ibv_device;
use crate::ffi::{EINVAL, EOPNOTSUPP};
use std::collections::HashMap;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use weir_device::{Errno, PerProcess, with_room};

/// The objects of an open device and of the contexts imported from it, by handle.
pub struct Exports {
    pub device: *mut ibv_device,
    pub pds: Handles<weir_device::Pd>,
    pub mrs: Handles<weir_device::Mr>,
    pub dms: Handles<weir_device::Dm>,
}

/// Objects of one kind. Nothing is allocated or freed under the lock: the program's memory hooks may call
/// `ibv_dereg_mr` from within malloc and free.
pub struct Handles<T>(Mutex<HashMap<u32, Arc<T>>>);

// SAFETY: devices live as long as the process and do not change.
unsafe impl Send for Exports {}
// SAFETY: as above.
unsafe impl Sync for Exports {}

/// Identifies a file as the kernel does.
type FileId = (libc::dev_t, libc::ino_t);

/// Empty in a forked child, which must not use its parent's devices: see `context::own_checked`.
static OPEN: PerProcess<Mutex<Open>> = PerProcess::new();

/// Open devices by the files that identify them.
type Open = Vec<(FileId, Weak<Exports>)>;

impl Exports {
    /// Creates the exports of a newly opened device, and the descriptor that identifies it.
    pub fn new(device: *mut ibv_device) -> Result<(Arc<Exports>, OwnedFd), Errno> {
        // SAFETY: the name is a C string; the new descriptor has no other owner.
        let fd = unsafe {
            let fd = libc::memfd_create(c"weir".as_ptr(), libc::MFD_CLOEXEC);
            if fd < 0 {
                return Err(Errno(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EMFILE)));
            }
            OwnedFd::from_raw_fd(fd)
        };
        let id = identity(fd.as_raw_fd())?;
        let exports = Exports { device, pds: Handles::default(), mrs: Handles::default(), dms: Handles::default() };
        let exports = Arc::new(exports);
        let mut open = locked(OPEN.get());
        open.retain(|(_, exports)| exports.strong_count() > 0);
        open.push((id, Arc::downgrade(&exports)));
        Ok((exports, fd))
    }

    /// The exports that a descriptor identifies. EBADF for a bad descriptor, EOPNOTSUPP if no device of this process
    /// matches.
    pub fn of(fd: RawFd) -> Result<Arc<Exports>, Errno> {
        let id = identity(fd)?;
        let open = locked(OPEN.get());
        open.iter().filter(|(file, _)| *file == id).find_map(|(_, exports)| exports.upgrade()).ok_or(EOPNOTSUPP)
    }
}

impl<T> Handles<T> {
    /// Stores an object, which keeps its handle until it is removed. ENOMEM if memory is short.
    pub fn insert(&self, handle: u32, object: Arc<T>) -> Result<(), Errno> {
        with_room(1, || locked(&self.0), |objects| objects)?.insert(handle, object);
        Ok(())
    }

    /// EINVAL for an unknown handle.
    pub fn get(&self, handle: u32) -> Result<Arc<T>, Errno> {
        locked(&self.0).get(&handle).cloned().ok_or(EINVAL)
    }

    /// Removes a handle; later imports of it fail with EINVAL.
    pub fn remove(&self, handle: u32) {
        let object = locked(&self.0).remove(&handle);
        drop(object);
    }
}

impl<T> Default for Handles<T> {
    fn default() -> Self {
        Handles(Mutex::default())
    }
}

fn identity(fd: RawFd) -> Result<FileId, Errno> {
    let mut stat = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: the call fills the structure, which is read only after success.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_descriptors_of_open_devices_identify_exports() {
        let (exports, fd) = Exports::new(std::ptr::null_mut()).unwrap();
        let copy = fd.try_clone().unwrap();
        assert!(Arc::ptr_eq(&Exports::of(copy.as_raw_fd()).unwrap(), &exports));
        let (_other, other_fd) = Exports::new(std::ptr::null_mut()).unwrap();
        assert!(!Arc::ptr_eq(&Exports::of(other_fd.as_raw_fd()).unwrap(), &exports));
        assert_eq!(Exports::of(-1).err(), Some(Errno(libc::EBADF)));
        assert_eq!(Exports::of(std::io::stdin().as_raw_fd()).err(), Some(EOPNOTSUPP));
        drop(exports);
        assert_eq!(Exports::of(copy.as_raw_fd()).err(), Some(EOPNOTSUPP), "the device was closed");
    }

    #[test]
    fn handles_keep_their_objects_until_they_are_removed() {
        let handles = Handles::default();
        for n in 0..100 {
            handles.insert(n, Arc::new(n)).unwrap();
        }
        assert!((0..100).all(|n| handles.get(n).is_ok_and(|object| *object == n)));
        handles.remove(50);
        assert_eq!(handles.get(50).err(), Some(EINVAL));
        assert!(handles.get(51).is_ok());
    }
}
