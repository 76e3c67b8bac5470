//! Which process an object belongs to: that which created it, or a forked child of it.

use crate::Errno;
use crate::os::descriptors;
use crate::os::refused::refused;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, Ordering};

pub use weir_guarded::generation::{count_fork, generation};

/// Returns whether the program has more rights than the user that started it (setuid, file capabilities; AT_SECURE in
/// getauxval(3)). Such a program must not take files and settings from its environment.
pub fn gains_privileges() -> bool {
    // SAFETY: reads a number.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// The process that an object belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnerProcess(u32);

impl OwnerProcess {
    /// This process.
    #[inline]
    pub fn current() -> OwnerProcess {
        OwnerProcess(generation())
    }

    /// Returns whether this process is a forked child of that process. Locks of the parent's objects may stay held for
    /// ever in the child.
    #[inline]
    pub fn is_inherited(self) -> bool {
        self.0 != generation()
    }

    /// Returns whether that process is a forked child of the process that loaded the library.
    pub fn is_forked(self) -> bool {
        self.0 != 0
    }

    /// EIO in a forked child of that process. The first such call of a child has a line in the log, which begins with the
    /// `name` of the object.
    #[inline]
    pub fn check(self, name: impl FnOnce() -> String) -> Result<(), Errno> {
        if self.is_inherited() { Err(used_in_child(name())) } else { Ok(()) }
    }
}

/// A forked child uses an object of its parent. Takes no lock.
#[cold]
fn used_in_child(name: String) -> Errno {
    /// The forked child that the log has named.
    static TOLD: AtomicU32 = AtomicU32::new(0);
    if TOLD.swap(generation(), Ordering::Relaxed) == generation() {
        return Errno(libc::EIO);
    }
    let process = std::process::id();
    refused(
        libc::EIO,
        format_args!(
            "{name}: process {process} is a forked child and uses objects of its parent: all such calls fail with EIO, and \
             further ones are not logged. Open the device after the fork (ibv_get_device_list, ibv_open_device), or use it \
             in the parent only"
        ),
    )
}

/// A value with descriptors that a child closes, or with state that a child does not have: dropped only by the
/// process that created it. In a child, the descriptor numbers may already belong to files of the program, as after
/// [`descriptors::lose`].
pub struct Owned<T> {
    owner_process: OwnerProcess,
    /// [`descriptors::losses`] at its creation, if it has descriptors.
    losses: Option<u32>,
    inner: ManuallyDrop<T>,
}

impl<T> Owned<T> {
    /// A value of this process, without descriptors.
    pub fn new(inner: T) -> Self {
        Owned { owner_process: OwnerProcess::current(), losses: None, inner: ManuallyDrop::new(inner) }
    }

    /// A value of this process with descriptors.
    pub fn with_descriptors(inner: T) -> Self {
        let mut owned = Owned::new(inner);
        owned.losses = Some(descriptors::losses());
        owned
    }

    /// Returns whether its descriptors stay open when it is dropped: the program has closed some of Weir, and these may
    /// be among them.
    pub fn stays_open(&self) -> bool {
        self.losses.is_some_and(|losses| losses != descriptors::losses())
    }
}

impl<T> Deref for Owned<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T> DerefMut for Owned<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        if !self.owner_process.is_inherited() && !self.stays_open() {
            // SAFETY: dropped once, and nothing accesses it afterwards.
            unsafe { ManuallyDrop::drop(&mut self.inner) };
        }
    }
}
