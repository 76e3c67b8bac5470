//! Options of endpoints (`fi_getopt`, `fi_setopt`).

use crate::endpoint::object::{EndpointObject, State};
use crate::guard::guarded;
use crate::info::effective_scheme;
use crate::objects;
use std::ffi::{c_int, c_void};
use weir_fabric_abi::*;
use weir_msg::Scheme;

/// The provider's own option: the name of a scheme as in `WEIR_ODP_SCHEME`, a string with or without a NUL at its end. It can
/// be set until the endpoint is enabled.
const WEIR_ODP_OPT_SCHEME: c_int = c_int::MIN | 1;

pub unsafe extern "C" fn getopt(
    fid: *mut fid,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut usize,
) -> c_int {
    guarded(|| {
        // SAFETY: the program's open endpoint.
        let endpoint = unsafe { objects::borrow::<EndpointObject>(fid.cast()) };
        let Ok(state) = endpoint.state.lock() else { return -FI_EOTHER };
        let bytes = match (level, name) {
            (FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV) => (state.min_multi_recv as usize).to_ne_bytes().to_vec(),
            (FI_OPT_ENDPOINT, WEIR_ODP_OPT_SCHEME) => [state.scheme.name().as_bytes(), &[0]].concat(),
            _ => return -FI_ENOPROTOOPT,
        };
        // SAFETY: the program's place for the value, and its length.
        if unsafe { objects::write_bytes(&bytes, value, len) } { 0 } else { -FI_ETOOSMALL }
    })
}

pub unsafe extern "C" fn setopt(fid: *mut fid, level: c_int, name: c_int, value: *const c_void, len: usize) -> c_int {
    guarded(|| {
        // SAFETY: the program's open endpoint.
        let endpoint = unsafe { objects::borrow::<EndpointObject>(fid.cast()) };
        let Ok(mut state) = endpoint.state.lock() else { return -FI_EOTHER };
        if level != FI_OPT_ENDPOINT || !matches!(name, FI_OPT_MIN_MULTI_RECV | WEIR_ODP_OPT_SCHEME) {
            return -FI_ENOPROTOOPT;
        }
        if value.is_null() {
            return -FI_EINVAL;
        }
        // SAFETY: the program's value of that length.
        let bytes = unsafe { std::slice::from_raw_parts(value.cast::<u8>(), len) };
        if name == WEIR_ODP_OPT_SCHEME {
            return set_scheme(endpoint, &mut state, bytes);
        }
        let Ok(bytes) = bytes.try_into() else { return -FI_EINVAL };
        state.min_multi_recv = usize::from_ne_bytes(bytes) as u64;
        0
    })
}

fn set_scheme(endpoint: &EndpointObject, state: &mut State, name: &[u8]) -> c_int {
    if state.engine.is_some() {
        return -FI_EOPBADSTATE;
    }
    let name = name.strip_suffix(&[0]).unwrap_or(name);
    let parsed = String::from_utf8_lossy(name).parse::<Scheme>();
    let scheme = match parsed {
        Ok(scheme) => scheme,
        Err(error) => {
            crate::core::warn(FI_LOG_EP_CTRL, &format!("WEIR_ODP_OPT_SCHEME: {error}"));
            return -FI_EINVAL;
        }
    };
    if effective_scheme(scheme, &endpoint.domain.adapter.attributes().odp) != scheme {
        crate::core::warn(FI_LOG_EP_CTRL, "WEIR_ODP_OPT_SCHEME: the adapter has no on-demand paging for RC");
        return -FI_EOPNOTSUPP;
    }
    state.scheme = scheme;
    0
}
