//! Messages with a tag (`fi_tagged`).

use crate::endpoint::call::{bytes, call, contiguous, pieces};
use crate::endpoint::receive::{Wanted, receive};
use libc::iovec;
use std::ffi::c_void;
use weir_fabric_abi::*;
use weir_msg::Envelope;

/// Calls that send and receive tagged messages.
pub static OPS: fi_ops_tagged = fi_ops_tagged {
    size: size_of::<fi_ops_tagged>(),
    recv: Some(recv),
    recvv: Some(recvv),
    recvmsg: Some(recvmsg),
    send: Some(send),
    sendv: Some(sendv),
    sendmsg: Some(sendmsg),
    inject: Some(inject),
    senddata: Some(senddata),
    injectdata: Some(injectdata),
};

fn tagged(tag: u64) -> Envelope {
    Envelope { tag: Some(tag), data: None }
}

unsafe extern "C" fn recv(
    ep: *mut fid_ep,
    buf: *mut c_void,
    len: usize,
    _: *mut c_void,
    from: fi_addr_t,
    tag: u64,
    ignore: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: the program's endpoint.
    unsafe {
        call(ep, |call| {
            let wanted = Wanted { buffer: contiguous(buf, len), from, tag: Some((tag, ignore)), context };
            receive(call, &wanted, call.receive_flags())
        })
    }
}

unsafe extern "C" fn recvv(
    ep: *mut fid_ep,
    iov: *const iovec,
    _: *mut *mut c_void,
    count: usize,
    from: fi_addr_t,
    tag: u64,
    ignore: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: the program's endpoint and list.
    unsafe {
        call(ep, |call| {
            let wanted = Wanted { buffer: pieces(iov, count)?, from, tag: Some((tag, ignore)), context };
            receive(call, &wanted, call.receive_flags())
        })
    }
}

unsafe extern "C" fn recvmsg(ep: *mut fid_ep, msg: *const fi_msg_tagged, flags: u64) -> isize {
    // SAFETY: the program's endpoint and message.
    unsafe {
        call(ep, |call| {
            let fi_msg_tagged { msg_iov, iov_count, addr: from, tag, ignore, context, .. } = *msg;
            let wanted = Wanted { buffer: pieces(msg_iov, iov_count)?, from, tag: Some((tag, ignore)), context };
            receive(call, &wanted, flags)
        })
    }
}

unsafe extern "C" fn send(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    _: *mut c_void,
    to: fi_addr_t,
    tag: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: the program's endpoint.
    unsafe { call(ep, |call| call.send(to, tagged(tag), contiguous(buf, len), context, call.transmit_flags())) }
}

unsafe extern "C" fn sendv(
    ep: *mut fid_ep,
    iov: *const iovec,
    _: *mut *mut c_void,
    count: usize,
    to: fi_addr_t,
    tag: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: the program's endpoint and list.
    unsafe { call(ep, |call| call.send(to, tagged(tag), pieces(iov, count)?, context, call.transmit_flags())) }
}

unsafe extern "C" fn sendmsg(ep: *mut fid_ep, msg: *const fi_msg_tagged, flags: u64) -> isize {
    // SAFETY: the program's endpoint and message.
    unsafe {
        call(ep, |call| {
            let fi_msg_tagged { msg_iov, iov_count, addr: to, tag, context, data, .. } = *msg;
            let data = (flags & FI_REMOTE_CQ_DATA != 0).then_some(data);
            call.send(to, Envelope { tag: Some(tag), data }, pieces(msg_iov, iov_count)?, context, flags)
        })
    }
}

unsafe extern "C" fn inject(ep: *mut fid_ep, buf: *const c_void, len: usize, to: fi_addr_t, tag: u64) -> isize {
    // SAFETY: the program's endpoint and bytes.
    unsafe { call(ep, |call| call.inject(to, tagged(tag), bytes(buf, len))) }
}

unsafe extern "C" fn senddata(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    _: *mut c_void,
    data: u64,
    to: fi_addr_t,
    tag: u64,
    context: *mut c_void,
) -> isize {
    let envelope = Envelope { tag: Some(tag), data: Some(data) };
    // SAFETY: the program's endpoint.
    unsafe { call(ep, |call| call.send(to, envelope, contiguous(buf, len), context, call.transmit_flags())) }
}

unsafe extern "C" fn injectdata(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    data: u64,
    to: fi_addr_t,
    tag: u64,
) -> isize {
    let envelope = Envelope { tag: Some(tag), data: Some(data) };
    // SAFETY: the program's endpoint and bytes.
    unsafe { call(ep, |call| call.inject(to, envelope, bytes(buf, len))) }
}
