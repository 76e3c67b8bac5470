//! libfabric's objects: structures that begin with a `fid`, and that C has a pointer to.

use crate::unsupported::{no3, no5};
use std::ffi::{c_int, c_void};
use std::sync::Arc;
use weir_fabric_abi::{fi_ops, fid};

/// An object that begins with the structure of the header, so that both have the same address.
///
/// # Safety
/// It is `repr(C)`, its first member is `Header`, and `CLASS` is the class of no other object.
pub unsafe trait Object: Sync + Send {
    type Header;
    const CLASS: usize;
}

/// Gives an object to C, which closes it by [`close`].
pub fn into_raw<T: Object>(object: Arc<T>) -> *mut T::Header {
    Arc::into_raw(object).cast_mut().cast()
}

/// The object that C means.
///
/// # Safety
/// The pointer is from [`into_raw`], and the object has not been closed.
#[inline]
pub unsafe fn borrow<'a, T: Object>(header: *mut T::Header) -> &'a T {
    // SAFETY: the caller's pointer; the header is the first member.
    unsafe { &*header.cast::<T>() }
}

/// The object that C means, if it is of that class.
///
/// # Safety
/// The pointer is that of an open object of libfabric.
pub unsafe fn borrow_fid<'a, T: Object>(fid: *mut fid) -> Option<&'a T> {
    // SAFETY: every object begins with a fid.
    let class = unsafe { (*fid).fclass };
    // SAFETY: classes tell objects apart.
    (class == T::CLASS).then(|| unsafe { &*fid.cast::<T>() })
}

/// The object that C means, to keep it.
///
/// # Safety
/// As [`borrow`].
pub unsafe fn share<T: Object>(object: &T) -> Arc<T> {
    let pointer: *const T = object;
    // SAFETY: the caller's object is that of an Arc, which C holds.
    unsafe {
        Arc::increment_strong_count(pointer);
        Arc::from_raw(pointer)
    }
}

/// Ends what C has of an object.
///
/// # Safety
/// As [`borrow`]; the pointer is not used afterwards.
pub unsafe fn close<T: Object>(fid: *mut fid) -> Arc<T> {
    // SAFETY: the caller's pointer.
    unsafe { Arc::from_raw(fid.cast::<T>()) }
}

/// Closes an object that needs nothing else.
///
/// # Safety
/// As [`close`].
pub unsafe extern "C" fn closed<T: Object>(fid: *mut fid) -> c_int {
    // SAFETY: the caller's pointer.
    drop(unsafe { close::<T>(fid) });
    0
}

/// The calls that all objects have: an object that cannot be bound to others, or that has no commands, says so by `no3`.
pub const fn calls(
    close: unsafe extern "C" fn(*mut fid) -> c_int,
    bind: unsafe extern "C" fn(*mut fid, *mut fid, u64) -> c_int,
    control: unsafe extern "C" fn(*mut fid, c_int, *mut c_void) -> c_int,
) -> fi_ops {
    fi_ops {
        size: size_of::<fi_ops>(),
        close: Some(close),
        bind: Some(bind),
        control: Some(control),
        ops_open: Some(no5),
        tostr: Some(no3),
        ops_set: Some(no5),
    }
}

/// The beginning of an object.
pub fn fid(class: usize, context: *mut c_void, ops: &'static fi_ops) -> fid {
    fid { fclass: class, context, ops: std::ptr::from_ref(ops).cast_mut() }
}

/// A table as the headers want it.
pub fn table<T>(ops: &'static T) -> *mut T {
    std::ptr::from_ref(ops).cast_mut()
}

/// Copies as many bytes as fit, and sets the length to that of all of them. True: all have fitted.
///
/// # Safety
/// `room` is the length of `out`.
pub unsafe fn write_bytes(bytes: &[u8], out: *mut c_void, room: *mut usize) -> bool {
    // SAFETY: the caller's buffer.
    unsafe {
        let fits = bytes.len().min(if out.is_null() { 0 } else { *room });
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), out.cast(), fits);
        *room = bytes.len();
        fits == bytes.len()
    }
}
