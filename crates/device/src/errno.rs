//! Errors as the verbs report them.

use weir_transport::{ModifyError, PostError};

/// An errno value, as verbs return them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub i32);

impl Errno {
    /// Of this thread's last failed call.
    pub fn last() -> Errno {
        std::io::Error::last_os_error().into()
    }
}

impl From<PostError> for Errno {
    fn from(error: PostError) -> Self {
        Errno(match error {
            PostError::QueueFull => libc::ENOMEM,
            _ => libc::EINVAL,
        })
    }
}

impl From<ModifyError> for Errno {
    fn from(_: ModifyError) -> Self {
        Errno(libc::EINVAL)
    }
}

impl From<std::io::Error> for Errno {
    fn from(error: std::io::Error) -> Self {
        Errno(error.raw_os_error().unwrap_or(libc::EIO))
    }
}
