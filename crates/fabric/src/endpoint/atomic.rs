//! Atomics (`fi_atomic`).

use crate::domain::atomic_limits;
use crate::endpoint::call::{Call, call};
use crate::endpoint::object::EndpointObject;
use crate::guard::guarded;
use crate::info::IOV_LIMIT;
use crate::objects;
use std::ffi::{c_int, c_void};
use weir_fabric_abi::*;
use weir_msg::{AtomicCall, AtomicKind, Buffer, Datatype, Operator, Piece, Remote, RemoteBuffer};

/// Calls that perform atomics.
pub static OPS: fi_ops_atomic = fi_ops_atomic {
    size: size_of::<fi_ops_atomic>(),
    write: Some(write),
    writev: Some(writev),
    writemsg: Some(writemsg),
    inject: Some(inject),
    readwrite: Some(readwrite),
    readwritev: Some(readwritev),
    readwritemsg: Some(readwritemsg),
    compwrite: Some(compwrite),
    compwritev: Some(compwritev),
    compwritemsg: Some(compwritemsg),
    writevalid: Some(writevalid),
    readwritevalid: Some(readwritevalid),
    compwritevalid: Some(compwritevalid),
};

/// A list of buffers, as the program gives it.
type List = (*const fi_ioc, usize);
const NOTHING: List = (std::ptr::null(), 0);

/// What a program gives with an atomic.
struct Target {
    to: fi_addr_t,
    addr: u64,
    key: u64,
    datatype: fi_datatype,
    op: fi_op,
    context: *mut c_void,
}

/// Begins an atomic. The lists are operands, what is compared, and where the values before go.
///
/// # Safety
/// The lists are the program's.
unsafe fn atomic(
    call: &mut Call<'_>,
    kind: AtomicKind,
    target: &Target,
    [operand, compare, result]: [List; 3],
    report: bool,
) -> Result<(), i32> {
    let limits = atomic_limits(&call.endpoint.domain.settings, kind, target.datatype, target.op);
    let limits = limits.ok_or(FI_EOPNOTSUPP)?;
    let (datatype, operator) = (Datatype::from_code(target.datatype as u8), Operator::from_code(target.op as u8));
    let (datatype, operator) = (datatype.ok_or(FI_EOPNOTSUPP)?, operator.ok_or(FI_EOPNOTSUPP)?);
    // SAFETY: the caller's lists.
    let buffer = |list| unsafe { elements(list, datatype) };
    let (operand, compare, result) = (buffer(operand)?, buffer(compare)?, buffer(result)?);
    let reads = operator == Operator::Read;
    let operand = if reads { Buffer::default() } else { operand };
    let len = if reads { result.len() } else { operand.len() };
    let consistent =
        (kind == AtomicKind::Plain || result.len() == len) && (kind != AtomicKind::Compare || compare.len() == len);
    if !consistent || len == 0 || len > (limits.count * limits.size) as u64 {
        return Err(FI_EINVAL);
    }
    let rkey = u32::try_from(target.key).map_err(|_| FI_ENOKEY)?;
    let mut remote = RemoteBuffer::default();
    remote.push(Remote { addr: target.addr, len, rkey });
    let to = call.peer(target.to)?;
    let context = target.context as u64;
    let atomic = AtomicCall { to, kind, operator, datatype, target: remote, operand, compare, result, context, report };
    let (protocol, port, now) = call.engine().parts();
    protocol.atomic(port, now, &atomic);
    Ok(())
}

/// A buffer of elements.
///
/// # Safety
/// The list is the program's.
unsafe fn elements((list, count): List, datatype: Datatype) -> Result<Buffer, i32> {
    if count > IOV_LIMIT {
        return Err(FI_EINVAL);
    }
    let mut buffer = Buffer::default();
    for at in 0..count {
        // SAFETY: the caller's list.
        let fi_ioc { addr, count } = unsafe { *list.add(at) };
        let len = count.checked_mul(datatype.size()).ok_or(FI_EINVAL)?;
        buffer.push(Piece { addr: addr as u64, len: len as u64 });
    }
    Ok(buffer)
}

/// An atomic of the `msg` calls.
///
/// # Safety
/// The message and the lists are the program's.
unsafe fn message(
    call: &mut Call<'_>,
    kind: AtomicKind,
    msg: *const fi_msg_atomic,
    compare: List,
    result: List,
    flags: u64,
) -> Result<(), i32> {
    // SAFETY: the caller's message.
    let msg = unsafe { &*msg };
    if msg.rma_iov_count != 1 {
        return Err(FI_EINVAL);
    }
    // SAFETY: as above.
    let fi_rma_ioc { addr, key, .. } = unsafe { *msg.rma_iov };
    let fi_msg_atomic { addr: to, datatype, op, context, .. } = *msg;
    let target = Target { to, addr, key, datatype, op, context };
    let report = call.reports_send(flags);
    // SAFETY: as above.
    unsafe { atomic(call, kind, &target, [(msg.msg_iov, msg.iov_count), compare, result], report) }
}

unsafe extern "C" fn write(
    ep: *mut fid_ep,
    buf: *const c_void,
    count: usize,
    _: *mut c_void,
    to: fi_addr_t,
    addr: u64,
    key: u64,
    datatype: fi_datatype,
    op: fi_op,
    context: *mut c_void,
) -> isize {
    let operand = fi_ioc { addr: buf.cast_mut(), count };
    // SAFETY: the program's own call.
    unsafe { writev(ep, &operand, std::ptr::null_mut(), 1, to, addr, key, datatype, op, context) }
}

unsafe extern "C" fn writev(
    ep: *mut fid_ep,
    iov: *const fi_ioc,
    _: *mut *mut c_void,
    count: usize,
    to: fi_addr_t,
    addr: u64,
    key: u64,
    datatype: fi_datatype,
    op: fi_op,
    context: *mut c_void,
) -> isize {
    let target = Target { to, addr, key, datatype, op, context };
    // SAFETY: the program's endpoint and list.
    unsafe {
        call(ep, |call| {
            let report = call.reports_send(call.transmit_flags());
            atomic(call, AtomicKind::Plain, &target, [(iov, count), NOTHING, NOTHING], report)
        })
    }
}

unsafe extern "C" fn writemsg(ep: *mut fid_ep, msg: *const fi_msg_atomic, flags: u64) -> isize {
    // SAFETY: the program's endpoint and message.
    unsafe { call(ep, |call| message(call, AtomicKind::Plain, msg, NOTHING, NOTHING, flags)) }
}

unsafe extern "C" fn inject(
    ep: *mut fid_ep,
    buf: *const c_void,
    count: usize,
    to: fi_addr_t,
    addr: u64,
    key: u64,
    datatype: fi_datatype,
    op: fi_op,
) -> isize {
    let operand = fi_ioc { addr: buf.cast_mut(), count };
    let target = Target { to, addr, key, datatype, op, context: std::ptr::null_mut() };
    // SAFETY: the program's endpoint and values, which are copied now.
    unsafe { call(ep, |call| atomic(call, AtomicKind::Plain, &target, [(&operand, 1), NOTHING, NOTHING], false)) }
}

unsafe extern "C" fn readwrite(
    ep: *mut fid_ep,
    buf: *const c_void,
    count: usize,
    _: *mut c_void,
    result: *mut c_void,
    _: *mut c_void,
    to: fi_addr_t,
    addr: u64,
    key: u64,
    datatype: fi_datatype,
    op: fi_op,
    context: *mut c_void,
) -> isize {
    let (operand, mut result) = (fi_ioc { addr: buf.cast_mut(), count }, fi_ioc { addr: result, count });
    let none = std::ptr::null_mut();
    // SAFETY: the program's own call.
    unsafe { readwritev(ep, &operand, none, 1, &mut result, none, 1, to, addr, key, datatype, op, context) }
}

unsafe extern "C" fn readwritev(
    ep: *mut fid_ep,
    iov: *const fi_ioc,
    _: *mut *mut c_void,
    count: usize,
    result: *mut fi_ioc,
    _: *mut *mut c_void,
    result_count: usize,
    to: fi_addr_t,
    addr: u64,
    key: u64,
    datatype: fi_datatype,
    op: fi_op,
    context: *mut c_void,
) -> isize {
    let target = Target { to, addr, key, datatype, op, context };
    let lists = [(iov, count), NOTHING, (result.cast_const(), result_count)];
    // SAFETY: the program's endpoint and lists.
    unsafe {
        call(ep, |call| {
            let report = call.reports_send(call.transmit_flags());
            atomic(call, AtomicKind::Fetch, &target, lists, report)
        })
    }
}

unsafe extern "C" fn readwritemsg(
    ep: *mut fid_ep,
    msg: *const fi_msg_atomic,
    result: *mut fi_ioc,
    _: *mut *mut c_void,
    count: usize,
    flags: u64,
) -> isize {
    let result = (result.cast_const(), count);
    // SAFETY: the program's endpoint, message and list.
    unsafe { call(ep, |call| message(call, AtomicKind::Fetch, msg, NOTHING, result, flags)) }
}

unsafe extern "C" fn compwrite(
    ep: *mut fid_ep,
    buf: *const c_void,
    count: usize,
    _: *mut c_void,
    compare: *const c_void,
    _: *mut c_void,
    result: *mut c_void,
    _: *mut c_void,
    to: fi_addr_t,
    addr: u64,
    key: u64,
    datatype: fi_datatype,
    op: fi_op,
    context: *mut c_void,
) -> isize {
    let (operand, compare) = (fi_ioc { addr: buf.cast_mut(), count }, fi_ioc { addr: compare.cast_mut(), count });
    let mut result = fi_ioc { addr: result, count };
    let none = std::ptr::null_mut();
    // SAFETY: the program's own call.
    unsafe {
        compwritev(ep, &operand, none, 1, &compare, none, 1, &mut result, none, 1, to, addr, key, datatype, op, context)
    }
}

unsafe extern "C" fn compwritev(
    ep: *mut fid_ep,
    iov: *const fi_ioc,
    _: *mut *mut c_void,
    count: usize,
    compare: *const fi_ioc,
    _: *mut *mut c_void,
    compare_count: usize,
    result: *mut fi_ioc,
    _: *mut *mut c_void,
    result_count: usize,
    to: fi_addr_t,
    addr: u64,
    key: u64,
    datatype: fi_datatype,
    op: fi_op,
    context: *mut c_void,
) -> isize {
    let target = Target { to, addr, key, datatype, op, context };
    let lists = [(iov, count), (compare, compare_count), (result.cast_const(), result_count)];
    // SAFETY: the program's endpoint and lists.
    unsafe {
        call(ep, |call| {
            let report = call.reports_send(call.transmit_flags());
            atomic(call, AtomicKind::Compare, &target, lists, report)
        })
    }
}

unsafe extern "C" fn compwritemsg(
    ep: *mut fid_ep,
    msg: *const fi_msg_atomic,
    compare: *const fi_ioc,
    _: *mut *mut c_void,
    compare_count: usize,
    result: *mut fi_ioc,
    _: *mut *mut c_void,
    result_count: usize,
    flags: u64,
) -> isize {
    let (compare, result) = ((compare, compare_count), (result.cast_const(), result_count));
    // SAFETY: the program's endpoint, message and lists.
    unsafe { call(ep, |call| message(call, AtomicKind::Compare, msg, compare, result, flags)) }
}

/// Whether there is such an atomic, and how many elements it may have.
unsafe fn valid(ep: *mut fid_ep, kind: AtomicKind, datatype: fi_datatype, op: fi_op, count: *mut usize) -> c_int {
    guarded(|| {
        // SAFETY: the program's endpoint.
        let settings = unsafe { &objects::borrow::<EndpointObject>(ep).domain.settings };
        let Some(limits) = atomic_limits(settings, kind, datatype, op) else { return -FI_EOPNOTSUPP };
        if !count.is_null() {
            // SAFETY: the program's place for the result.
            unsafe { *count = limits.count };
        }
        0
    })
}

unsafe extern "C" fn writevalid(ep: *mut fid_ep, datatype: fi_datatype, op: fi_op, count: *mut usize) -> c_int {
    // SAFETY: the program's own call.
    unsafe { valid(ep, AtomicKind::Plain, datatype, op, count) }
}

unsafe extern "C" fn readwritevalid(ep: *mut fid_ep, datatype: fi_datatype, op: fi_op, count: *mut usize) -> c_int {
    // SAFETY: the program's own call.
    unsafe { valid(ep, AtomicKind::Fetch, datatype, op, count) }
}

unsafe extern "C" fn compwritevalid(ep: *mut fid_ep, datatype: fi_datatype, op: fi_op, count: *mut usize) -> c_int {
    // SAFETY: the program's own call.
    unsafe { valid(ep, AtomicKind::Compare, datatype, op, count) }
}
