//! Memory that the program registers, so that peers may use it.

use crate::domain::keys::Registered;
use crate::domain::object::Domain;
use crate::guard::guarded;
use crate::objects::{self, Object};
use crate::rdma::{IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_READ, IBV_ACCESS_REMOTE_WRITE, Region};
use libc::iovec;
use std::ffi::{c_int, c_void};
use std::sync::Arc;
use weir_abi::IBV_ACCESS_ON_DEMAND;
use weir_fabric_abi::*;

/// Registered memory.
#[repr(C)]
struct Memory {
    header: fid_mr,
    domain: Arc<Domain>,
    region: Region,
}

// SAFETY: the header is the first member.
unsafe impl Object for Memory {
    type Header = fid_mr;
    const CLASS: usize = FI_CLASS_MR;
}
// SAFETY: the header's pointers lead to static tables.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

/// Calls of domains that register memory.
pub static OPS: fi_ops_mr =
    fi_ops_mr { size: size_of::<fi_ops_mr>(), reg: Some(reg), regv: Some(regv), regattr: Some(regattr) };

static FID: fi_ops = objects::calls(close, bind, control);

#[allow(clippy::too_many_arguments)] // The header's.
unsafe extern "C" fn reg(
    domain: *mut fid,
    buf: *const c_void,
    len: usize,
    access: u64,
    offset: u64,
    _requested_key: u64,
    flags: u64,
    mr: *mut *mut fid_mr,
    context: *mut c_void,
) -> c_int {
    guarded(|| {
        // SAFETY: the program's domain.
        let Some(domain) = (unsafe { objects::borrow_fid::<Domain>(domain) }) else { return -FI_EINVAL };
        if offset != 0 {
            return -FI_EINVAL;
        }
        if flags & !(FI_RMA_EVENT | FI_RMA_PMEM) != 0 {
            return -FI_EBADFLAGS;
        }
        // SAFETY: the program's domain is that of an Arc.
        let domain = unsafe { objects::share(domain) };
        match register(domain, buf as u64, len, access, context) {
            Ok(memory) => {
                // SAFETY: the program's place for the result.
                unsafe { *mr = objects::into_raw(memory) };
                0
            }
            Err(error) => -error,
        }
    })
}

#[allow(clippy::too_many_arguments)] // The header's.
unsafe extern "C" fn regv(
    domain: *mut fid,
    iov: *const iovec,
    count: usize,
    access: u64,
    offset: u64,
    key: u64,
    flags: u64,
    mr: *mut *mut fid_mr,
    context: *mut c_void,
) -> c_int {
    if count != 1 {
        return -FI_EINVAL;
    }
    // SAFETY: the program's list.
    let iovec { iov_base, iov_len } = unsafe { *iov };
    // SAFETY: the program's own call.
    unsafe { reg(domain, iov_base, iov_len, access, offset, key, flags, mr, context) }
}

unsafe extern "C" fn regattr(domain: *mut fid, attr: *const fi_mr_attr, flags: u64, mr: *mut *mut fid_mr) -> c_int {
    // SAFETY: the program's attributes.
    let attr = unsafe { &*attr };
    if attr.iface != FI_HMEM_SYSTEM {
        return -FI_ENOSYS;
    }
    let (access, offset, key) = (attr.access, attr.offset, attr.requested_key);
    // SAFETY: the program's own call.
    unsafe { regv(domain, attr.mr_iov, attr.iov_count, access, offset, key, flags, mr, attr.context) }
}

fn register(
    domain: Arc<Domain>,
    addr: u64,
    len: usize,
    access: u64,
    context: *mut c_void,
) -> Result<Arc<Memory>, c_int> {
    let written = FI_RECV | FI_READ | FI_REMOTE_WRITE;
    let mut verbs = 0;
    if access & written != 0 {
        verbs |= IBV_ACCESS_LOCAL_WRITE;
    }
    if access & FI_REMOTE_READ != 0 {
        verbs |= IBV_ACCESS_REMOTE_READ;
    }
    if access & FI_REMOTE_WRITE != 0 {
        verbs |= IBV_ACCESS_REMOTE_WRITE;
    }
    if domain.settings.scheme.on_demand() {
        verbs |= IBV_ACCESS_ON_DEMAND as c_int;
    }
    // SAFETY: the program allows this access, and keeps the memory.
    let region = unsafe { domain.adapter.register(addr, len, verbs) }.map_err(|error| error.0)?;
    let (lkey, rkey) = (region.lkey(), region.rkey());
    let header =
        fid_mr { fid: objects::fid(FI_CLASS_MR, context, &FID), mem_desc: std::ptr::null_mut(), key: rkey.into() };
    let (readable, writable) = (access & FI_REMOTE_READ != 0, access & FI_REMOTE_WRITE != 0);
    if readable || writable {
        domain.keys.add(rkey, Registered { lkey, addr, len: len as u64, readable, writable });
    }
    Ok(Arc::new(Memory { header, domain, region }))
}

unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    guarded(|| {
        // SAFETY: the program's memory.
        let memory = unsafe { objects::close::<Memory>(fid) };
        memory.domain.keys.remove(memory.region.rkey());
        0
    })
}

/// Memory is bound to endpoints and counters only where the mode says so; ours does not.
unsafe extern "C" fn bind(_: *mut fid, other: *mut fid, _: u64) -> c_int {
    // SAFETY: the program's object.
    if unsafe { (*other).fclass } == FI_CLASS_EP { 0 } else { -FI_ENOSYS }
}

unsafe extern "C" fn control(_: *mut fid, command: c_int, _: *mut c_void) -> c_int {
    if command == FI_ENABLE { 0 } else { -FI_ENOSYS }
}
