//! What a provider gives the core, its parameters, and the core's log.

use super::{fi_context, fi_fabric_attr, fi_info, fid_fabric};
use std::ffi::{c_char, c_int, c_uint, c_void};

/// A provider. The core finds it through `fi_prov_ini`, a function of each file in its directory of providers.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct fi_provider {
    /// The provider's own version, in the form of `FI_VERSION`.
    pub version: u32,
    /// The newest version of the interface that the provider implements.
    pub fi_version: u32,
    /// The core's.
    pub context: fi_context,
    pub name: *const c_char,
    /// Version that the program asks for, node, service, flags, hints (may be null), where the list goes.
    pub getinfo: Option<
        unsafe extern "C" fn(u32, *const c_char, *const c_char, u64, *const fi_info, *mut *mut fi_info) -> c_int,
    >,
    pub fabric: Option<unsafe extern "C" fn(*mut fi_fabric_attr, *mut *mut fid_fabric, *mut c_void) -> c_int>,
    pub cleanup: Option<unsafe extern "C" fn()>,
}

/// The end of the name of a provider's file, before `.so`.
pub const FI_LIB_EXTENSION: &str = "fi";
/// The end of the name of a provider's file.
pub const FI_LIB_SUFFIX: &str = "fi.so";

/// Type of a parameter.
pub type fi_param_type = c_uint;
/// Text.
pub const FI_PARAM_STRING: fi_param_type = 0;
/// `int`.
pub const FI_PARAM_INT: fi_param_type = 1;
/// `int`, 0 or 1.
pub const FI_PARAM_BOOL: fi_param_type = 2;
/// `size_t`.
pub const FI_PARAM_SIZE_T: fi_param_type = 3;

/// A parameter, as `fi_getparams` lists it.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct fi_param {
    pub name: *const c_char,
    pub r#type: fi_param_type,
    pub help_string: *const c_char,
    pub value: *const c_char,
}

/// Level of a line of the log.
pub type fi_log_level = c_uint;
/// A warning.
pub const FI_LOG_WARN: fi_log_level = 0;
/// A step of a trace.
pub const FI_LOG_TRACE: fi_log_level = 1;
/// Information.
pub const FI_LOG_INFO: fi_log_level = 2;
/// For debugging.
pub const FI_LOG_DEBUG: fi_log_level = 3;
/// The number of levels.
pub const FI_LOG_MAX: fi_log_level = 4;

/// Subject of a line of the log.
pub type fi_log_subsys = c_uint;
/// Everything else.
pub const FI_LOG_CORE: fi_log_subsys = 0;
/// Fabrics.
pub const FI_LOG_FABRIC: fi_log_subsys = 1;
/// Domains.
pub const FI_LOG_DOMAIN: fi_log_subsys = 2;
/// Control of endpoints.
pub const FI_LOG_EP_CTRL: fi_log_subsys = 3;
/// Operations of endpoints.
pub const FI_LOG_EP_DATA: fi_log_subsys = 4;
/// Address vectors.
pub const FI_LOG_AV: fi_log_subsys = 5;
/// Completion queues.
pub const FI_LOG_CQ: fi_log_subsys = 6;
/// Event queues.
pub const FI_LOG_EQ: fi_log_subsys = 7;
/// Memory regions.
pub const FI_LOG_MR: fi_log_subsys = 8;
/// Counters.
pub const FI_LOG_CNTR: fi_log_subsys = 9;
/// The number of subjects.
pub const FI_LOG_SUBSYS_MAX: fi_log_subsys = 10;

/// What `fi_tostr` prints.
pub type fi_type = c_uint;
/// `fi_info`.
pub const FI_TYPE_INFO: fi_type = 0;
/// `fi_ep_type`.
pub const FI_TYPE_EP_TYPE: fi_type = 1;
/// Capabilities.
pub const FI_TYPE_CAPS: fi_type = 2;
/// Flags of operations.
pub const FI_TYPE_OP_FLAGS: fi_type = 3;
/// Format of addresses.
pub const FI_TYPE_ADDR_FORMAT: fi_type = 4;
/// `fi_tx_attr`.
pub const FI_TYPE_TX_ATTR: fi_type = 5;
/// `fi_rx_attr`.
pub const FI_TYPE_RX_ATTR: fi_type = 6;
/// `fi_ep_attr`.
pub const FI_TYPE_EP_ATTR: fi_type = 7;
/// `fi_domain_attr`.
pub const FI_TYPE_DOMAIN_ATTR: fi_type = 8;
/// `fi_fabric_attr`.
pub const FI_TYPE_FABRIC_ATTR: fi_type = 9;
/// `fi_threading`.
pub const FI_TYPE_THREADING: fi_type = 10;
/// `fi_progress`.
pub const FI_TYPE_PROGRESS: fi_type = 11;
/// `FI_PROTO_…`.
pub const FI_TYPE_PROTOCOL: fi_type = 12;
/// `FI_ORDER_…`.
pub const FI_TYPE_MSG_ORDER: fi_type = 13;
/// Mode bits.
pub const FI_TYPE_MODE: fi_type = 14;
/// `fi_av_type`.
pub const FI_TYPE_AV_TYPE: fi_type = 15;
/// `fi_datatype`.
pub const FI_TYPE_ATOMIC_TYPE: fi_type = 16;
/// `fi_op`.
pub const FI_TYPE_ATOMIC_OP: fi_type = 17;
/// The version of the library.
pub const FI_TYPE_VERSION: fi_type = 18;
/// An event of an event queue.
pub const FI_TYPE_EQ_EVENT: fi_type = 19;
/// Flags of a completion.
pub const FI_TYPE_CQ_EVENT_FLAGS: fi_type = 20;
/// `FI_MR_…`.
pub const FI_TYPE_MR_MODE: fi_type = 21;
/// `fi_op_type`.
pub const FI_TYPE_OP_TYPE: fi_type = 22;
/// An object, by its `tostr`.
pub const FI_TYPE_FID: fi_type = 23;
/// `fi_collective_op`.
pub const FI_TYPE_COLLECTIVE_OP: fi_type = 24;
/// `fi_hmem_iface`.
pub const FI_TYPE_HMEM_IFACE: fi_type = 25;
/// `fi_cq_format`.
pub const FI_TYPE_CQ_FORMAT: fi_type = 26;
/// `fi_log_level`.
pub const FI_TYPE_LOG_LEVEL: fi_type = 27;
/// `fi_log_subsys`.
pub const FI_TYPE_LOG_SUBSYS: fi_type = 28;
