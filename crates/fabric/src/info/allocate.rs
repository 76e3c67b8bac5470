//! Memory of an `fi_info`, which the core frees with free(3).
//!
//! Later versions of libfabric have longer structures, and copy them as long as they are. So each has room behind it, filled with
//! zeros.

use std::ffi::{CStr, c_char, c_void};
use weir_fabric_abi::{fi_domain_attr, fi_ep_attr, fi_fabric_attr, fi_info, fi_rx_attr, fi_tx_attr};

/// No structure of an `fi_info` is longer, in any version; 2.6 has 232 bytes.
const LONGEST: usize = 512;

/// An `fi_info` with all its attributes, filled with zeros.
pub fn info() -> *mut fi_info {
    let info: *mut fi_info = zeroed();
    // SAFETY: new memory, which is longer than the structure.
    unsafe {
        (*info).tx_attr = zeroed::<fi_tx_attr>();
        (*info).rx_attr = zeroed::<fi_rx_attr>();
        (*info).ep_attr = zeroed::<fi_ep_attr>();
        (*info).domain_attr = zeroed::<fi_domain_attr>();
        (*info).fabric_attr = zeroed::<fi_fabric_attr>();
    }
    info
}

/// A copy of a string.
pub fn string(text: &CStr) -> *mut c_char {
    bytes(text.to_bytes_with_nul()).cast()
}

/// A copy of bytes.
pub fn bytes(bytes: &[u8]) -> *mut c_void {
    // SAFETY: the new memory is as long as the bytes.
    unsafe {
        let copy = libc::malloc(bytes.len().max(1));
        assert!(!copy.is_null(), "out of memory");
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), copy.cast(), bytes.len());
        copy
    }
}

fn zeroed<T>() -> *mut T {
    const { assert!(size_of::<T>() <= LONGEST) };
    // SAFETY: allocates.
    let memory = unsafe { libc::calloc(1, LONGEST) };
    assert!(!memory.is_null(), "out of memory");
    memory.cast()
}
