//! READs and WRITEs (`fi_rma`).

use crate::endpoint::call::{Call, bytes, call, contiguous, gathered, pieces};
use libc::iovec;
use std::ffi::c_void;
use weir_fabric_abi::*;
use weir_msg::{Buffer, Remote, RmaCall};

/// Calls that read and write a peer's memory.
pub static OPS: fi_ops_rma = fi_ops_rma {
    size: size_of::<fi_ops_rma>(),
    read: Some(read),
    readv: Some(readv),
    readmsg: Some(readmsg),
    write: Some(write),
    writev: Some(writev),
    writemsg: Some(writemsg),
    inject: Some(inject),
    writedata: Some(writedata),
    injectdata: Some(injectdata),
};

/// A peer's memory, and what a program gives with an operation on it.
struct Target {
    to: fi_addr_t,
    addr: u64,
    key: u64,
    data: Option<u64>,
    context: *mut c_void,
}

fn rma(call: &mut Call<'_>, write: bool, local: Buffer, target: &Target, flags: u64) -> Result<(), i32> {
    let to = call.peer(target.to)?;
    let remote = Remote { addr: target.addr, len: local.len(), rkey: rkey(target.key)? };
    let immediate = target.data.map(|data| data as u32);
    let (context, report) = (target.context as u64, call.reports_send(flags));
    let (protocol, port, now) = call.engine().parts();
    if write && flags & FI_INJECT != 0 {
        if local.len() > protocol.settings().longest_injected() as u64 {
            return Err(FI_EMSGSIZE);
        }
        let bytes = gathered(&local);
        return protocol
            .inject_write_as(port, now, to, &bytes, (remote.addr, remote.rkey), immediate, context, report)
            .map_err(|_| FI_EAGAIN);
    }
    protocol.rma(port, now, &RmaCall { to, write, local, remote, immediate, context, report });
    Ok(())
}

fn inject_bytes(call: &mut Call<'_>, bytes: &[u8], target: &Target) -> Result<(), i32> {
    let to = call.peer(target.to)?;
    let (remote, immediate) = ((target.addr, rkey(target.key)?), target.data.map(|data| data as u32));
    let (protocol, port, now) = call.engine().parts();
    if bytes.len() > protocol.settings().longest_injected() {
        return Err(FI_EMSGSIZE);
    }
    protocol.inject_write(port, now, to, bytes, remote, immediate).map_err(|_| FI_EAGAIN)
}

/// Keys are those of verbs. FI_ENOKEY: this is none.
fn rkey(key: u64) -> Result<u32, i32> {
    u32::try_from(key).map_err(|_| FI_ENOKEY)
}

/// An operation of the `msg` calls.
///
/// # Safety
/// The message is the program's.
unsafe fn message(call: &mut Call<'_>, write: bool, msg: *const fi_msg_rma, flags: u64) -> Result<(), i32> {
    // SAFETY: the caller's message.
    let fi_msg_rma { msg_iov, iov_count, addr: to, rma_iov, rma_iov_count, context, data, .. } = unsafe { *msg };
    if rma_iov_count != 1 {
        return Err(FI_EINVAL);
    }
    // SAFETY: as above.
    let (local, fi_rma_iov { addr, len, key }) = unsafe { (pieces(msg_iov, iov_count)?, *rma_iov) };
    if len as u64 != local.len() {
        return Err(FI_EINVAL);
    }
    let data = (flags & FI_REMOTE_CQ_DATA != 0).then_some(data);
    rma(call, write, local, &Target { to, addr, key, data, context }, flags)
}

unsafe extern "C" fn read(
    ep: *mut fid_ep,
    buf: *mut c_void,
    len: usize,
    _: *mut c_void,
    to: fi_addr_t,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    let target = Target { to, addr, key, data: None, context };
    // SAFETY: the program's endpoint.
    unsafe { call(ep, |call| rma(call, false, contiguous(buf, len), &target, call.transmit_flags())) }
}

unsafe extern "C" fn readv(
    ep: *mut fid_ep,
    iov: *const iovec,
    _: *mut *mut c_void,
    count: usize,
    to: fi_addr_t,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    let target = Target { to, addr, key, data: None, context };
    // SAFETY: the program's endpoint and list.
    unsafe { call(ep, |call| rma(call, false, pieces(iov, count)?, &target, call.transmit_flags())) }
}

unsafe extern "C" fn readmsg(ep: *mut fid_ep, msg: *const fi_msg_rma, flags: u64) -> isize {
    // SAFETY: the program's endpoint and message.
    unsafe { call(ep, |call| message(call, false, msg, flags)) }
}

unsafe extern "C" fn write(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    _: *mut c_void,
    to: fi_addr_t,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    let target = Target { to, addr, key, data: None, context };
    // SAFETY: the program's endpoint.
    unsafe { call(ep, |call| rma(call, true, contiguous(buf, len), &target, call.transmit_flags())) }
}

unsafe extern "C" fn writev(
    ep: *mut fid_ep,
    iov: *const iovec,
    _: *mut *mut c_void,
    count: usize,
    to: fi_addr_t,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    let target = Target { to, addr, key, data: None, context };
    // SAFETY: the program's endpoint and list.
    unsafe { call(ep, |call| rma(call, true, pieces(iov, count)?, &target, call.transmit_flags())) }
}

unsafe extern "C" fn writemsg(ep: *mut fid_ep, msg: *const fi_msg_rma, flags: u64) -> isize {
    // SAFETY: the program's endpoint and message.
    unsafe { call(ep, |call| message(call, true, msg, flags)) }
}

unsafe extern "C" fn inject(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    to: fi_addr_t,
    addr: u64,
    key: u64,
) -> isize {
    let target = Target { to, addr, key, data: None, context: std::ptr::null_mut() };
    // SAFETY: the program's endpoint and bytes.
    unsafe { call(ep, |call| inject_bytes(call, bytes(buf, len), &target)) }
}

unsafe extern "C" fn writedata(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    _: *mut c_void,
    data: u64,
    to: fi_addr_t,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    let target = Target { to, addr, key, data: Some(data), context };
    // SAFETY: the program's endpoint.
    unsafe { call(ep, |call| rma(call, true, contiguous(buf, len), &target, call.transmit_flags())) }
}

unsafe extern "C" fn injectdata(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    data: u64,
    to: fi_addr_t,
    addr: u64,
    key: u64,
) -> isize {
    let target = Target { to, addr, key, data: Some(data), context: std::ptr::null_mut() };
    // SAFETY: the program's endpoint and bytes.
    unsafe { call(ep, |call| inject_bytes(call, bytes(buf, len), &target)) }
}
