//! Event queues. Programs must be able to open them, but endpoints of this provider have no events: insertions into address
//! vectors are complete when they return.

use crate::guard::guarded;
use crate::objects::{self, Object, table};
use crate::unsupported::no3;
use crate::wake::Wake;
use std::ffi::{c_char, c_int, c_void};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use weir_fabric_abi::*;

/// An event queue: what the program itself writes to it.
#[repr(C)]
pub struct EventQueue {
    header: fid_eq,
    written: Mutex<std::collections::VecDeque<(u32, Vec<u8>)>>,
    /// Readable if there is an event.
    wakes: Option<Wake>,
}

// SAFETY: the header is the first member.
unsafe impl Object for EventQueue {
    type Header = fid_eq;
    const CLASS: usize = FI_CLASS_EQ;
}
// SAFETY: the header's pointers lead to static tables.
unsafe impl Send for EventQueue {}
// SAFETY: as above; the rest is locked.
unsafe impl Sync for EventQueue {}

/// Opens an event queue.
pub unsafe extern "C" fn open(
    _: *mut fid_fabric,
    attr: *mut fi_eq_attr,
    eq: *mut *mut fid_eq,
    context: *mut c_void,
) -> c_int {
    guarded(|| {
        // SAFETY: the program's attributes, or none.
        let wait = unsafe { attr.as_ref() }.map_or(FI_WAIT_UNSPEC, |attr| attr.wait_obj);
        if !matches!(wait, FI_WAIT_NONE | FI_WAIT_UNSPEC | FI_WAIT_FD) {
            return -FI_ENOSYS;
        }
        let header = fid_eq { fid: objects::fid(FI_CLASS_EQ, context, &FID), ops: table(&OPS) };
        let queue = EventQueue { header, written: Mutex::default(), wakes: Wake::new() };
        // SAFETY: the program's place for the result.
        unsafe { *eq = objects::into_raw(Arc::new(queue)) };
        0
    })
}

static FID: fi_ops = objects::calls(objects::closed::<EventQueue>, no3, control);

static OPS: fi_ops_eq = fi_ops_eq {
    size: size_of::<fi_ops_eq>(),
    read: Some(read),
    readerr: Some(readerr),
    write: Some(write),
    sread: Some(sread),
    strerror: Some(strerror),
};

unsafe extern "C" fn control(fid: *mut fid, command: c_int, argument: *mut c_void) -> c_int {
    // SAFETY: the program's queue.
    let Some(queue) = (unsafe { objects::borrow_fid::<EventQueue>(fid) }) else { return -FI_EINVAL };
    match (command, &queue.wakes) {
        (FI_GETWAIT, Some(wakes)) => {
            // SAFETY: the program's place for a descriptor.
            unsafe { *argument.cast::<c_int>() = wakes.fd() };
            0
        }
        _ => -FI_ENOSYS,
    }
}

unsafe extern "C" fn read(eq: *mut fid_eq, event: *mut u32, buf: *mut c_void, len: usize, flags: u64) -> isize {
    // SAFETY: the program's queue.
    let queue = unsafe { objects::borrow::<EventQueue>(eq) };
    let Ok(mut written) = queue.written.lock() else { return -FI_EOTHER as isize };
    let Some((number, bytes)) = written.front() else { return -FI_EAGAIN as isize };
    if bytes.len() > len {
        return -FI_ETOOSMALL as isize;
    }
    // SAFETY: the program's buffer of that length.
    unsafe {
        *event = *number;
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), buf.cast(), bytes.len());
    }
    let read = bytes.len();
    if flags & FI_PEEK == 0 {
        written.pop_front();
        if written.is_empty()
            && let Some(wakes) = &queue.wakes
        {
            wakes.clear();
        }
    }
    read as isize
}

unsafe extern "C" fn write(eq: *mut fid_eq, event: u32, buf: *const c_void, len: usize, _: u64) -> isize {
    // SAFETY: the program's queue.
    let queue = unsafe { objects::borrow::<EventQueue>(eq) };
    // SAFETY: the program's bytes.
    let bytes = unsafe { std::slice::from_raw_parts(buf.cast::<u8>(), len) }.to_vec();
    let Ok(mut written) = queue.written.lock() else { return -FI_EOTHER as isize };
    written.push_back((event, bytes));
    if let Some(wakes) = &queue.wakes {
        wakes.set();
    }
    len as isize
}

unsafe extern "C" fn readerr(_: *mut fid_eq, _: *mut fi_eq_err_entry, _: u64) -> isize {
    -FI_EAGAIN as isize
}

unsafe extern "C" fn sread(
    eq: *mut fid_eq,
    event: *mut u32,
    buf: *mut c_void,
    len: usize,
    timeout: c_int,
    flags: u64,
) -> isize {
    // SAFETY: as for `read`.
    let now = unsafe { read(eq, event, buf, len, flags) };
    // SAFETY: the program's queue.
    let Some(wakes) = (unsafe { &objects::borrow::<EventQueue>(eq).wakes }) else { return now };
    if now != -FI_EAGAIN as isize {
        return now;
    }
    crate::queue::wait_readable(wakes.fd(), u64::try_from(timeout).ok().map(Duration::from_millis));
    // SAFETY: as for `read`.
    unsafe { read(eq, event, buf, len, flags) }
}

unsafe extern "C" fn strerror(_: *mut fid_eq, _: c_int, _: *const c_void, _: *mut c_char, _: usize) -> *const c_char {
    c"no error".as_ptr()
}
