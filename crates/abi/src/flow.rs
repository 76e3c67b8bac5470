//! Flow steering: rules, their counters, and receive work queues.

use super::{ibv_context, ibv_cq, ibv_pd, ibv_wq};
use std::ffi::{c_int, c_void};

pub const IBV_FLOW_ATTR_NORMAL: c_int = 0;
pub const IBV_FLOW_ATTR_ALL_DEFAULT: c_int = 1;
pub const IBV_FLOW_ATTR_MC_DEFAULT: c_int = 2;
pub const IBV_FLOW_ATTR_FLAGS_DONT_TRAP: u32 = 1 << 1;
pub const IBV_FLOW_SPEC_ETH: c_int = 0x20;
pub const IBV_FLOW_SPEC_IPV4: c_int = 0x30;
pub const IBV_FLOW_SPEC_IPV6: c_int = 0x31;
pub const IBV_FLOW_SPEC_IPV4_EXT: c_int = 0x32;
pub const IBV_FLOW_SPEC_TCP: c_int = 0x40;
pub const IBV_FLOW_SPEC_UDP: c_int = 0x41;
pub const IBV_FLOW_SPEC_VXLAN_TUNNEL: c_int = 0x50;
pub const IBV_FLOW_SPEC_ACTION_DROP: c_int = 0x1001;
pub const IBV_FLOW_SPEC_ACTION_COUNT: c_int = 0x1003;
pub const IBV_COUNTER_PACKETS: c_int = 0;
pub const IBV_COUNTER_BYTES: c_int = 1;
pub const IBV_WQT_RQ: c_int = 0;
pub const IBV_WQS_RESET: c_int = 0;
pub const IBV_WQS_RDY: c_int = 1;
pub const IBV_WQS_ERR: c_int = 2;
pub const IBV_WQ_ATTR_STATE: u32 = 1 << 0;
pub const IBV_WQ_ATTR_CURR_STATE: u32 = 1 << 1;
pub const IBV_RX_HASH_FUNC_TOEPLITZ: u8 = 1;

/// Specifications follow, each with [`ibv_flow_spec_head`] at its start.
#[repr(C)]
pub struct ibv_flow_attr {
    pub comp_mask: u32,
    pub r#type: c_int,
    pub size: u16,
    pub priority: u16,
    pub num_of_specs: u8,
    pub port: u8,
    pub flags: u32,
}

/// What all specifications begin with.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct ibv_flow_spec_head {
    pub r#type: c_int,
    pub size: u16,
}

/// Members in network byte order, here and below.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct ibv_flow_eth_filter {
    pub dst_mac: [u8; 6],
    pub src_mac: [u8; 6],
    pub ether_type: u16,
    pub vlan_tag: u16,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub struct ibv_flow_spec_eth {
    pub r#type: c_int,
    pub size: u16,
    pub val: ibv_flow_eth_filter,
    pub mask: ibv_flow_eth_filter,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub struct ibv_flow_ipv4_filter {
    pub src_ip: u32,
    pub dst_ip: u32,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub struct ibv_flow_spec_ipv4 {
    pub r#type: c_int,
    pub size: u16,
    pub val: ibv_flow_ipv4_filter,
    pub mask: ibv_flow_ipv4_filter,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub struct ibv_flow_ipv4_ext_filter {
    pub src_ip: u32,
    pub dst_ip: u32,
    pub proto: u8,
    pub tos: u8,
    pub ttl: u8,
    pub flags: u8,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub struct ibv_flow_spec_ipv4_ext {
    pub r#type: c_int,
    pub size: u16,
    pub val: ibv_flow_ipv4_ext_filter,
    pub mask: ibv_flow_ipv4_ext_filter,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub struct ibv_flow_ipv6_filter {
    pub src_ip: [u8; 16],
    pub dst_ip: [u8; 16],
    pub flow_label: u32,
    pub next_hdr: u8,
    pub traffic_class: u8,
    pub hop_limit: u8,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub struct ibv_flow_spec_ipv6 {
    pub r#type: c_int,
    pub size: u16,
    pub val: ibv_flow_ipv6_filter,
    pub mask: ibv_flow_ipv6_filter,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub struct ibv_flow_tcp_udp_filter {
    pub dst_port: u16,
    pub src_port: u16,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub struct ibv_flow_spec_tcp_udp {
    pub r#type: c_int,
    pub size: u16,
    pub val: ibv_flow_tcp_udp_filter,
    pub mask: ibv_flow_tcp_udp_filter,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub struct ibv_flow_tunnel_filter {
    pub tunnel_id: u32,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub struct ibv_flow_spec_tunnel {
    pub r#type: c_int,
    pub size: u16,
    pub val: ibv_flow_tunnel_filter,
    pub mask: ibv_flow_tunnel_filter,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub struct ibv_flow_spec_counter_action {
    pub r#type: c_int,
    pub size: u16,
    pub counters: *mut ibv_counters,
}

#[repr(C)]
pub struct ibv_flow {
    pub comp_mask: u32,
    pub context: *mut ibv_context,
    pub handle: u32,
}

#[repr(C)]
pub struct ibv_counters_init_attr {
    pub comp_mask: u32,
}

#[repr(C)]
pub struct ibv_counters {
    pub context: *mut ibv_context,
}

#[repr(C)]
pub struct ibv_counter_attach_attr {
    pub counter_desc: c_int,
    pub index: u32,
    pub comp_mask: u32,
}

#[repr(C)]
pub struct ibv_wq_init_attr {
    pub wq_context: *mut c_void,
    pub wq_type: c_int,
    pub max_wr: u32,
    pub max_sge: u32,
    pub pd: *mut ibv_pd,
    pub cq: *mut ibv_cq,
    pub comp_mask: u32,
    pub create_flags: u32,
}

#[repr(C)]
pub struct ibv_wq_attr {
    pub attr_mask: u32,
    pub wq_state: c_int,
    pub curr_wq_state: c_int,
    pub flags: u32,
    pub flags_mask: u32,
}

#[repr(C)]
pub struct ibv_rwq_ind_table_init_attr {
    pub log_ind_tbl_size: u32,
    pub ind_tbl: *mut *mut ibv_wq,
    pub comp_mask: u32,
}
