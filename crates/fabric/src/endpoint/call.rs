//! What all calls of programs have in common: the endpoint, the peer, buffers and flags.

use crate::endpoint::bindings::Bound;
use crate::endpoint::engine::Engine;
use crate::endpoint::object::{EndpointObject, State};
use crate::guard::guarded;
use crate::info::IOV_LIMIT;
use crate::objects;
use crate::queue::Entry;
use libc::iovec;
use std::ffi::c_void;
use weir_fabric_abi::*;
use weir_msg::{Buffer, Envelope, PeerId, Piece, SendCall};

/// An endpoint during a call.
pub struct Call<'a> {
    pub endpoint: &'a EndpointObject,
    state: &'a mut State,
}

/// Runs a call on an enabled endpoint. The ends of operations are reported before it returns.
///
/// # Safety
/// The endpoint is open.
#[inline]
pub unsafe fn call(ep: *mut fid_ep, run: impl FnOnce(&mut Call<'_>) -> Result<(), i32>) -> isize {
    guarded(|| {
        // SAFETY: the caller's endpoint.
        let endpoint = unsafe { objects::borrow::<EndpointObject>(ep) };
        let Ok(mut state) = endpoint.state.lock() else { return -FI_EOTHER as isize };
        if state.engine.is_none() {
            return -FI_EOPBADSTATE as isize;
        }
        let result = run(&mut Call { endpoint, state: &mut state });
        EndpointObject::report(&mut state);
        match result {
            Ok(()) => 0,
            Err(error) => -error as isize,
        }
    })
}

impl Call<'_> {
    /// The protocol with its port.
    #[inline]
    pub fn engine(&mut self) -> &mut Engine {
        // `call` has seen that there is one.
        self.state.engine.as_mut().expect("the endpoint is enabled")
    }

    /// The peer of an address. FI_EINVAL: there is none.
    #[inline]
    pub fn peer(&mut self, addr: fi_addr_t) -> Result<PeerId, i32> {
        let index = usize::try_from(addr).map_err(|_| FI_EINVAL)?;
        if let Some(&Some(peer)) = self.state.peers.get(index) {
            return Ok(peer);
        }
        let name = self.state.bindings.vector.as_ref().and_then(|vector| vector.name(addr)).ok_or(FI_EINVAL)?;
        let peer = self.engine().protocol.peer(&name);
        if self.state.peers.len() <= index {
            self.state.peers.resize(index + 1, None);
        }
        self.state.peers[index] = Some(peer);
        Ok(peer)
    }

    /// The peer that a receive is limited to.
    #[inline]
    pub fn source(&mut self, addr: fi_addr_t) -> Result<Option<PeerId>, i32> {
        let directed = self.endpoint.caps & FI_DIRECTED_RECV != 0 && addr != FI_ADDR_UNSPEC;
        if directed { self.peer(addr).map(Some) } else { Ok(None) }
    }

    /// Flags of a send that is given none.
    pub fn transmit_flags(&self) -> u64 {
        self.state.bindings.transmit.default_flags
    }

    /// Flags of a receive that is given none.
    pub fn receive_flags(&self) -> u64 {
        self.state.bindings.receive.default_flags
    }

    /// Whether a send's success is reported.
    pub fn reports_send(&self, flags: u64) -> bool {
        reports(&self.state.bindings.transmit, flags)
    }

    /// Whether a receive's success is reported.
    pub fn reports_receive(&self, flags: u64) -> bool {
        reports(&self.state.bindings.receive, flags)
    }

    /// A receive for several messages ends when fewer bytes are left.
    pub fn min_multi_recv(&self) -> u64 {
        self.state.min_multi_recv
    }

    /// Reports a message that was found, and that has not been received.
    pub fn report(&mut self, event: &weir_msg::Event) {
        let State { bindings, engine: Some(engine), reports, .. } = &mut *self.state else { return };
        reports.report_found(bindings, &engine.protocol, event);
    }

    /// Reports that no message matches.
    pub fn report_no_message(&mut self, context: u64, tagged: bool) {
        let flags = FI_RECV | if tagged { FI_TAGGED } else { FI_MSG };
        if let Some(queue) = &self.state.bindings.receive.queue {
            queue.push(Entry::failed(context, flags, FI_ENOMSG));
        }
    }

    /// Sends a message.
    #[inline]
    pub fn send(
        &mut self,
        addr: fi_addr_t,
        envelope: Envelope,
        buffer: Buffer,
        context: *mut c_void,
        flags: u64,
    ) -> Result<(), i32> {
        if buffer.len() > crate::info::MAX_MESSAGE as u64 {
            return Err(FI_EMSGSIZE);
        }
        let to = self.peer(addr)?;
        let (matched, report) = (flags & FI_MATCH_COMPLETE != 0, self.reports_send(flags));
        let call = SendCall { to, envelope, buffer, matched, context: context as u64, report };
        if flags & FI_INJECT != 0 {
            let ends_late = flags & (FI_MATCH_COMPLETE | FI_DELIVERY_COMPLETE | FI_TRANSMIT_COMPLETE) != 0;
            return self.send_copied(&call, ends_late);
        }
        let (protocol, port, now) = self.engine().parts();
        protocol.send(port, now, &call);
        Ok(())
    }

    /// Sends a message, after its bytes have been copied. Unless it `ends_late`, that is all that the end of the operation
    /// says.
    fn send_copied(&mut self, call: &SendCall, ends_late: bool) -> Result<(), i32> {
        let (protocol, port, now) = self.engine().parts();
        if call.buffer.len() > protocol.settings().longest_injected() as u64 {
            return Err(FI_EMSGSIZE);
        }
        let bytes = gathered(&call.buffer);
        let sent = if ends_late {
            protocol.send_copied(port, now, call, &bytes)
        } else {
            protocol.inject_as(port, now, call.to, call.envelope, &bytes, call.context, call.report)
        };
        sent.map_err(|_| FI_EAGAIN)
    }

    /// Sends bytes, which are copied now; nothing is reported.
    #[inline]
    pub fn inject(&mut self, addr: fi_addr_t, envelope: Envelope, bytes: &[u8]) -> Result<(), i32> {
        let to = self.peer(addr)?;
        let (protocol, port, now) = self.engine().parts();
        if bytes.len() > protocol.settings().longest_injected() {
            return Err(FI_EMSGSIZE);
        }
        protocol.inject(port, now, to, envelope, bytes).map_err(|_| FI_EAGAIN)
    }
}

fn reports(bound: &Bound, flags: u64) -> bool {
    !bound.selective || flags & FI_COMPLETION != 0
}

/// A contiguous buffer of the program.
#[inline]
pub fn contiguous(buf: *const c_void, len: usize) -> Buffer {
    Buffer::contiguous(buf as u64, len as u64)
}

/// A buffer of the program in pieces. FI_EINVAL: too many.
///
/// # Safety
/// There are so many.
pub unsafe fn pieces(iov: *const iovec, count: usize) -> Result<Buffer, i32> {
    if count > IOV_LIMIT {
        return Err(FI_EINVAL);
    }
    let mut buffer = Buffer::default();
    for at in 0..count {
        // SAFETY: the caller's list.
        let iovec { iov_base, iov_len } = unsafe { *iov.add(at) };
        buffer.push(Piece { addr: iov_base as u64, len: iov_len as u64 });
    }
    Ok(buffer)
}

/// The bytes of a buffer.
pub fn gathered(buffer: &Buffer) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(buffer.len() as usize);
    for piece in buffer.pieces() {
        let pointer: *const u8 = std::ptr::with_exposed_provenance(piece.addr as usize);
        // SAFETY: the program has given the memory for this call.
        bytes.extend_from_slice(unsafe { std::slice::from_raw_parts(pointer, piece.len as usize) });
    }
    bytes
}

/// Bytes of the program.
///
/// # Safety
/// There are so many, during the call.
pub unsafe fn bytes<'a>(buf: *const c_void, len: usize) -> &'a [u8] {
    if len == 0 {
        return &[];
    }
    // SAFETY: the caller's bytes.
    unsafe { std::slice::from_raw_parts(buf.cast(), len) }
}
