//! Errors as the verbs report them.

use std::collections::TryReserveError;
use weir_transport::{ModifyError, PostError};

/// An errno value, as verbs return them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub i32);

impl Errno {
    /// The errno of this thread's last failed call.
    pub fn last() -> Errno {
        std::io::Error::last_os_error().into()
    }

    /// True if the process or the system has no free descriptor: whether the queried object exists is unknown then.
    pub fn is_out_of_descriptors(self) -> bool {
        matches!(self.0, libc::EMFILE | libc::ENFILE)
    }
}

impl From<PostError> for Errno {
    fn from(error: PostError) -> Self {
        Errno(match error {
            PostError::QueueFull => libc::ENOMEM,
            PostError::Failed => libc::EIO,
            _ => libc::EINVAL,
        })
    }
}

impl From<ModifyError> for Errno {
    fn from(_: ModifyError) -> Self {
        Errno(libc::EINVAL)
    }
}

impl From<TryReserveError> for Errno {
    fn from(_: TryReserveError) -> Self {
        Errno(libc::ENOMEM)
    }
}

impl From<std::io::Error> for Errno {
    fn from(error: std::io::Error) -> Self {
        if error.kind() == std::io::ErrorKind::OutOfMemory {
            return Errno(libc::ENOMEM);
        }
        Errno(error.raw_os_error().unwrap_or(libc::EIO))
    }
}
