//! The types of libfabric 1.17 that a provider implements or reads: `<rdma/fabric.h>`, its siblings and
//! `<rdma/providers/fi_prov.h>`. `tests/layout.rs` compares them with the headers.
//!
//! C enums are plain integers here: a program may pass values that have no name. The types by which providers share
//! objects with each other (`<rdma/fi_ext.h>`, except [`fi_fid_export`]) are not here.
//!
//! # Libfabric 2.x
//!
//! From 1.17 to 2.6 no member moved and no function changed its arguments. A provider of this ABI runs under a core of
//! 2.6 (which takes providers since 1.3) if it keeps to the following.
//!
//! These structures grew at their end:
//!
//! | structure | bytes in 1.17, 2.6 | new members |
//! | --- | --- | --- |
//! | [`fi_domain_attr`] | 192, 224 | `max_ep_auth_key` (1.20), `max_group_id` (2.0), `max_…cntr_value` (2.5) |
//! | [`fi_mr_attr`] | 80, 112 | `hmem_data` (1.19), `page_size` (1.22), `base_mr`, `sub_mr_cnt` (2.0) |
//! | [`fi_cq_err_entry`] | 80, 88 | `src_addr` (1.20) |
//! | [`fi_ops_av`] | 64, 88 | `insert_auth_key`, `lookup_auth_key`, `set_user_id` (1.20) |
//!
//! - [`fi_domain_attr`]: the core and the program read all of it in what `getinfo` returns, so the provider takes it
//!   from the core's `fi_dupinfo`. Version `FABRIC_1.3` of that symbol, the default of 1.17, copies the structure of
//!   this crate and sets the new members to 0; `fi_dupinfo(NULL)` of every version gives the whole structure, zeroed.
//!   The default version (`FABRIC_1.9` in 2.6), which `dlsym` finds, reads 224 bytes of its argument: use
//!   `dlvsym(…, "FABRIC_1.3")`.
//! - [`fi_mr_attr`]: with the flag `FI_MR_DMABUF` (bit 40, since 1.20) `mr_iov` points to one `fi_mr_dmabuf`, not to
//!   `iovec`s: refuse it. Refuse other unknown flags too, such as `FI_MR_SINGLE_USE` (bit 41, since 2.0).
//!   [`fi_mr_modify`] contains this structure.
//! - [`fi_cq_err_entry`]: `fi_cq_readerr` of new programs sets `src_addr` before the call; the provider writes the first
//!   80 bytes only. Entries of programs with an `api_version` before 1.5 end before `err_data_size`, those of new ones
//!   do not.
//! - [`fi_ops_av`] and all other tables: programs test `size` for members that came later, so it is the size of the
//!   table in this crate.
//!
//! These values changed their meaning:
//!
//! - Bits of capabilities: 45 is `FI_TAGGED_DIRECTED_RECV` and 46 `FI_TAGGED_MULTI_RECV` ([`FI_HMEM_HOST_ALLOC`] and
//!   [`FI_HMEM_DEVICE_ONLY`] remain, for registrations only), 48 is `FI_EXACT_DIRECTED_RECV` (was [`FI_VARIABLE_MSG`]).
//!   Flags 35 and 42 are new: `FI_RESCAN` of `fi_getinfo`, `FI_FIREWALL_ADDR`.
//! - Operation 19 is `FI_DIFF` (was [`FI_ATOMIC_OP_LAST`]); types 16 to 19 are new; both may come to `query_atomic`.
//! - `data_progress` has a second name, `progress`; 3 is `FI_PROGRESS_CONTROL_UNIFIED`, which hints may have.
//! - [`fi_cntr_attr`]'s `events` 1 counts bytes. Formats of addresses 16 and 17 are new: `FI_ADDR_UCX`,
//!   `FI_SOCKADDR_IP` (either of IPv4 and IPv6, in hints).
//! - [`fi_domain_attr`]: `auth_key_size` may be `FI_AV_AUTH_KEY`, all ones; then `auth_key` is null.
//! - Removed: [`FI_EP_SOCK_STREAM`], [`FI_EP_SOCK_DGRAM`], [`FI_PRIORITY`], [`FI_XPU_TRIGGER`], [`FI_BUFFERED_RECV`],
//!   [`FI_NOTIFY_FLAGS_ONLY`], [`FI_RESTRICTED_COMP`]. Deprecated: wait sets, poll sets, [`FI_WAIT_MUTEX_COND`],
//!   [`FI_MR_BASIC`], [`FI_MR_SCALABLE`], [`FI_LOCAL_MR`].
//!
//! The core skips a provider if its [`fi_provider::fi_version`] is before the version that the program asks for, so a
//! provider that says 1.17 does not serve a program that asks for 2.0.
#![forbid(unsafe_code)]
#![allow(non_camel_case_types, non_snake_case)] // The names are those of the C headers.

mod address;
mod atomic;
mod attr;
mod av;
mod cntr;
mod cq;
mod endpoint;
mod eq;
mod errno;
mod fabric;
mod flags;
mod message;
mod mr;
mod nic;
mod object;
mod options;
mod provider;
mod trigger;
mod version;
mod wait;

pub use address::*;
pub use atomic::*;
pub use attr::*;
pub use av::*;
pub use cntr::*;
pub use cq::*;
pub use endpoint::*;
pub use eq::*;
pub use errno::*;
pub use fabric::*;
pub use flags::*;
pub use message::*;
pub use mr::*;
pub use nic::*;
pub use object::*;
pub use options::*;
pub use provider::*;
pub use trigger::*;
pub use version::*;
pub use wait::*;
