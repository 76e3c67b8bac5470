//! Messages without a tag (`fi_msg`).

use crate::endpoint::call::{bytes, call, contiguous, pieces};
use crate::endpoint::receive::{Wanted, receive};
use libc::iovec;
use std::ffi::c_void;
use weir_fabric_abi::*;
use weir_msg::Envelope;

/// Calls that send and receive messages.
pub static OPS: fi_ops_msg = fi_ops_msg {
    size: size_of::<fi_ops_msg>(),
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

const NONE: Envelope = Envelope { tag: None, data: None };

unsafe extern "C" fn recv(
    ep: *mut fid_ep,
    buf: *mut c_void,
    len: usize,
    _: *mut c_void,
    from: fi_addr_t,
    context: *mut c_void,
) -> isize {
    // SAFETY: the program's endpoint.
    unsafe {
        call(ep, |call| {
            let wanted = Wanted { buffer: contiguous(buf, len), from, tag: None, context };
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
    context: *mut c_void,
) -> isize {
    // SAFETY: the program's endpoint and list.
    unsafe {
        call(ep, |call| {
            let wanted = Wanted { buffer: pieces(iov, count)?, from, tag: None, context };
            receive(call, &wanted, call.receive_flags())
        })
    }
}

unsafe extern "C" fn recvmsg(ep: *mut fid_ep, msg: *const fi_msg, flags: u64) -> isize {
    // SAFETY: the program's endpoint and message.
    unsafe {
        call(ep, |call| {
            let fi_msg { msg_iov, iov_count, addr: from, context, .. } = *msg;
            let wanted = Wanted { buffer: pieces(msg_iov, iov_count)?, from, tag: None, context };
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
    context: *mut c_void,
) -> isize {
    // SAFETY: the program's endpoint.
    unsafe { call(ep, |call| call.send(to, NONE, contiguous(buf, len), context, call.transmit_flags())) }
}

unsafe extern "C" fn sendv(
    ep: *mut fid_ep,
    iov: *const iovec,
    _: *mut *mut c_void,
    count: usize,
    to: fi_addr_t,
    context: *mut c_void,
) -> isize {
    // SAFETY: the program's endpoint and list.
    unsafe { call(ep, |call| call.send(to, NONE, pieces(iov, count)?, context, call.transmit_flags())) }
}

unsafe extern "C" fn sendmsg(ep: *mut fid_ep, msg: *const fi_msg, flags: u64) -> isize {
    // SAFETY: the program's endpoint and message.
    unsafe {
        call(ep, |call| {
            let fi_msg { msg_iov, iov_count, addr: to, context, data, .. } = *msg;
            let data = (flags & FI_REMOTE_CQ_DATA != 0).then_some(data);
            call.send(to, Envelope { tag: None, data }, pieces(msg_iov, iov_count)?, context, flags)
        })
    }
}

unsafe extern "C" fn inject(ep: *mut fid_ep, buf: *const c_void, len: usize, to: fi_addr_t) -> isize {
    // SAFETY: the program's endpoint and bytes.
    unsafe { call(ep, |call| call.inject(to, NONE, bytes(buf, len))) }
}

unsafe extern "C" fn senddata(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    _: *mut c_void,
    data: u64,
    to: fi_addr_t,
    context: *mut c_void,
) -> isize {
    let envelope = Envelope { tag: None, data: Some(data) };
    // SAFETY: the program's endpoint.
    unsafe { call(ep, |call| call.send(to, envelope, contiguous(buf, len), context, call.transmit_flags())) }
}

unsafe extern "C" fn injectdata(ep: *mut fid_ep, buf: *const c_void, len: usize, data: u64, to: fi_addr_t) -> isize {
    let envelope = Envelope { tag: None, data: Some(data) };
    // SAFETY: the program's endpoint and bytes.
    unsafe { call(ep, |call| call.inject(to, envelope, bytes(buf, len))) }
}
