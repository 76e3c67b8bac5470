//! Posting work requests: the hot path of sending and receiving. This module allocates nothing and has no lock.

use crate::abi::*;
use crate::ah;
use crate::ffi::{EIO, guard_hot};
use crate::mw;
use crate::qp::{self, QpOwn};
use crate::refused_post;
use std::ffi::c_int;
use std::mem::MaybeUninit;
use weir_device::MAX_INLINE;
use weir_transport::{Data, Datagram, PostError, RecvWr, SendFlags, SendOp, SendWr, Service, Sge, Target};

// SGE lists are passed on in place, in the application's memory.
const _: () = assert!(size_of::<Sge>() == size_of::<ibv_sge>() && align_of::<Sge>() == align_of::<ibv_sge>());

/// `ibv_post_send`: 0, or an errno value with the first work request that was not posted in `bad_wr`.
///
/// # Safety
/// `qp` is alive, `wr` is a list as in verbs.h, `bad_wr` is writable.
pub unsafe extern "C" fn post_send(qp: *mut ibv_qp, wr: *mut ibv_send_wr, bad_wr: *mut *mut ibv_send_wr) -> c_int {
    let mut next = wr;
    let outcome = guard_hot(EIO.0, || {
        // SAFETY: guaranteed by the caller.
        let own = match unsafe { qp::own_checked(qp) } {
            Ok(own) => own,
            Err(errno) => return errno.0,
        };
        let mut refused = None;
        // SAFETY: the caller's list; each `next` is NULL or points to the next work request.
        while let Some(request) = unsafe { next.as_ref() } {
            // SAFETY: a work request of the caller's list.
            if let Err(error) = unsafe { send(own, request) } {
                refused = Some((request, error));
                break;
            }
            next = request.next;
        }
        if next != wr {
            own.device.doorbell();
        }
        // SAFETY: as above.
        refused.map_or(0, |(request, error)| unsafe { refused_post::send(own, request, error) }.0)
    });
    if outcome != 0 && !bad_wr.is_null() {
        // SAFETY: guaranteed by the caller.
        unsafe { *bad_wr = next };
    }
    outcome
}

/// `ibv_post_recv`: 0, or an errno value with the first work request that was not posted in `bad_wr`.
///
/// # Safety
/// `qp` is alive, `wr` is a list as in verbs.h, `bad_wr` is writable.
pub unsafe extern "C" fn post_recv(qp: *mut ibv_qp, wr: *mut ibv_recv_wr, bad_wr: *mut *mut ibv_recv_wr) -> c_int {
    let mut next = wr;
    let outcome = guard_hot(EIO.0, || {
        // SAFETY: guaranteed by the caller.
        let own = match unsafe { qp::own_checked(qp) } {
            Ok(own) => own,
            Err(errno) => return errno.0,
        };
        let mut refused = None;
        // SAFETY: as in `post_send`.
        while let Some(request) = unsafe { next.as_ref() } {
            // SAFETY: the caller's SGE list.
            if let Err(error) = unsafe { receive(own, request) } {
                refused = Some((request, error));
                break;
            }
            next = request.next;
        }
        if next != wr {
            own.device.doorbell_receive();
        }
        refused.map_or(0, |(request, error)| refused_post::receive(own, request, error).0)
    });
    if outcome != 0 && !bad_wr.is_null() {
        // SAFETY: guaranteed by the caller.
        unsafe { *bad_wr = next };
    }
    outcome
}

/// # Safety
/// `request` is as in verbs.h.
#[inline]
unsafe fn receive(qp: &QpOwn, request: &ibv_recv_wr) -> Result<(), PostError> {
    // SAFETY: the caller's SGE list.
    let sges = unsafe { sge_list(request.sg_list, request.num_sge, qp.max_recv_sge) }?;
    qp.device.post_recv(&RecvWr { wr_id: request.wr_id, sges })
}

/// # Safety
/// `request` is as in verbs.h.
#[inline]
unsafe fn send(qp: &QpOwn, request: &ibv_send_wr) -> Result<(), PostError> {
    // SAFETY: the caller's SGE list.
    let sges = unsafe { sge_list(request.sg_list, request.num_sge, qp.max_send_sge) }?;
    // SAFETY: the opcode says which member of the union is valid.
    let op = unsafe { operation(request) }?;
    // SAFETY: the QP's type and the operation say which member of the union is valid.
    let to = unsafe { target(qp.service, &op, request) }?;
    let flags = SendFlags::from_bits_truncate(request.send_flags);
    let wr_id = request.wr_id;
    if !flags.contains(SendFlags::INLINE) {
        return qp.device.post_send_to(&SendWr { wr_id, op, flags, data: Data::Gather(sges) }, to);
    }
    let mut room = [MaybeUninit::<u8>::uninit(); MAX_INLINE as usize];
    // SAFETY: inline data is readable memory of the caller.
    let bytes = unsafe { gather(sges, &mut room[..qp.max_inline]) }?;
    qp.device.post_send_to(&SendWr { wr_id, op, flags, data: Data::Inline(bytes) }, to)
}

/// # Safety
/// The members that the QP's type needs are set; an address handle is NULL or alive.
#[inline]
unsafe fn target(service: Service, op: &SendOp, request: &ibv_send_wr) -> Result<Target, PostError> {
    match service {
        // Another operation has other members there, and is refused.
        Service::Ud if !matches!(op, SendOp::Send | SendOp::SendImm { .. }) => return Ok(Target::Peer),
        Service::Ud => {}
        // SAFETY: an integer.
        Service::Xrc => return Ok(Target::Srq(request.qp_type.remote_srqn & 0xff_ffff)),
        _ => return Ok(Target::Peer),
    }
    // SAFETY: guaranteed by the caller.
    let ibv_wr_ud { ah, remote_qpn, remote_qkey } = unsafe { request.wr.ud };
    if ah.is_null() {
        return Err(PostError::Operation);
    }
    // SAFETY: guaranteed by the caller.
    let address = unsafe { ah::number_of(ah) };
    Ok(Target::Datagram(Datagram { address, dest_qp: remote_qpn & 0xff_ffff, qkey: remote_qkey }))
}

/// # Safety
/// The member of the union that the opcode names is set.
#[inline]
unsafe fn operation(request: &ibv_send_wr) -> Result<SendOp, PostError> {
    let imm = request.imm_data;
    // SAFETY: guaranteed by the caller.
    let (rdma, atomic) = unsafe { (&request.wr.rdma, &request.wr.atomic) };
    let ibv_wr_rdma { remote_addr, rkey } = *rdma;
    Ok(match request.opcode {
        IBV_WR_SEND => SendOp::Send,
        IBV_WR_SEND_WITH_IMM => SendOp::SendImm { imm },
        IBV_WR_RDMA_WRITE => SendOp::Write { remote_addr, rkey },
        IBV_WR_RDMA_WRITE_WITH_IMM => SendOp::WriteImm { remote_addr, rkey, imm },
        IBV_WR_RDMA_READ => SendOp::Read { remote_addr, rkey },
        IBV_WR_ATOMIC_CMP_AND_SWP => SendOp::CompareSwap {
            remote_addr: atomic.remote_addr,
            rkey: atomic.rkey,
            compare: atomic.compare_add,
            swap: atomic.swap,
        },
        IBV_WR_ATOMIC_FETCH_AND_ADD => {
            SendOp::FetchAdd { remote_addr: atomic.remote_addr, rkey: atomic.rkey, add: atomic.compare_add }
        }
        // `invalidate_rkey` shares its bytes with the immediate data.
        IBV_WR_SEND_WITH_INV => SendOp::SendInvalidate { rkey: imm },
        IBV_WR_LOCAL_INV => SendOp::LocalInvalidate { key: imm },
        IBV_WR_BIND_MW => {
            // SAFETY: guaranteed by the caller.
            SendOp::BindWindow(unsafe { mw::by_request(&request.extra.bind_mw) }?)
        }
        IBV_WR_ATOMIC_WRITE => SendOp::AtomicWrite { remote_addr, rkey },
        _ => return Err(PostError::Operation),
    })
}

/// The SGE list in place; an error if it is longer than the queue was created for.
///
/// # Safety
/// `list` has `count` SGEs, which do not change during `'a`.
#[inline]
pub unsafe fn sge_list<'a>(list: *const ibv_sge, count: c_int, max: u32) -> Result<&'a [Sge], PostError> {
    if count == 0 {
        return Ok(&[]);
    }
    // A negative count becomes a huge unsigned number.
    if count as u32 > max || list.is_null() {
        return Err(PostError::TooManySges);
    }
    // SAFETY: guaranteed by the caller; `Sge` has the layout of `ibv_sge`.
    Ok(unsafe { std::slice::from_raw_parts(list.cast(), count as usize) })
}

/// Copies inline data to `room`; an error if it does not fit.
///
/// # Safety
/// The segments are readable memory of this process: inline data ignores keys.
#[inline]
unsafe fn gather<'a>(sges: &[Sge], room: &'a mut [MaybeUninit<u8>]) -> Result<&'a [u8], PostError> {
    let mut len = 0;
    for sge in sges {
        let length = sge.length as usize;
        if length > room.len() - len {
            return Err(PostError::Inline);
        }
        // SAFETY: the caller guarantees that it is readable; it fits.
        unsafe {
            room[len..].as_mut_ptr().cast::<u8>().copy_from_nonoverlapping(sge.addr as *const u8, length);
        }
        len += length;
    }
    // SAFETY: the first `len` bytes were written.
    Ok(unsafe { std::slice::from_raw_parts(room.as_ptr().cast(), len) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inline_segments_are_concatenated_and_bounded() {
        let (a, b) = (*b"inline ", *b"data");
        let sge = |bytes: &[u8]| Sge { addr: bytes.as_ptr() as u64, length: bytes.len() as u32, lkey: 0 };
        let sges = [sge(&a), sge(&[]), sge(&b)];
        let mut room = [MaybeUninit::uninit(); 11];
        // SAFETY: the segments are arrays of this test.
        unsafe {
            assert_eq!(gather(&sges, &mut room), Ok(&b"inline data"[..]));
            assert_eq!(gather(&sges, &mut room[..10]), Err(PostError::Inline));
        }
    }

    #[test]
    fn a_bad_number_of_sges_is_refused() {
        let sge = ibv_sge { addr: 1, length: 2, lkey: 3 };
        // SAFETY: one SGE, as the count says.
        unsafe {
            assert_eq!(sge_list(&sge, 1, 1).unwrap(), [Sge { addr: 1, length: 2, lkey: 3 }]);
            assert_eq!(sge_list(&sge, 1, 0), Err(PostError::TooManySges));
            assert_eq!(sge_list(&sge, -1, 32), Err(PostError::TooManySges));
            assert_eq!(sge_list(std::ptr::null(), 1, 1), Err(PostError::TooManySges));
            assert_eq!(sge_list(std::ptr::null(), 0, 1), Ok(&[][..]));
        }
    }
}
