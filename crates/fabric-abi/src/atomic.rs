//! Data types and operations of atomic and collective operations.

use std::ffi::{c_uint, c_void};

/// Type of the values of an atomic or collective operation.
pub type fi_datatype = c_uint;
/// Signed, 8 bits.
pub const FI_INT8: fi_datatype = 0;
/// Unsigned, 8 bits.
pub const FI_UINT8: fi_datatype = 1;
/// Signed, 16 bits.
pub const FI_INT16: fi_datatype = 2;
/// Unsigned, 16 bits.
pub const FI_UINT16: fi_datatype = 3;
/// Signed, 32 bits.
pub const FI_INT32: fi_datatype = 4;
/// Unsigned, 32 bits.
pub const FI_UINT32: fi_datatype = 5;
/// Signed, 64 bits.
pub const FI_INT64: fi_datatype = 6;
/// Unsigned, 64 bits.
pub const FI_UINT64: fi_datatype = 7;
/// `float`.
pub const FI_FLOAT: fi_datatype = 8;
/// `double`.
pub const FI_DOUBLE: fi_datatype = 9;
/// Two `float`.
pub const FI_FLOAT_COMPLEX: fi_datatype = 10;
/// Two `double`.
pub const FI_DOUBLE_COMPLEX: fi_datatype = 11;
/// `long double`.
pub const FI_LONG_DOUBLE: fi_datatype = 12;
/// Two `long double`.
pub const FI_LONG_DOUBLE_COMPLEX: fi_datatype = 13;
/// The number of types before the 128-bit integers.
pub const FI_DATATYPE_LAST: fi_datatype = 14;
/// Signed, 128 bits.
pub const FI_INT128: fi_datatype = 14;
/// Unsigned, 128 bits.
pub const FI_UINT128: fi_datatype = 15;
/// The first number of collective types and operations.
pub const FI_COLLECTIVE_OFFSET: c_uint = 256;
/// Bytes without a type, of collective operations.
pub const FI_VOID: fi_datatype = FI_COLLECTIVE_OFFSET;

/// What an atomic or collective operation computes.
pub type fi_op = c_uint;
/// Minimum.
pub const FI_MIN: fi_op = 0;
/// Maximum.
pub const FI_MAX: fi_op = 1;
/// Sum.
pub const FI_SUM: fi_op = 2;
/// Product.
pub const FI_PROD: fi_op = 3;
/// Logical OR.
pub const FI_LOR: fi_op = 4;
/// Logical AND.
pub const FI_LAND: fi_op = 5;
/// OR of the bits.
pub const FI_BOR: fi_op = 6;
/// AND of the bits.
pub const FI_BAND: fi_op = 7;
/// Logical exclusive OR.
pub const FI_LXOR: fi_op = 8;
/// Exclusive OR of the bits.
pub const FI_BXOR: fi_op = 9;
/// Read.
pub const FI_ATOMIC_READ: fi_op = 10;
/// Write.
pub const FI_ATOMIC_WRITE: fi_op = 11;
/// Swap if the compare value equals the target.
pub const FI_CSWAP: fi_op = 12;
/// Swap if the compare value differs from the target.
pub const FI_CSWAP_NE: fi_op = 13;
/// Swap if the compare value is at most the target.
pub const FI_CSWAP_LE: fi_op = 14;
/// Swap if the compare value is less than the target.
pub const FI_CSWAP_LT: fi_op = 15;
/// Swap if the compare value is at least the target.
pub const FI_CSWAP_GE: fi_op = 16;
/// Swap if the compare value is greater than the target.
pub const FI_CSWAP_GT: fi_op = 17;
/// Swap the bits that are set in the compare value.
pub const FI_MSWAP: fi_op = 18;
/// The number of atomic operations.
pub const FI_ATOMIC_OP_LAST: fi_op = 19;
/// No computation, of collective operations.
pub const FI_NOOP: fi_op = FI_COLLECTIVE_OFFSET;

/// A collective operation.
pub type fi_collective_op = c_uint;
/// All members wait for each other.
pub const FI_BARRIER: fi_collective_op = 0;
/// The root's data goes to all members.
pub const FI_BROADCAST: fi_collective_op = 1;
/// Each member's data is divided among all.
pub const FI_ALLTOALL: fi_collective_op = 2;
/// All members get the result of an [`fi_op`].
pub const FI_ALLREDUCE: fi_collective_op = 3;
/// All members get the data of all.
pub const FI_ALLGATHER: fi_collective_op = 4;
/// Each member gets its part of the result of an [`fi_op`].
pub const FI_REDUCE_SCATTER: fi_collective_op = 5;
/// The root gets the result of an [`fi_op`].
pub const FI_REDUCE: fi_collective_op = 6;
/// The root's data is divided among all members.
pub const FI_SCATTER: fi_collective_op = 7;
/// The root gets the data of all members.
pub const FI_GATHER: fi_collective_op = 8;

/// What `query_atomic` reports, and the valid-calls by parts.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct fi_atomic_attr {
    /// Values of one operation.
    pub count: usize,
    /// Bytes of a value.
    pub size: usize,
}

/// What `query_collective` takes and reports.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct fi_collective_attr {
    pub op: fi_op,
    pub datatype: fi_datatype,
    pub datatype_attr: fi_atomic_attr,
    pub max_members: usize,
    pub mode: u64,
}

/// Values in local memory.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct fi_ioc {
    pub addr: *mut c_void,
    /// Values, not bytes.
    pub count: usize,
}

/// Values in a peer's memory.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct fi_rma_ioc {
    pub addr: u64,
    /// Values, not bytes.
    pub count: usize,
    pub key: u64,
}
