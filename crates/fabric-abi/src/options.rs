//! Options of endpoints (`getopt`, `setopt`).

use std::ffi::c_int;

/// Level of the options of endpoints.
pub const FI_OPT_ENDPOINT: c_int = 0;
/// Bytes that remain at least in a buffer for several messages (`usize`).
pub const FI_OPT_MIN_MULTI_RECV: c_int = 0;
/// Bytes of private data of a connection request (`usize`).
pub const FI_OPT_CM_DATA_SIZE: c_int = 1;
/// Least size of a message that the provider buffers (`usize`).
pub const FI_OPT_BUFFERED_MIN: c_int = 2;
/// Bytes that the provider buffers (`usize`).
pub const FI_OPT_BUFFERED_LIMIT: c_int = 3;
/// Bytes of the send buffer (`usize`).
pub const FI_OPT_SEND_BUF_SIZE: c_int = 4;
/// Bytes of the receive buffer (`usize`).
pub const FI_OPT_RECV_BUF_SIZE: c_int = 5;
/// Entries of the transmit queue (`usize`).
pub const FI_OPT_TX_SIZE: c_int = 6;
/// Entries of the receive queue (`usize`).
pub const FI_OPT_RX_SIZE: c_int = 7;
/// Whether devices access each other's memory (`int`, one of `FI_HMEM_P2P_…`).
pub const FI_OPT_FI_HMEM_P2P: c_int = 8;
/// How an accelerator starts an operation (`fi_trigger_xpu`).
pub const FI_OPT_XPU_TRIGGER: c_int = 9;

/// The provider's choice.
pub const FI_HMEM_P2P_ENABLED: c_int = 0;
/// Always.
pub const FI_HMEM_P2P_REQUIRED: c_int = 1;
/// Wherever it is possible.
pub const FI_HMEM_P2P_PREFERRED: c_int = 2;
/// Never.
pub const FI_HMEM_P2P_DISABLED: c_int = 3;
