//! Counters of completions.

use crate::guard::guarded;
use crate::objects::{self, Object, table};
use crate::progress::{Endpoints, Progress, deadline, left_until};
use crate::unsupported::no3;
use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use weir_fabric_abi::*;

/// A counter.
#[repr(C)]
pub struct Counter {
    header: fid_cntr,
    value: AtomicU64,
    errors: AtomicU64,
    endpoints: Endpoints,
}

// SAFETY: the header is the first member.
unsafe impl Object for Counter {
    type Header = fid_cntr;
    const CLASS: usize = FI_CLASS_CNTR;
}
// SAFETY: the header's pointers lead to static tables.
unsafe impl Send for Counter {}
// SAFETY: as above; the rest is atomic.
unsafe impl Sync for Counter {}

impl Counter {
    /// Counts an operation that has succeeded or failed.
    pub fn count(&self, succeeded: bool) {
        let counter = if succeeded { &self.value } else { &self.errors };
        counter.fetch_add(1, Ordering::AcqRel);
    }

    /// An endpoint counts here.
    pub fn bind(&self, endpoint: &Arc<dyn Progress>) {
        self.endpoints.add(endpoint);
    }
}

/// Opens a counter.
pub unsafe extern "C" fn open(
    _: *mut fid_domain,
    attr: *mut fi_cntr_attr,
    cntr: *mut *mut fid_cntr,
    context: *mut c_void,
) -> c_int {
    guarded(|| {
        // SAFETY: the program's attributes, or none.
        let attr = unsafe { attr.as_ref() }.copied().unwrap_or_default();
        if attr.events != FI_CNTR_EVENTS_COMP || !matches!(attr.wait_obj, FI_WAIT_NONE | FI_WAIT_UNSPEC | FI_WAIT_YIELD)
        {
            return -FI_ENOSYS;
        }
        let header = fid_cntr { fid: objects::fid(FI_CLASS_CNTR, context, &FID), ops: table(&OPS) };
        let (value, errors, endpoints) = Default::default();
        // SAFETY: the program's place for the result.
        unsafe { *cntr = objects::into_raw(Arc::new(Counter { header, value, errors, endpoints })) };
        0
    })
}

static FID: fi_ops = objects::calls(objects::closed::<Counter>, no3, no3);

static OPS: fi_ops_cntr = fi_ops_cntr {
    size: size_of::<fi_ops_cntr>(),
    read: Some(read),
    readerr: Some(readerr),
    add: Some(add),
    set: Some(set),
    wait: Some(wait),
    adderr: Some(adderr),
    seterr: Some(seterr),
};

/// The counter that C means.
///
/// # Safety
/// It is open.
unsafe fn of<'a>(cntr: *mut fid_cntr) -> &'a Counter {
    // SAFETY: the caller's counter.
    unsafe { objects::borrow(cntr) }
}

unsafe extern "C" fn read(cntr: *mut fid_cntr) -> u64 {
    // SAFETY: the program's counter.
    let counter = unsafe { of(cntr) };
    // A panic must not leave the call; the value is valid in any case.
    let _ = guarded(|| {
        counter.endpoints.progress();
        0i32
    });
    counter.value.load(Ordering::Acquire)
}

unsafe extern "C" fn readerr(cntr: *mut fid_cntr) -> u64 {
    // SAFETY: the program's counter.
    unsafe { of(cntr) }.errors.load(Ordering::Acquire)
}

unsafe extern "C" fn add(cntr: *mut fid_cntr, value: u64) -> c_int {
    // SAFETY: the program's counter.
    unsafe { of(cntr) }.value.fetch_add(value, Ordering::AcqRel);
    0
}

unsafe extern "C" fn set(cntr: *mut fid_cntr, value: u64) -> c_int {
    // SAFETY: the program's counter.
    unsafe { of(cntr) }.value.store(value, Ordering::Release);
    0
}

unsafe extern "C" fn adderr(cntr: *mut fid_cntr, value: u64) -> c_int {
    // SAFETY: the program's counter.
    unsafe { of(cntr) }.errors.fetch_add(value, Ordering::AcqRel);
    0
}

unsafe extern "C" fn seterr(cntr: *mut fid_cntr, value: u64) -> c_int {
    // SAFETY: the program's counter.
    unsafe { of(cntr) }.errors.store(value, Ordering::Release);
    0
}

/// Waits until the counter has reached a value, an operation has failed, or the time in ms is over.
unsafe extern "C" fn wait(cntr: *mut fid_cntr, threshold: u64, timeout: c_int) -> c_int {
    guarded(|| {
        // SAFETY: the program's counter.
        let counter = unsafe { of(cntr) };
        let limit = deadline(timeout);
        let errors = counter.errors.load(Ordering::Acquire);
        loop {
            counter.endpoints.progress();
            if counter.value.load(Ordering::Acquire) >= threshold {
                return 0;
            }
            if counter.errors.load(Ordering::Acquire) != errors {
                return -FI_EAVAIL;
            }
            let left = left_until(limit);
            if left.is_some_and(|left| left.is_zero()) {
                return -FI_ETIMEDOUT;
            }
            if counter.endpoints.is_empty() {
                std::thread::sleep(Duration::from_millis(1));
            } else if counter.endpoints.may_block() && counter.value.load(Ordering::Acquire) < threshold {
                counter.endpoints.wait(None, left);
            }
        }
    })
}
