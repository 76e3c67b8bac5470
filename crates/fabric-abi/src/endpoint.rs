//! Endpoints and their tables of calls.

use super::{
    fi_addr_t, fi_datatype, fi_ioc, fi_msg, fi_msg_atomic, fi_msg_collective, fi_msg_rma, fi_msg_tagged, fi_op,
    fi_rx_attr, fi_tx_attr, fid, fid_t,
};
use libc::iovec;
use std::ffi::{c_int, c_void};

/// An endpoint, a scalable endpoint, or a context of it.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct fid_ep {
    pub fid: fid,
    pub ops: *mut fi_ops_ep,
    pub cm: *mut fi_ops_cm,
    pub msg: *mut fi_ops_msg,
    pub rma: *mut fi_ops_rma,
    pub tagged: *mut fi_ops_tagged,
    pub atomic: *mut fi_ops_atomic,
    pub collective: *mut fi_ops_collective,
}

/// A passive endpoint: it listens for connection requests.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct fid_pep {
    pub fid: fid,
    pub ops: *mut fi_ops_ep,
    pub cm: *mut fi_ops_cm,
}

/// A shared transmit context.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct fid_stx {
    pub fid: fid,
    pub ops: *mut fi_ops_ep,
}

/// A joined multicast or collective group.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct fid_mc {
    pub fid: fid,
    pub fi_addr: fi_addr_t,
}

/// What a completion of a buffered receive has as context.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct fi_recv_context {
    pub ep: *mut fid_ep,
    pub context: *mut c_void,
}

/// Calls of endpoints.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct fi_ops_ep {
    /// Size of this table in bytes.
    pub size: usize,
    /// The context of the operation. Returns 0 also if no such operation is pending.
    pub cancel: Option<unsafe extern "C" fn(fid_t, *mut c_void) -> isize>,
    /// Level, name, buffer, its size, and then the size of the value.
    pub getopt: Option<unsafe extern "C" fn(fid_t, c_int, c_int, *mut c_void, *mut usize) -> c_int>,
    /// Level, name, value, its size.
    pub setopt: Option<unsafe extern "C" fn(fid_t, c_int, c_int, *const c_void, usize) -> c_int>,
    /// Scalable endpoint, index, attributes, where the context goes, context.
    pub tx_ctx:
        Option<unsafe extern "C" fn(*mut fid_ep, c_int, *mut fi_tx_attr, *mut *mut fid_ep, *mut c_void) -> c_int>,
    pub rx_ctx:
        Option<unsafe extern "C" fn(*mut fid_ep, c_int, *mut fi_rx_attr, *mut *mut fid_ep, *mut c_void) -> c_int>,
    /// Since version 1.5 deprecated.
    pub rx_size_left: Option<unsafe extern "C" fn(*mut fid_ep) -> isize>,
    pub tx_size_left: Option<unsafe extern "C" fn(*mut fid_ep) -> isize>,
}

/// Calls for addresses and connections.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct fi_ops_cm {
    /// Size of this table in bytes.
    pub size: usize,
    pub setname: Option<unsafe extern "C" fn(fid_t, *mut c_void, usize) -> c_int>,
    /// Where the address goes, size of the buffer, and then of the address.
    pub getname: Option<unsafe extern "C" fn(fid_t, *mut c_void, *mut usize) -> c_int>,
    pub getpeer: Option<unsafe extern "C" fn(*mut fid_ep, *mut c_void, *mut usize) -> c_int>,
    /// Address, private data, its size.
    pub connect: Option<unsafe extern "C" fn(*mut fid_ep, *const c_void, *const c_void, usize) -> c_int>,
    pub listen: Option<unsafe extern "C" fn(*mut fid_pep) -> c_int>,
    pub accept: Option<unsafe extern "C" fn(*mut fid_ep, *const c_void, usize) -> c_int>,
    /// The handle is that of the connection request.
    pub reject: Option<unsafe extern "C" fn(*mut fid_pep, fid_t, *const c_void, usize) -> c_int>,
    pub shutdown: Option<unsafe extern "C" fn(*mut fid_ep, u64) -> c_int>,
    /// Address, flags, where the group goes, context.
    pub join: Option<unsafe extern "C" fn(*mut fid_ep, *const c_void, u64, *mut *mut fid_mc, *mut c_void) -> c_int>,
}

/// Calls that send and receive messages.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct fi_ops_msg {
    /// Size of this table in bytes.
    pub size: usize,
    /// Buffer, length, descriptor, source, context.
    pub recv:
        Option<unsafe extern "C" fn(*mut fid_ep, *mut c_void, usize, *mut c_void, fi_addr_t, *mut c_void) -> isize>,
    /// Buffers, descriptors, number of buffers, source, context.
    pub recvv: Option<
        unsafe extern "C" fn(*mut fid_ep, *const iovec, *mut *mut c_void, usize, fi_addr_t, *mut c_void) -> isize,
    >,
    pub recvmsg: Option<unsafe extern "C" fn(*mut fid_ep, *const fi_msg, u64) -> isize>,
    /// Buffer, length, descriptor, destination, context.
    pub send:
        Option<unsafe extern "C" fn(*mut fid_ep, *const c_void, usize, *mut c_void, fi_addr_t, *mut c_void) -> isize>,
    /// Buffers, descriptors, number of buffers, destination, context.
    pub sendv: Option<
        unsafe extern "C" fn(*mut fid_ep, *const iovec, *mut *mut c_void, usize, fi_addr_t, *mut c_void) -> isize,
    >,
    pub sendmsg: Option<unsafe extern "C" fn(*mut fid_ep, *const fi_msg, u64) -> isize>,
    /// Buffer, length, destination.
    pub inject: Option<unsafe extern "C" fn(*mut fid_ep, *const c_void, usize, fi_addr_t) -> isize>,
    /// Buffer, length, descriptor, immediate data, destination, context.
    pub senddata: Option<
        unsafe extern "C" fn(*mut fid_ep, *const c_void, usize, *mut c_void, u64, fi_addr_t, *mut c_void) -> isize,
    >,
    /// Buffer, length, immediate data, destination.
    pub injectdata: Option<unsafe extern "C" fn(*mut fid_ep, *const c_void, usize, u64, fi_addr_t) -> isize>,
}

/// READs and WRITEs.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct fi_ops_rma {
    /// Size of this table in bytes.
    pub size: usize,
    /// Buffer, length, descriptor, peer, remote address, key, context.
    pub read: Option<
        unsafe extern "C" fn(*mut fid_ep, *mut c_void, usize, *mut c_void, fi_addr_t, u64, u64, *mut c_void) -> isize,
    >,
    /// Buffers, descriptors, number of buffers, peer, remote address, key, context.
    pub readv: Option<Vector>,
    pub readmsg: Option<unsafe extern "C" fn(*mut fid_ep, *const fi_msg_rma, u64) -> isize>,
    /// As `read`.
    pub write: Option<
        unsafe extern "C" fn(*mut fid_ep, *const c_void, usize, *mut c_void, fi_addr_t, u64, u64, *mut c_void) -> isize,
    >,
    /// As `readv`.
    pub writev: Option<Vector>,
    pub writemsg: Option<unsafe extern "C" fn(*mut fid_ep, *const fi_msg_rma, u64) -> isize>,
    /// Buffer, length, peer, remote address, key.
    pub inject: Option<unsafe extern "C" fn(*mut fid_ep, *const c_void, usize, fi_addr_t, u64, u64) -> isize>,
    /// Buffer, length, descriptor, immediate data, peer, remote address, key, context.
    pub writedata: Option<
        unsafe extern "C" fn(
            *mut fid_ep,
            *const c_void,
            usize,
            *mut c_void,
            u64,
            fi_addr_t,
            u64,
            u64,
            *mut c_void,
        ) -> isize,
    >,
    /// Buffer, length, immediate data, peer, remote address, key.
    pub injectdata: Option<unsafe extern "C" fn(*mut fid_ep, *const c_void, usize, u64, fi_addr_t, u64, u64) -> isize>,
}

/// Calls that send and receive tagged messages.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct fi_ops_tagged {
    /// Size of this table in bytes.
    pub size: usize,
    /// Buffer, length, descriptor, source, tag, bits that are not compared, context.
    pub recv: Option<
        unsafe extern "C" fn(*mut fid_ep, *mut c_void, usize, *mut c_void, fi_addr_t, u64, u64, *mut c_void) -> isize,
    >,
    /// Buffers, descriptors, number of buffers, source, tag, bits that are not compared, context.
    pub recvv: Option<
        unsafe extern "C" fn(
            *mut fid_ep,
            *const iovec,
            *mut *mut c_void,
            usize,
            fi_addr_t,
            u64,
            u64,
            *mut c_void,
        ) -> isize,
    >,
    pub recvmsg: Option<unsafe extern "C" fn(*mut fid_ep, *const fi_msg_tagged, u64) -> isize>,
    /// Buffer, length, descriptor, destination, tag, context.
    pub send: Option<
        unsafe extern "C" fn(*mut fid_ep, *const c_void, usize, *mut c_void, fi_addr_t, u64, *mut c_void) -> isize,
    >,
    /// Buffers, descriptors, number of buffers, destination, tag, context.
    pub sendv: Option<
        unsafe extern "C" fn(*mut fid_ep, *const iovec, *mut *mut c_void, usize, fi_addr_t, u64, *mut c_void) -> isize,
    >,
    pub sendmsg: Option<unsafe extern "C" fn(*mut fid_ep, *const fi_msg_tagged, u64) -> isize>,
    /// Buffer, length, destination, tag.
    pub inject: Option<unsafe extern "C" fn(*mut fid_ep, *const c_void, usize, fi_addr_t, u64) -> isize>,
    /// Buffer, length, descriptor, immediate data, destination, tag, context.
    pub senddata: Option<
        unsafe extern "C" fn(*mut fid_ep, *const c_void, usize, *mut c_void, u64, fi_addr_t, u64, *mut c_void) -> isize,
    >,
    /// Buffer, length, immediate data, destination, tag.
    pub injectdata: Option<unsafe extern "C" fn(*mut fid_ep, *const c_void, usize, u64, fi_addr_t, u64) -> isize>,
}

/// Atomic operations. Counts are of values, not of bytes.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct fi_ops_atomic {
    /// Size of this table in bytes.
    pub size: usize,
    /// Values, count, descriptor, peer, remote address, key, type, operation, context.
    pub write: Option<
        unsafe extern "C" fn(
            *mut fid_ep,
            *const c_void,
            usize,
            *mut c_void,
            fi_addr_t,
            u64,
            u64,
            fi_datatype,
            fi_op,
            *mut c_void,
        ) -> isize,
    >,
    pub writev: Option<
        unsafe extern "C" fn(
            *mut fid_ep,
            *const fi_ioc,
            *mut *mut c_void,
            usize,
            fi_addr_t,
            u64,
            u64,
            fi_datatype,
            fi_op,
            *mut c_void,
        ) -> isize,
    >,
    pub writemsg: Option<unsafe extern "C" fn(*mut fid_ep, *const fi_msg_atomic, u64) -> isize>,
    /// Values, count, peer, remote address, key, type, operation.
    pub inject: Option<
        unsafe extern "C" fn(*mut fid_ep, *const c_void, usize, fi_addr_t, u64, u64, fi_datatype, fi_op) -> isize,
    >,
    /// As `write`, with the result and its descriptor before the peer.
    pub readwrite: Option<Fetch>,
    pub readwritev: Option<FetchVector>,
    /// Operation, result, its descriptors, its buffers, flags.
    pub readwritemsg: Option<
        unsafe extern "C" fn(*mut fid_ep, *const fi_msg_atomic, *mut fi_ioc, *mut *mut c_void, usize, u64) -> isize,
    >,
    /// As `readwrite`, with the compare values and their descriptor before the result.
    pub compwrite: Option<Compare>,
    pub compwritev: Option<CompareVector>,
    /// As `readwritemsg`, with the compare values before the result.
    pub compwritemsg: Option<
        unsafe extern "C" fn(
            *mut fid_ep,
            *const fi_msg_atomic,
            *const fi_ioc,
            *mut *mut c_void,
            usize,
            *mut fi_ioc,
            *mut *mut c_void,
            usize,
            u64,
        ) -> isize,
    >,
    /// Type, operation, where the greatest count goes; an error if there is no such operation.
    pub writevalid: Option<Valid>,
    pub readwritevalid: Option<Valid>,
    pub compwritevalid: Option<Valid>,
}

/// Collective operations.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct fi_ops_collective {
    /// Size of this table in bytes.
    pub size: usize,
    /// The address of the group, context.
    pub barrier: Option<unsafe extern "C" fn(*mut fid_ep, fi_addr_t, *mut c_void) -> isize>,
    /// Values, count, descriptor, group, root, type, flags, context.
    pub broadcast: Option<
        unsafe extern "C" fn(
            *mut fid_ep,
            *mut c_void,
            usize,
            *mut c_void,
            fi_addr_t,
            fi_addr_t,
            fi_datatype,
            u64,
            *mut c_void,
        ) -> isize,
    >,
    /// Values, count, descriptor, result, its descriptor, group, type, flags, context.
    pub alltoall: Option<Exchange>,
    /// As `alltoall`, with the operation after the type.
    pub allreduce: Option<Reduction>,
    pub allgather: Option<Exchange>,
    pub reduce_scatter: Option<Reduction>,
    /// As `allreduce`, with the root after the group.
    pub reduce: Option<RootedReduction>,
    /// As `alltoall`, with the root after the group.
    pub scatter: Option<Rooted>,
    pub gather: Option<Rooted>,
    /// Operation, result, its descriptors, its buffers, flags.
    pub msg: Option<
        unsafe extern "C" fn(*mut fid_ep, *const fi_msg_collective, *mut fi_ioc, *mut *mut c_void, usize, u64) -> isize,
    >,
    pub barrier2: Option<unsafe extern "C" fn(*mut fid_ep, fi_addr_t, u64, *mut c_void) -> isize>,
}

/// A READ or WRITE with several local buffers.
type Vector =
    unsafe extern "C" fn(*mut fid_ep, *const iovec, *mut *mut c_void, usize, fi_addr_t, u64, u64, *mut c_void) -> isize;

/// Tells whether an atomic operation exists.
type Valid = unsafe extern "C" fn(*mut fid_ep, fi_datatype, fi_op, *mut usize) -> c_int;

/// An atomic operation that fetches.
type Fetch = unsafe extern "C" fn(
    *mut fid_ep,
    *const c_void,
    usize,
    *mut c_void,
    *mut c_void,
    *mut c_void,
    fi_addr_t,
    u64,
    u64,
    fi_datatype,
    fi_op,
    *mut c_void,
) -> isize;

/// An atomic operation that fetches, with several local buffers.
type FetchVector = unsafe extern "C" fn(
    *mut fid_ep,
    *const fi_ioc,
    *mut *mut c_void,
    usize,
    *mut fi_ioc,
    *mut *mut c_void,
    usize,
    fi_addr_t,
    u64,
    u64,
    fi_datatype,
    fi_op,
    *mut c_void,
) -> isize;

/// An atomic operation that compares.
type Compare = unsafe extern "C" fn(
    *mut fid_ep,
    *const c_void,
    usize,
    *mut c_void,
    *const c_void,
    *mut c_void,
    *mut c_void,
    *mut c_void,
    fi_addr_t,
    u64,
    u64,
    fi_datatype,
    fi_op,
    *mut c_void,
) -> isize;

/// An atomic operation that compares, with several local buffers.
type CompareVector = unsafe extern "C" fn(
    *mut fid_ep,
    *const fi_ioc,
    *mut *mut c_void,
    usize,
    *const fi_ioc,
    *mut *mut c_void,
    usize,
    *mut fi_ioc,
    *mut *mut c_void,
    usize,
    fi_addr_t,
    u64,
    u64,
    fi_datatype,
    fi_op,
    *mut c_void,
) -> isize;

/// A collective operation that computes, with a root.
type RootedReduction = unsafe extern "C" fn(
    *mut fid_ep,
    *const c_void,
    usize,
    *mut c_void,
    *mut c_void,
    *mut c_void,
    fi_addr_t,
    fi_addr_t,
    fi_datatype,
    fi_op,
    u64,
    *mut c_void,
) -> isize;

/// A collective operation with a result.
type Exchange = unsafe extern "C" fn(
    *mut fid_ep,
    *const c_void,
    usize,
    *mut c_void,
    *mut c_void,
    *mut c_void,
    fi_addr_t,
    fi_datatype,
    u64,
    *mut c_void,
) -> isize;

/// A collective operation that computes.
type Reduction = unsafe extern "C" fn(
    *mut fid_ep,
    *const c_void,
    usize,
    *mut c_void,
    *mut c_void,
    *mut c_void,
    fi_addr_t,
    fi_datatype,
    fi_op,
    u64,
    *mut c_void,
) -> isize;

/// A collective operation with a result and a root.
type Rooted = unsafe extern "C" fn(
    *mut fid_ep,
    *const c_void,
    usize,
    *mut c_void,
    *mut c_void,
    *mut c_void,
    fi_addr_t,
    fi_addr_t,
    fi_datatype,
    u64,
    *mut c_void,
) -> isize;
