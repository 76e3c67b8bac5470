//! What libfabric learns of the provider when it loads the library.

use crate::{NAME, core, fabric, info};
use std::cell::UnsafeCell;
use weir_fabric_abi::{FI_VERSION, fi_context, fi_provider};

struct Provider(UnsafeCell<fi_provider>);

// SAFETY: only the core writes to it, under its own lock, after `fi_prov_ini`.
unsafe impl Sync for Provider {}

static PROVIDER: Provider = Provider(UnsafeCell::new(fi_provider {
    version: FI_VERSION(0, 1),
    fi_version: FI_VERSION(1, 17),
    context: fi_context { internal: [std::ptr::null_mut(); 4] },
    name: NAME.as_ptr(),
    getinfo: Some(info::getinfo),
    fabric: Some(fabric::open),
    cleanup: Some(cleanup),
}));

/// Describes the provider.
///
/// # Safety
/// Called by libfabric's core, once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fi_prov_ini() -> *mut fi_provider {
    let provider = PROVIDER.0.get();
    core::logs_for(provider);
    // SAFETY: the core has no pointer to it yet.
    unsafe { (*provider).fi_version = core::version() };
    provider
}

/// Nothing is left: the library has no threads of its own.
unsafe extern "C" fn cleanup() {}
