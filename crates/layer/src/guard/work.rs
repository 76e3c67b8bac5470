//! A work request as the guards keep it: what is needed to post it again.

use super::pinned::Piece;
use crate::contexts::{self, Context};
use std::ffi::c_int;
use weir_abi::*;
use weir_guard::{Kind, Remote, Request};

/// SGEs without an allocation, for most programs. Requests are copied while they are entered, so they are small.
const FEW: usize = 2;
/// A request with more is not kept.
const MANY: usize = 32;
/// The `wr_id` of dummies, "Weirdumm". A program that uses it, too, loses nothing: completions are told apart by their
/// order.
pub const DUMMY: u64 = 0x5765_6972_6475_6d6d;

/// What `Request` does not say.
#[derive(Debug)]
pub struct Work {
    opcode: c_int,
    flags: u32,
    imm: u32,
    sges: Sges,
    /// Where the data of a READ goes, if it started again.
    pub pinned: Option<Piece>,
}

#[derive(Debug)]
enum Sges {
    Few([ibv_sge; FEW], u8),
    Many(Box<[ibv_sge]>),
}

/// Whether the SGEs of a request with this opcode mean anything.
#[inline]
pub fn has_data(opcode: c_int) -> bool {
    opcode != IBV_WR_LOCAL_INV && opcode != IBV_WR_BIND_MW
}

/// The kind of an opcode (IBV_WR_*).
#[inline]
pub fn kind(opcode: c_int) -> Kind {
    match opcode {
        IBV_WR_RDMA_READ => Kind::Read,
        IBV_WR_RDMA_WRITE | IBV_WR_RDMA_WRITE_WITH_IMM => Kind::Write,
        IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD | IBV_WR_FLUSH | IBV_WR_ATOMIC_WRITE => Kind::Atomic,
        IBV_WR_LOCAL_INV | IBV_WR_BIND_MW => Kind::Local,
        _ => Kind::Send,
    }
}

/// A request of the program, before its SGEs. `flags` are IBV_SEND_*.
pub fn describe(wr_id: u64, opcode: c_int, flags: u32, signaled: bool, remote: Remote, imm: u32) -> Request<Work> {
    let plain = [IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_SEND, IBV_WR_SEND_WITH_IMM];
    let sges = Sges::Few([ibv_sge { addr: 0, length: 0, lkey: 0 }; FEW], 0);
    Request {
        wr_id,
        kind: kind(opcode),
        bytes: 0,
        remote,
        signaled,
        on_demand: false,
        // The program may use the memory of inline data again. What a fenced request sends may come from a READ before
        // it, which may be in pinned memory still.
        repeatable: plain.contains(&opcode) && flags & (IBV_SEND_INLINE | IBV_SEND_FENCE) == 0,
        work: Work { opcode, flags, imm, sges, pinned: None },
    }
}

/// Adds SGEs to a request.
pub fn add_sges(request: &mut Request<Work>, context: &Context, sges: &[ibv_sge]) {
    request.bytes += sges.iter().map(|sge| u64::from(sge.length)).sum::<u64>();
    if !request.repeatable {
        return;
    }
    request.repeatable = request.work.add(sges);
    if request.kind == Kind::Read && contexts::any_odp() {
        let odp = |sge: &ibv_sge| contexts::odp(context, sge.lkey);
        let mut filled = request.work.sges().iter().filter(|sge| sge.length > 0);
        request.on_demand = filled.clone().any(|sge| odp(sge).is_some());
        // Data of a region with addresses of its own could not be copied to where the program expects it.
        request.repeatable &= !request.on_demand || filled.all(|sge| odp(sge) == Some(contexts::Odp::Plain));
    }
}

/// A READ or WRITE of no bytes. `signaled`: it has a completion.
pub fn dummy(kind: Kind, remote: Remote, signaled: bool) -> Request<Work> {
    let opcode = if kind == Kind::Write { IBV_WR_RDMA_WRITE } else { IBV_WR_RDMA_READ };
    let flags = if signaled { IBV_SEND_SIGNALED } else { 0 };
    describe(DUMMY, opcode, flags, signaled, remote, 0)
}

/// Posts a request. An error is that of ibv_post_send.
///
/// # Safety
/// A QP that exists; the caller holds its `posting` lock.
pub unsafe fn post(request: &Request<Work>, qp: *mut ibv_qp, context: &Context) -> c_int {
    let Some(real) = context.real.post_send else { return libc::ENOSYS };
    let work = &request.work;
    let pinned = work.pinned.as_ref().map(|piece| [piece.sge(request.bytes as u32)]);
    let sges = pinned.as_ref().map_or(work.sges(), |sge| &sge[..]);
    // SAFETY: a structure of numbers and pointers, for which zeros are a value.
    let mut wr: ibv_send_wr = unsafe { std::mem::zeroed() };
    wr.wr_id = request.wr_id;
    wr.sg_list = sges.as_ptr().cast_mut();
    wr.num_sge = sges.len() as c_int;
    wr.opcode = work.opcode;
    wr.send_flags = work.flags;
    wr.imm_data = work.imm;
    wr.wr = ibv_send_wr_target { rdma: ibv_wr_rdma { remote_addr: request.remote.addr, rkey: request.remote.rkey } };
    let mut bad = std::ptr::null_mut();
    // SAFETY: guaranteed by the caller; the work request and its SGEs live as long as the call.
    unsafe { real(qp, &mut wr, &mut bad) }
}

impl Work {
    /// The SGEs of the program.
    pub fn sges(&self) -> &[ibv_sge] {
        match &self.sges {
            Sges::Few(few, count) => &few[..usize::from(*count)],
            Sges::Many(many) => many,
        }
    }

    fn add(&mut self, more: &[ibv_sge]) -> bool {
        let before = self.sges().len();
        if before + more.len() > MANY {
            return false;
        }
        match &mut self.sges {
            Sges::Few(few, count) if before + more.len() <= FEW => {
                few[before..before + more.len()].copy_from_slice(more);
                *count += more.len() as u8;
            }
            sges => {
                let all: Vec<ibv_sge> = match sges {
                    Sges::Few(few, count) => few[..usize::from(*count)].iter().chain(more).copied().collect(),
                    Sges::Many(many) => many.iter().chain(more).copied().collect(),
                };
                *sges = Sges::Many(all.into());
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    #[test]
    fn sges_are_kept_up_to_a_limit() {
        let sge = |addr| ibv_sge { addr, length: 10, lkey: 5 };
        let mut request = describe(1, IBV_WR_RDMA_WRITE, 0, true, Remote::default(), 0);
        assert!(request.repeatable);
        for addr in 0..MANY as u64 {
            assert!(request.work.add(&[sge(addr)]), "{addr}");
        }
        let addresses: Vec<u64> = request.work.sges().iter().map(|sge| sge.addr).collect();
        assert_eq!(addresses, (0..MANY as u64).collect::<Vec<_>>());
        assert!(!request.work.add(&[sge(99)]));
    }

    #[test]
    fn only_what_can_be_posted_again_is_repeatable() {
        let of = |opcode, flags| describe(1, opcode, flags, true, Remote::default(), 0).repeatable;
        assert!(of(IBV_WR_SEND, 0) && !of(IBV_WR_SEND, IBV_SEND_FENCE) && !of(IBV_WR_SEND, IBV_SEND_INLINE));
        assert!(!of(IBV_WR_SEND_WITH_INV, 0) && !of(IBV_WR_ATOMIC_FETCH_AND_ADD, 0) && !of(IBV_WR_BIND_MW, 0));
        assert_eq!((kind(IBV_WR_BIND_MW), kind(IBV_WR_FLUSH)), (Kind::Local, Kind::Atomic));
    }

    #[test]
    fn the_library_gets_a_dummy_as_the_connection_enters_it() {
        static POSTED: Mutex<Vec<(c_int, u32)>> = Mutex::new(vec![]);
        unsafe extern "C" fn note(_: *mut ibv_qp, wr: *mut ibv_send_wr, _: *mut *mut ibv_send_wr) -> c_int {
            // SAFETY: the request of `post`.
            let wr = unsafe { &*wr };
            POSTED.lock().unwrap().push((wr.opcode, wr.send_flags));
            0
        }
        let mut context = Context::example();
        context.real.post_send = Some(note);
        for (kind, signaled) in [(Kind::Read, true), (Kind::Write, true), (Kind::Read, false)] {
            let request = dummy(kind, Remote::default(), signaled);
            assert_eq!(request.signaled, signaled);
            // SAFETY: the function above does not look at the QP.
            assert_eq!(unsafe { post(&request, std::ptr::null_mut(), &context) }, 0);
        }
        let expected =
            [(IBV_WR_RDMA_READ, IBV_SEND_SIGNALED), (IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED), (IBV_WR_RDMA_READ, 0)];
        assert_eq!(*POSTED.lock().unwrap(), expected);
    }
}
