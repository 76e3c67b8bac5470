//! Fabrics: the first object that a program opens.

use crate::guard::guarded;
use crate::objects::{self, Object, table};
use crate::unsupported::{no3, no4};
use crate::{domain, event_queue, queue};
use std::ffi::{c_int, c_void};
use std::sync::Arc;
use weir_fabric_abi::*;

/// A fabric: nothing but the version of the interface that the program asked for.
#[repr(C)]
pub struct Fabric {
    header: fid_fabric,
}

// SAFETY: the header is the first member.
unsafe impl Object for Fabric {
    type Header = fid_fabric;
    const CLASS: usize = FI_CLASS_FABRIC;
}
// SAFETY: the header's pointers lead to static tables.
unsafe impl Send for Fabric {}
// SAFETY: as above.
unsafe impl Sync for Fabric {}

/// Opens a fabric.
pub unsafe extern "C" fn open(attr: *mut fi_fabric_attr, fabric: *mut *mut fid_fabric, context: *mut c_void) -> c_int {
    guarded(|| {
        // SAFETY: the core's attributes.
        let api_version = unsafe { (*attr).api_version };
        let header = fid_fabric { fid: objects::fid(FI_CLASS_FABRIC, context, &FID), ops: table(&OPS), api_version };
        // SAFETY: the core's place for the result.
        unsafe { *fabric = objects::into_raw(Arc::new(Fabric { header })) };
        0
    })
}

static FID: fi_ops = objects::calls(objects::closed::<Fabric>, no3, no3);

static OPS: fi_ops_fabric = fi_ops_fabric {
    size: size_of::<fi_ops_fabric>(),
    domain: Some(domain::open),
    passive_ep: Some(no4),
    eq_open: Some(event_queue::open),
    wait_open: Some(no3),
    trywait: Some(trywait),
    domain2: Some(domain2),
};

unsafe extern "C" fn domain2(
    fabric: *mut fid_fabric,
    info: *mut fi_info,
    domain: *mut *mut fid_domain,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    if flags != 0 {
        return -FI_EBADFLAGS;
    }
    // SAFETY: the program's own call.
    unsafe { domain::open(fabric, info, domain, context) }
}

/// Whether the program may block on the descriptors of these objects: not if something is there already.
unsafe extern "C" fn trywait(_: *mut fid_fabric, fids: *mut *mut fid, count: c_int) -> c_int {
    guarded(|| {
        for at in 0..usize::try_from(count).unwrap_or(0) {
            // SAFETY: the program's list.
            let fid = unsafe { *fids.add(at) };
            // SAFETY: the program's object.
            if let Some(queue) = unsafe { objects::borrow_fid::<queue::Queue>(fid) }
                && !queue.may_block()
            {
                return -FI_EAGAIN;
            }
        }
        0
    })
}
