//! Addresses of endpoints.

use std::ffi::c_int;

/// What an address vector gives for an inserted address: an index (`FI_AV_TABLE`) or a value of the provider's choice
/// (`FI_AV_MAP`).
pub type fi_addr_t = u64;

/// Any source, for receives.
pub const FI_ADDR_UNSPEC: fi_addr_t = u64::MAX;
/// No address: of a failed insertion, or an unknown source. The same value as [`FI_ADDR_UNSPEC`].
pub const FI_ADDR_NOTAVAIL: fi_addr_t = u64::MAX;
/// No key: a memory region's key that does not fit into 64 bits or is not known yet.
pub const FI_KEY_NOTAVAIL: u64 = u64::MAX;
/// As the number of contexts of an endpoint: it uses a shared context.
pub const FI_SHARED_CONTEXT: usize = usize::MAX;

/// `fi_info::addr_format`: any format, or one that only the provider has.
pub const FI_FORMAT_UNSPEC: u32 = 0;
/// `struct sockaddr` of any family.
pub const FI_SOCKADDR: u32 = 1;
/// `struct sockaddr_in`.
pub const FI_SOCKADDR_IN: u32 = 2;
/// `struct sockaddr_in6`.
pub const FI_SOCKADDR_IN6: u32 = 3;
/// `struct sockaddr_ib`.
pub const FI_SOCKADDR_IB: u32 = 4;
/// Of provider psm: 8 bytes.
pub const FI_ADDR_PSMX: u32 = 5;
/// Of provider gni.
pub const FI_ADDR_GNI: u32 = 6;
/// Of provider bgq.
pub const FI_ADDR_BGQ: u32 = 7;
/// Of provider mlx.
pub const FI_ADDR_MLX: u32 = 8;
/// Text that ends with NUL.
pub const FI_ADDR_STR: u32 = 9;
/// Of provider psm2: 16 bytes.
pub const FI_ADDR_PSMX2: u32 = 10;
/// Of UD endpoints of provider verbs: 32 bytes.
pub const FI_ADDR_IB_UD: u32 = 11;
/// Of provider efa.
pub const FI_ADDR_EFA: u32 = 12;
/// Of provider psm3: 32 bytes.
pub const FI_ADDR_PSMX3: u32 = 13;
/// Of provider opx.
pub const FI_ADDR_OPX: u32 = 14;
/// Of provider cxi.
pub const FI_ADDR_CXI: u32 = 15;

/// The address of one receive context of a scalable endpoint; `rx_ctx_bits` (1 to 63) is that of the address vector.
pub const fn fi_rx_addr(addr: fi_addr_t, rx_index: c_int, rx_ctx_bits: c_int) -> fi_addr_t {
    (rx_index as u64) << (64 - rx_ctx_bits) | addr
}
