//! A domain as an object.

use crate::domain::keys::Keys;
use crate::objects::Object;
use crate::rdma::Adapter;
use std::sync::Arc;
use weir_fabric_abi::{FI_CLASS_DOMAIN, fid_domain};
use weir_msg::Settings;

/// A domain.
#[repr(C)]
pub struct Domain {
    pub header: fid_domain,
    pub adapter: Arc<Adapter>,
    pub settings: Settings,
    /// The version of the interface that the program asked for.
    pub api_version: u32,
    pub keys: Arc<Keys>,
}

// SAFETY: the header is the first member.
unsafe impl Object for Domain {
    type Header = fid_domain;
    const CLASS: usize = FI_CLASS_DOMAIN;
}
// SAFETY: the header's pointers lead to static tables.
unsafe impl Send for Domain {}
// SAFETY: as above; the rest is shared between threads by itself.
unsafe impl Sync for Domain {}
