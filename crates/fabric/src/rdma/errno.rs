//! Error numbers of the C functions.

use std::ffi::c_int;
use std::fmt;
use std::io;

/// An error number of errno(3), greater than 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Errno(pub c_int);

impl Errno {
    /// That of the thread's last C function.
    pub fn last() -> Errno {
        Errno(io::Error::last_os_error().raw_os_error().filter(|&code| code > 0).unwrap_or(libc::EIO))
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        io::Error::from_raw_os_error(self.0).fmt(f)
    }
}

impl std::error::Error for Errno {}

impl From<Errno> for io::Error {
    fn from(errno: Errno) -> io::Error {
        io::Error::from_raw_os_error(errno.0)
    }
}

/// The result of a C function that returns 0, -1 with errno, or an error number of either sign: verbs return the number,
/// and librdmacm hands through what verbs return.
#[inline]
pub(crate) fn check(returned: c_int) -> Result<(), Errno> {
    match returned {
        0 => Ok(()),
        -1 => Err(Errno::last()),
        code => Err(Errno(code.saturating_abs())),
    }
}

/// The result of a C function that returns an object, or NULL with errno.
pub(crate) fn check_object<T>(object: *mut T) -> Result<*mut T, Errno> {
    if object.is_null() { Err(Errno::last()) } else { Ok(object) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_is_errno_or_a_number_of_either_sign() {
        assert_eq!(check(0), Ok(()));
        assert_eq!(check(libc::EINVAL), Err(Errno(libc::EINVAL)));
        assert_eq!(check(-libc::ENOMEM), Err(Errno(libc::ENOMEM)));
        // SAFETY: the thread's own variable.
        unsafe { *libc::__errno_location() = libc::ENODEV };
        assert_eq!(check(-1), Err(Errno(libc::ENODEV)));
        assert!(Errno(libc::ENODEV).to_string().contains("No such device"));
    }
}
