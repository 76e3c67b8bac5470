//! Error numbers. Calls return them negated; those of completions and events are positive.

use std::ffi::c_int;

/// No error.
pub const FI_SUCCESS: c_int = 0;

/// Defines error numbers that are those of the C library.
macro_rules! of_errno {
    ($($name:ident = $errno:ident),* $(,)?) => {$(
        #[doc = concat!("`", stringify!($errno), "` of the C library.")]
        pub const $name: c_int = libc::$errno;
    )*};
}

of_errno! {
    FI_EPERM = EPERM,
    FI_ENOENT = ENOENT,
    FI_EINTR = EINTR,
    FI_EIO = EIO,
    FI_E2BIG = E2BIG,
    FI_EBADF = EBADF,
    FI_EAGAIN = EAGAIN,
    FI_ENOMEM = ENOMEM,
    FI_EACCES = EACCES,
    FI_EFAULT = EFAULT,
    FI_EBUSY = EBUSY,
    FI_ENODEV = ENODEV,
    FI_EINVAL = EINVAL,
    FI_EMFILE = EMFILE,
    FI_ENOSPC = ENOSPC,
    FI_ENOSYS = ENOSYS,
    FI_EWOULDBLOCK = EWOULDBLOCK,
    FI_ENOMSG = ENOMSG,
    FI_ENODATA = ENODATA,
    FI_EOVERFLOW = EOVERFLOW,
    FI_EMSGSIZE = EMSGSIZE,
    FI_ENOPROTOOPT = ENOPROTOOPT,
    FI_EOPNOTSUPP = EOPNOTSUPP,
    FI_EADDRINUSE = EADDRINUSE,
    FI_EADDRNOTAVAIL = EADDRNOTAVAIL,
    FI_ENETDOWN = ENETDOWN,
    FI_ENETUNREACH = ENETUNREACH,
    FI_ECONNABORTED = ECONNABORTED,
    FI_ECONNRESET = ECONNRESET,
    FI_ENOBUFS = ENOBUFS,
    FI_EISCONN = EISCONN,
    FI_ENOTCONN = ENOTCONN,
    FI_ESHUTDOWN = ESHUTDOWN,
    FI_ETIMEDOUT = ETIMEDOUT,
    FI_ECONNREFUSED = ECONNREFUSED,
    FI_EHOSTDOWN = EHOSTDOWN,
    FI_EHOSTUNREACH = EHOSTUNREACH,
    FI_EALREADY = EALREADY,
    FI_EINPROGRESS = EINPROGRESS,
    FI_EREMOTEIO = EREMOTEIO,
    FI_ECANCELED = ECANCELED,
    FI_EKEYREJECTED = EKEYREJECTED,
}

/// The first number that is not the C library's.
pub const FI_ERRNO_OFFSET: c_int = 256;
/// An error without a number of its own.
pub const FI_EOTHER: c_int = 256;
/// The caller's buffer is too small.
pub const FI_ETOOSMALL: c_int = 257;
/// The object's state does not allow the call.
pub const FI_EOPBADSTATE: c_int = 258;
/// The queue has an error, which `readerr` reads.
pub const FI_EAVAIL: c_int = 259;
/// Unknown flags.
pub const FI_EBADFLAGS: c_int = 260;
/// No event queue is bound.
pub const FI_ENOEQ: c_int = 261;
/// The objects are of different domains.
pub const FI_EDOMAIN: c_int = 262;
/// No completion queue is bound.
pub const FI_ENOCQ: c_int = 263;
/// A checksum is wrong.
pub const FI_ECRC: c_int = 264;
/// The message was longer than the receive buffer.
pub const FI_ETRUNC: c_int = 265;
/// No such key of a memory region, or a key that is in use.
pub const FI_ENOKEY: c_int = 266;
/// No address vector is bound.
pub const FI_ENOAV: c_int = 267;
/// The queue was full and lost an entry.
pub const FI_EOVERRUN: c_int = 268;
/// The peer had no receive buffer.
pub const FI_ENORX: c_int = 269;
/// The number after the last.
pub const FI_ERRNO_MAX: c_int = 270;
