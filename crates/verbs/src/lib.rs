//! libibverbs.so.1: the C ABI of verbs, served by weir-device.
//!
//! [`abi`] is the crate `weir-abi`, which has the types of `<infiniband/verbs.h>`. The other modules have the exported
//! functions, one file per subject, and the functions that the header's inline calls reach through an `ibv_context`.
//! `link.sh` links the shared library, with the version nodes that programs require (`libibverbs.map`).
//!
//! Loading the library looks up the interposed functions' next definitions (`hooks`) and installs the fork handlers.
//! The first `ibv_get_device_list` or `ibv_open_device` starts the log, if `WEIR_LOG` is set. `ibv_open_device` opens
//! the adapter.

mod advise;
mod ah;
mod attr;
mod batch;
mod buf;
mod builder;
mod buried;
mod context;
mod counters;
mod cq;
mod cq_ex;
mod device;
mod dm;
mod domain;
mod ece;
mod events;
mod exports;
mod ffi;
mod files;
mod flow;
mod fork;
mod gate;
mod hooks;
mod import;
mod kern;
mod living;
mod log;
mod multicast;
mod mw;
mod netlink;
mod open;
mod pd;
mod pd_mr;
mod poll;
mod post;
mod qp;
mod qp_create;
mod query;
mod rate;
mod refused_post;
mod registry;
mod rereg;
mod reserve;
mod resolve;
mod shortage;
mod srq;
mod srq_ops;
mod strings;
mod sysfs;
mod tables;
mod unsupported;
mod wq;
mod xrc;

pub use weir_abi as abi;

#[global_allocator]
static ALLOCATOR: reserve::Allocator = reserve::Allocator::new();
