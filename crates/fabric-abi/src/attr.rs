//! Attributes of endpoints and their contexts, and values of the attributes of domains.

use std::ffi::c_uint;

/// Kind of endpoint.
pub type fi_ep_type = c_uint;
/// Any kind.
pub const FI_EP_UNSPEC: fi_ep_type = 0;
/// Connected, messages.
pub const FI_EP_MSG: fi_ep_type = 1;
/// Unconnected, unreliable datagrams.
pub const FI_EP_DGRAM: fi_ep_type = 2;
/// Unconnected, reliable messages.
pub const FI_EP_RDM: fi_ep_type = 3;
/// Connected, a stream of bytes.
pub const FI_EP_SOCK_STREAM: fi_ep_type = 4;
/// Datagrams with the behaviour of sockets.
pub const FI_EP_SOCK_DGRAM: fi_ep_type = 5;

/// Which objects several threads may use at a time without locks of their own.
pub type fi_threading = c_uint;
/// Any.
pub const FI_THREAD_UNSPEC: fi_threading = 0;
/// All objects.
pub const FI_THREAD_SAFE: fi_threading = 1;
/// Different objects.
pub const FI_THREAD_FID: fi_threading = 2;
/// Objects of different domains.
pub const FI_THREAD_DOMAIN: fi_threading = 3;
/// Objects that report to different completion queues and counters.
pub const FI_THREAD_COMPLETION: fi_threading = 4;
/// Different endpoints.
pub const FI_THREAD_ENDPOINT: fi_threading = 5;

/// Which threads move operations forward.
pub type fi_progress = c_uint;
/// Any.
pub const FI_PROGRESS_UNSPEC: fi_progress = 0;
/// The provider's.
pub const FI_PROGRESS_AUTO: fi_progress = 1;
/// The program's, in its calls.
pub const FI_PROGRESS_MANUAL: fi_progress = 2;

/// Whether the provider prevents that queues overflow.
pub type fi_resource_mgmt = c_uint;
/// Any.
pub const FI_RM_UNSPEC: fi_resource_mgmt = 0;
/// The program prevents it.
pub const FI_RM_DISABLED: fi_resource_mgmt = 1;
/// The provider prevents it.
pub const FI_RM_ENABLED: fi_resource_mgmt = 2;

/// `fi_ep_attr::protocol`: any.
pub const FI_PROTO_UNSPEC: u32 = 0;
/// RC of InfiniBand and RoCE, connected by the RDMA CM.
pub const FI_PROTO_RDMA_CM_IB_RC: u32 = 1;
/// iWARP.
pub const FI_PROTO_IWARP: u32 = 2;
/// UD of InfiniBand and RoCE.
pub const FI_PROTO_IB_UD: u32 = 3;
/// Of provider psm.
pub const FI_PROTO_PSMX: u32 = 4;
/// UDP.
pub const FI_PROTO_UDP: u32 = 5;
/// Of provider sockets, over TCP.
pub const FI_PROTO_SOCK_TCP: u32 = 6;
/// Of provider mxm, which no longer exists.
pub const FI_PROTO_MXM: u32 = 7;
/// Reliable datagrams over iWARP.
pub const FI_PROTO_IWARP_RDM: u32 = 8;
/// Reliable datagrams over InfiniBand.
pub const FI_PROTO_IB_RDM: u32 = 9;
/// Of provider gni.
pub const FI_PROTO_GNI: u32 = 10;
/// Of provider rxm: reliable datagrams over connected endpoints.
pub const FI_PROTO_RXM: u32 = 11;
/// Of provider rxd: reliable datagrams over datagrams.
pub const FI_PROTO_RXD: u32 = 12;
/// Of provider mlx.
pub const FI_PROTO_MLX: u32 = 13;
/// Of provider netdir.
pub const FI_PROTO_NETWORKDIRECT: u32 = 14;
/// Of provider psm2.
pub const FI_PROTO_PSMX2: u32 = 15;
/// Of provider shm.
pub const FI_PROTO_SHM: u32 = 16;
/// Of provider mrail: several rails.
pub const FI_PROTO_MRAIL: u32 = 17;
/// Of provider rstream: streams over messages.
pub const FI_PROTO_RSTREAM: u32 = 18;
/// XRC of InfiniBand, connected by the RDMA CM.
pub const FI_PROTO_RDMA_CM_IB_XRC: u32 = 19;
/// Of provider efa.
pub const FI_PROTO_EFA: u32 = 20;
/// Of provider psm3.
pub const FI_PROTO_PSMX3: u32 = 21;
/// Of provider rxm over tcp.
pub const FI_PROTO_RXM_TCP: u32 = 22;
/// Of provider opx.
pub const FI_PROTO_OPX: u32 = 23;
/// Of provider cxi.
pub const FI_PROTO_CXI: u32 = 24;
/// Reliable datagrams of provider tcp.
pub const FI_PROTO_XNET: u32 = 25;

/// `tclass`: the default class of traffic.
pub const FI_TC_UNSPEC: u32 = 0;
/// A bit: the low 8 bits are a DSCP.
pub const FI_TC_DSCP: u32 = 0x100;
/// A bit: the value is one of the following.
pub const FI_TC_LABEL: u32 = 0x200;
/// Best effort.
pub const FI_TC_BEST_EFFORT: u32 = 0x200;
/// Low latency.
pub const FI_TC_LOW_LATENCY: u32 = 0x201;
/// Reserved resources.
pub const FI_TC_DEDICATED_ACCESS: u32 = 0x202;
/// High bandwidth.
pub const FI_TC_BULK_DATA: u32 = 0x203;
/// May be delayed.
pub const FI_TC_SCAVENGER: u32 = 0x204;
/// Control of the network.
pub const FI_TC_NETWORK_CTRL: u32 = 0x205;

/// The class of traffic with this DSCP.
pub const fn fi_tc_dscp_set(dscp: u8) -> u32 {
    dscp as u32 | FI_TC_DSCP
}

/// The DSCP of a class of traffic, or 0 if it is not given as a DSCP.
pub const fn fi_tc_dscp_get(tclass: u32) -> u8 {
    if tclass & FI_TC_DSCP != 0 { tclass as u8 } else { 0 }
}

/// Attributes of the sending side.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct fi_tx_attr {
    pub caps: u64,
    pub mode: u64,
    /// Default flags of operations.
    pub op_flags: u64,
    pub msg_order: u64,
    pub comp_order: u64,
    /// Bytes that an inject takes at most.
    pub inject_size: usize,
    /// Operations in the queue.
    pub size: usize,
    /// Local buffers of an operation.
    pub iov_limit: usize,
    /// Remote buffers of an operation.
    pub rma_iov_limit: usize,
    /// Since version 1.9.
    pub tclass: u32,
}

/// Attributes of the receiving side.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct fi_rx_attr {
    pub caps: u64,
    pub mode: u64,
    /// Default flags of operations.
    pub op_flags: u64,
    pub msg_order: u64,
    pub comp_order: u64,
    /// Bytes of messages that the provider keeps before a receive is posted.
    pub total_buffered_recv: usize,
    /// Receives in the queue.
    pub size: usize,
    /// Buffers of a receive.
    pub iov_limit: usize,
}

/// Attributes of an endpoint.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct fi_ep_attr {
    pub r#type: fi_ep_type,
    /// One of `FI_PROTO_…`.
    pub protocol: u32,
    pub protocol_version: u32,
    /// Bytes.
    pub max_msg_size: usize,
    /// Bytes that `FI_MSG_PREFIX` leaves for the provider's header.
    pub msg_prefix_size: usize,
    /// Bytes for which READs after WRITEs are in order.
    pub max_order_raw_size: usize,
    /// Bytes for which WRITEs after READs are in order.
    pub max_order_war_size: usize,
    /// Bytes for which WRITEs after WRITEs are in order.
    pub max_order_waw_size: usize,
    /// Alternating runs of bits: the fields of tags.
    pub mem_tag_format: u64,
    /// Transmit contexts, or [`super::FI_SHARED_CONTEXT`].
    pub tx_ctx_cnt: usize,
    /// Receive contexts, or [`super::FI_SHARED_CONTEXT`].
    pub rx_ctx_cnt: usize,
    pub auth_key_size: usize,
    pub auth_key: *mut u8,
}
