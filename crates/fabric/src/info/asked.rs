//! What a program gives `fi_getinfo`.

use std::ffi::CStr;
use weir_fabric_abi::fi_info;

/// What a program asks for.
pub struct Asked<'a> {
    pub version: u32,
    pub node: Option<&'a CStr>,
    pub service: Option<&'a CStr>,
    pub flags: u64,
    pub hints: Option<&'a fi_info>,
}

/// An attribute of the hints.
pub fn hinted<'a, T>(asked: &Asked<'a>, attribute: impl Fn(&fi_info) -> *mut T) -> Option<&'a T> {
    // SAFETY: the program's hints have this attribute, or none.
    asked.hints.and_then(|hints| unsafe { attribute(hints).as_ref() })
}
