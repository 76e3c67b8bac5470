//! Opening domains, and what can be opened in them.

use crate::domain::keys::Keys;
use crate::domain::limits::atomic_limits;
use crate::domain::memory;
use crate::domain::object::Domain;
use crate::guard::guarded;
use crate::info::{effective_scheme, source_of};
use crate::objects::{self, table};
use crate::rdma::Adapter;
use crate::unsupported::{no3, no4};
use crate::{address_vector, counter, endpoint, queue, settings};
use std::ffi::{c_int, c_void};
use std::sync::Arc;
use weir_fabric_abi::*;
use weir_msg::AtomicKind;

/// Opens a domain. -FI_ENODEV: no device has the source address of `info`.
pub unsafe extern "C" fn open(
    fabric: *mut fid_fabric,
    info: *mut fi_info,
    domain: *mut *mut fid_domain,
    context: *mut c_void,
) -> c_int {
    guarded(|| {
        // SAFETY: the program's objects.
        let (api_version, info) = unsafe { ((*fabric).api_version, &*info) };
        let Ok(environment) = settings::get() else { return -FI_EINVAL };
        let adapter = match source_of(info).and_then(|source| Adapter::open(source).map_err(|error| error.0)) {
            Ok(adapter) => adapter,
            Err(error) => return -error,
        };
        let mut settings = environment.protocol;
        let scheme = effective_scheme(settings.scheme, &adapter.attributes().odp);
        if scheme != settings.scheme {
            let device = &adapter.attributes().device;
            let text =
                format!("{device} has no on-demand paging for RC: scheme {scheme} instead of {}", settings.scheme);
            crate::core::warn(FI_LOG_DOMAIN, &text);
            settings.scheme = scheme;
        }
        let header =
            fid_domain { fid: objects::fid(FI_CLASS_DOMAIN, context, &FID), ops: table(&OPS), mr: table(&memory::OPS) };
        let keys = Arc::new(Keys::default());
        let new = Domain { header, adapter, settings, api_version, keys };
        // SAFETY: the program's place for the result.
        unsafe { *domain = objects::into_raw(Arc::new(new)) };
        0
    })
}

static FID: fi_ops = objects::calls(objects::closed::<Domain>, bind, no3);

static OPS: fi_ops_domain = fi_ops_domain {
    size: size_of::<fi_ops_domain>(),
    av_open: Some(address_vector::open),
    cq_open: Some(queue::open),
    endpoint: Some(endpoint::open),
    scalable_ep: Some(no4),
    cntr_open: Some(counter::open),
    poll_open: Some(no3),
    stx_ctx: Some(no4),
    srx_ctx: Some(no4),
    query_atomic: Some(query_atomic),
    query_collective: Some(no4),
    endpoint2: Some(endpoint2),
};

/// Event queues can be bound, and get nothing.
unsafe extern "C" fn bind(_: *mut fid, other: *mut fid, _: u64) -> c_int {
    // SAFETY: the program's object.
    if unsafe { (*other).fclass } == FI_CLASS_EQ { 0 } else { -FI_EINVAL }
}

unsafe extern "C" fn endpoint2(
    domain: *mut fid_domain,
    info: *mut fi_info,
    ep: *mut *mut fid_ep,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    if flags != 0 {
        return -FI_EBADFLAGS;
    }
    // SAFETY: the program's own call.
    unsafe { endpoint::open(domain, info, ep, context) }
}

unsafe extern "C" fn query_atomic(
    domain: *mut fid_domain,
    datatype: fi_datatype,
    op: fi_op,
    attr: *mut fi_atomic_attr,
    flags: u64,
) -> c_int {
    guarded(|| {
        let kind = match flags {
            0 => AtomicKind::Plain,
            FI_FETCH_ATOMIC => AtomicKind::Fetch,
            FI_COMPARE_ATOMIC => AtomicKind::Compare,
            _ => return -FI_EBADFLAGS,
        };
        // SAFETY: the program's domain.
        let settings = unsafe { &objects::borrow::<Domain>(domain).settings };
        match atomic_limits(settings, kind, datatype, op) {
            Some(limits) => {
                // SAFETY: the program's place for the result.
                unsafe { *attr = limits };
                0
            }
            None => -FI_EOPNOTSUPP,
        }
    })
}
