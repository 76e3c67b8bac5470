//! Operations that a counter or an accelerator starts.

use super::{
    fi_context2, fi_datatype, fi_hmem_iface, fi_msg, fi_msg_atomic, fi_msg_compare, fi_msg_fetch, fi_msg_rma,
    fi_msg_tagged, fid_cntr, fid_ep,
};
use std::ffi::{c_int, c_uint, c_void};

/// What starts an operation.
pub type fi_trigger_event = c_uint;
/// A counter reaches a threshold.
pub const FI_TRIGGER_THRESHOLD: fi_trigger_event = 0;
/// An accelerator writes to the addresses that the provider gives.
pub const FI_TRIGGER_XPU: fi_trigger_event = 1;

/// Kind of operation of [`fi_deferred_work`].
pub type fi_op_type = c_uint;
/// Receive.
pub const FI_OP_RECV: fi_op_type = 0;
/// Send.
pub const FI_OP_SEND: fi_op_type = 1;
/// Tagged receive.
pub const FI_OP_TRECV: fi_op_type = 2;
/// Tagged send.
pub const FI_OP_TSEND: fi_op_type = 3;
/// READ.
pub const FI_OP_READ: fi_op_type = 4;
/// WRITE.
pub const FI_OP_WRITE: fi_op_type = 5;
/// Atomic operation.
pub const FI_OP_ATOMIC: fi_op_type = 6;
/// Atomic operation that fetches.
pub const FI_OP_FETCH_ATOMIC: fi_op_type = 7;
/// Atomic operation that compares.
pub const FI_OP_COMPARE_ATOMIC: fi_op_type = 8;
/// Sets a counter.
pub const FI_OP_CNTR_SET: fi_op_type = 9;
/// Adds to a counter.
pub const FI_OP_CNTR_ADD: fi_op_type = 10;

/// A counter and the value at which the operation starts.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct fi_trigger_threshold {
    pub cntr: *mut fid_cntr,
    pub threshold: usize,
}

/// What an accelerator writes; in the header an unnamed union.
#[derive(Clone, Copy)]
#[repr(C)]
pub union fi_trigger_var_value {
    pub val8: u8,
    pub val16: u16,
    pub val32: u32,
    pub val64: u64,
    pub data: *mut u8,
}

/// A write of an accelerator that starts an operation.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct fi_trigger_var {
    pub datatype: fi_datatype,
    pub count: c_int,
    pub addr: *mut c_void,
    pub value: fi_trigger_var_value,
}

/// An accelerator; in the header an unnamed union.
#[derive(Clone, Copy)]
#[repr(C)]
pub union fi_trigger_xpu_device {
    pub reserved: u64,
    pub cuda: c_int,
    pub ze: c_int,
}

/// The writes of an accelerator that start an operation.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct fi_trigger_xpu {
    pub count: c_int,
    pub iface: fi_hmem_iface,
    pub device: fi_trigger_xpu_device,
    pub var: *mut fi_trigger_var,
}

/// What starts an operation; in the header an unnamed union.
#[derive(Clone, Copy)]
#[repr(C)]
pub union fi_triggered_context_trigger {
    pub threshold: fi_trigger_threshold,
    pub xpu: fi_trigger_xpu,
    pub internal: [*mut c_void; 3],
}

/// The context of an operation with `FI_TRIGGER`, under `FI_CONTEXT`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct fi_triggered_context {
    pub event_type: fi_trigger_event,
    pub trigger: fi_triggered_context_trigger,
}

/// What starts an operation; in the header an unnamed union.
#[derive(Clone, Copy)]
#[repr(C)]
pub union fi_triggered_context2_trigger {
    pub threshold: fi_trigger_threshold,
    pub xpu: fi_trigger_xpu,
    pub internal: [*mut c_void; 7],
}

/// The context of an operation with `FI_TRIGGER`, under `FI_CONTEXT2`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct fi_triggered_context2 {
    pub event_type: fi_trigger_event,
    pub trigger: fi_triggered_context2_trigger,
}

/// A message that starts later.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct fi_op_msg {
    pub ep: *mut fid_ep,
    pub msg: fi_msg,
    pub flags: u64,
}

/// A tagged message that starts later.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct fi_op_tagged {
    pub ep: *mut fid_ep,
    pub msg: fi_msg_tagged,
    pub flags: u64,
}

/// A READ or WRITE that starts later.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct fi_op_rma {
    pub ep: *mut fid_ep,
    pub msg: fi_msg_rma,
    pub flags: u64,
}

/// An atomic operation that starts later.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct fi_op_atomic {
    pub ep: *mut fid_ep,
    pub msg: fi_msg_atomic,
    pub flags: u64,
}

/// An atomic operation that fetches and starts later.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct fi_op_fetch_atomic {
    pub ep: *mut fid_ep,
    pub msg: fi_msg_atomic,
    pub fetch: fi_msg_fetch,
    pub flags: u64,
}

/// An atomic operation that compares and starts later.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct fi_op_compare_atomic {
    pub ep: *mut fid_ep,
    pub msg: fi_msg_atomic,
    pub fetch: fi_msg_fetch,
    pub compare: fi_msg_compare,
    pub flags: u64,
}

/// A change of a counter that happens later.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct fi_op_cntr {
    pub cntr: *mut fid_cntr,
    pub value: u64,
}

/// The operation, by [`fi_deferred_work::op_type`]; in the header an unnamed union.
#[derive(Clone, Copy)]
#[repr(C)]
pub union fi_deferred_work_op {
    pub msg: *mut fi_op_msg,
    pub tagged: *mut fi_op_tagged,
    pub rma: *mut fi_op_rma,
    pub atomic: *mut fi_op_atomic,
    pub fetch_atomic: *mut fi_op_fetch_atomic,
    pub compare_atomic: *mut fi_op_compare_atomic,
    pub cntr: *mut fi_op_cntr,
}

/// Argument of `FI_QUEUE_WORK` and `FI_CANCEL_WORK`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct fi_deferred_work {
    pub context: fi_context2,
    pub threshold: u64,
    pub triggering_cntr: *mut fid_cntr,
    /// May be null.
    pub completion_cntr: *mut fid_cntr,
    pub op_type: fi_op_type,
    pub op: fi_deferred_work_op,
}
