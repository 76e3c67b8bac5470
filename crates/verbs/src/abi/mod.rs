//! The types of `<infiniband/verbs.h>` of rdma-core 44, byte for byte; `tests/layout.rs` holds them against the header.
//!
//! C enums are plain integers here: what an application passes in need not be one of the named values.
#![allow(non_camel_case_types, non_snake_case)] // The names are those of the C header.

mod address;
mod context;
mod cq;
mod device;
mod event;
mod kern;
mod memory;
mod qp;
mod srq;
mod wr;

pub use address::*;
pub use context::*;
pub use cq::*;
pub use device::*;
pub use event::*;
pub use kern::*;
pub use memory::*;
pub use qp::*;
pub use srq::*;
pub use wr::*;

/// A member of a table of functions that is always NULL: the header's inline functions answer EOPNOTSUPP for it.
pub type Unset = Option<unsafe extern "C" fn()>;

/// A type that only passes by.
#[repr(C)]
pub struct Opaque {
    _private: [u8; 0],
}
