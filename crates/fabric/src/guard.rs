//! Calls from C: no panic leaves them.

use std::panic::{AssertUnwindSafe, catch_unwind};
use weir_fabric_abi::FI_EOTHER;

/// What a call returns after a panic.
pub trait Failed {
    const FAILED: Self;
}

impl Failed for i32 {
    const FAILED: i32 = -FI_EOTHER;
}

impl Failed for isize {
    const FAILED: isize = -FI_EOTHER as isize;
}

/// Runs a call. A panic is reported by Rust's hook, and becomes an error of the call.
#[inline]
pub fn guarded<R: Failed>(call: impl FnOnce() -> R) -> R {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or(R::FAILED)
}
