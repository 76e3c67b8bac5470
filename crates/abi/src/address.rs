//! Address handles and the routes in them.

use super::{ibv_context, ibv_gid, ibv_pd};

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct ibv_global_route {
    pub dgid: ibv_gid,
    pub flow_label: u32,
    pub sgid_index: u8,
    pub hop_limit: u8,
    pub traffic_class: u8,
}

/// The header in front of a received datagram. An IPv4 header is in its last 20 bytes.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ibv_grh {
    /// In network byte order.
    pub version_tclass_flow: u32,
    /// In network byte order.
    pub paylen: u16,
    pub next_hdr: u8,
    pub hop_limit: u8,
    pub sgid: ibv_gid,
    pub dgid: ibv_gid,
}

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct ibv_ah_attr {
    pub grh: ibv_global_route,
    pub dlid: u16,
    pub sl: u8,
    pub src_path_bits: u8,
    pub static_rate: u8,
    pub is_global: u8,
    pub port_num: u8,
}

#[repr(C)]
pub struct ibv_ah {
    pub context: *mut ibv_context,
    pub pd: *mut ibv_pd,
    pub handle: u32,
}
