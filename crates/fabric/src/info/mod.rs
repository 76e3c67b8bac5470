//! `fi_getinfo`: what the provider offers, as far as it fits what the program asks for.

mod address;
mod allocate;
mod asked;
mod check;
mod offer;

pub use address::{name_of, parse_name, source_of};
pub use offer::{IOV_LIMIT, MAX_MESSAGE, QUEUE, effective_scheme};

use crate::core::{log, warn};
use crate::guard::guarded;
use crate::settings;
use address::Route;
use asked::Asked;
use std::ffi::{CStr, c_char, c_int};
use weir_fabric_abi::*;

/// Lists what the provider offers. -FI_ENODATA: nothing fits.
pub unsafe extern "C" fn getinfo(
    version: u32,
    node: *const c_char,
    service: *const c_char,
    flags: u64,
    hints: *const fi_info,
    info: *mut *mut fi_info,
) -> c_int {
    guarded(|| {
        // SAFETY: strings of the program, or none.
        let text = |pointer: *const c_char| (!pointer.is_null()).then(|| unsafe { CStr::from_ptr(pointer) });
        let (node, service) = (text(node), text(service));
        // SAFETY: the program's hints, or none.
        let hints = unsafe { hints.as_ref() };
        let asked = Asked { version, node, service, flags, hints };
        match offers(&asked) {
            Ok(list) if !list.is_null() => {
                // SAFETY: the core's place for the result.
                unsafe { *info = list };
                0
            }
            Ok(_) => -FI_ENODATA,
            Err(error) => -error,
        }
    })
}

fn offers(asked: &Asked<'_>) -> Result<*mut fi_info, c_int> {
    let settings = match settings::get() {
        Ok(settings) => settings,
        Err(wrong) => {
            eprintln!("weir-odp: {wrong}");
            return Err(FI_EINVAL);
        }
    };
    if let Err(why) = check::check(asked, &settings.protocol) {
        log(FI_LOG_INFO, FI_LOG_FABRIC, &format!("does not fit: {why}"));
        return Err(FI_ENODATA);
    }
    let interfaces = address::interfaces().map_err(|error| {
        warn(FI_LOG_FABRIC, &error);
        FI_ENODATA
    })?;
    let routes = address::routes(asked, &interfaces)?;
    let mut list = std::ptr::null_mut();
    // Programs can ask for a device or a network by name.
    for Route { interface, source, destination } in
        routes.into_iter().rev().filter(|route| check::names(asked, &route.interface))
    {
        list = offer::offer(asked, &settings.protocol, &interface, source, destination, list);
    }
    Ok(list)
}
