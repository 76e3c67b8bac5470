//! The types of `<infiniband/verbs.h>` of rdma-core 44, byte for byte, with members that later releases added;
//! `verbs/tests/layout.rs` compares them with the headers of releases.
//!
//! C enums are plain integers here: an application may pass values that have no name.
#![allow(non_camel_case_types, non_snake_case)] // The names are those of the C header.

mod address;
mod context;
mod cq;
mod device;
mod event;
mod flow;
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
pub use flow::*;
pub use kern::*;
pub use memory::*;
pub use qp::*;
pub use srq::*;
pub use wr::*;

/// A member of a function table that is always NULL: the header's inline functions return EOPNOTSUPP for it.
pub type Unset = Option<unsafe extern "C" fn()>;

/// A type that is used by pointer only.
#[repr(C)]
pub struct Opaque {
    _private: [u8; 0],
}
