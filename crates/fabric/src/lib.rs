//! libfabric's provider `weir-odp`: messages and remote memory access over plain verbs, with on-demand paging.
//!
//! libfabric loads the library from a directory of `FI_PROVIDER_PATH`, and calls [`fi_prov_ini`]. The protocol is in the
//! crate `weir-msg`; here are the C functions that programs call, and the adapter.
//!
//! | module | |
//! | --- | --- |
//! | `info` | what the provider offers (`fi_getinfo`) |
//! | `fabric`, `domain`, `address_vector`, `queue`, `counter`, `event_queue` | libfabric's objects |
//! | `endpoint` | endpoints: `calls` of the program, `engine`: the protocol with its adapter, `port`: what the protocol asks of it, `links`: connections |
//! | `settings` | the environment's variables |
//! | `rdma` | libibverbs and librdmacm |
#![allow(clippy::missing_safety_doc)] // The functions of tables are called by libfabric's headers only.

mod adapter_counters;
mod address_vector;
mod core;
mod counter;
mod domain;
mod endpoint;
mod event_queue;
mod fabric;
mod guard;
mod info;
mod loaded;
mod monitor;
mod objects;
mod progress;
mod provider;
mod queue;
pub mod rdma;
mod settings;
mod summary;
mod timer;
mod unsupported;
mod wake;

pub use provider::fi_prov_ini;

/// The provider's name, as in `FI_PROVIDER=weir-odp`.
pub const NAME: &std::ffi::CStr = c"weir-odp";
