//! A batch of work requests that a program builds call by call, outside of the send queue.

use crate::ffi::EINVAL;
use crate::gate::Gate;
use std::ops::Range;
use weir_device::Errno;
use weir_transport::{Data, PostError, SendFlags, SendOp, SendWr, Sge, Target};

/// The batch that is being built for a QP.
pub type Builder = Gate<Batch>;

/// Work requests between `ibv_wr_start` and `ibv_wr_complete`.
#[derive(Default)]
pub struct Batch {
    /// The first error.
    error: Option<Refusal>,
    wrs: Vec<Staged>,
    sges: Vec<Sge>,
    inline: Vec<u8>,
}

/// Why a batch is not posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// More work requests than the send queue can hold.
    Requests,
    /// A setter came before the first work request.
    NoRequest,
    /// So many SGEs, more than the QP was created for.
    Sges(usize),
    /// So many bytes of inline data, more than the QP was created for.
    Inline(usize),
    /// `ibv_wr_bind_mw` without a window of type 2, or without a region.
    Window,
    /// `ibv_wr_flush` with another placement or selectivity, or of a range of 4 GiB or more.
    Flush,
    /// `ibv_wr_set_ud_addr` without an address handle.
    NoAddress,
    /// By the QP.
    Post(PostError),
}

impl From<Refusal> for Errno {
    fn from(refusal: Refusal) -> Errno {
        match refusal {
            Refusal::Requests | Refusal::Sges(_) | Refusal::Inline(_) => Errno(libc::ENOMEM),
            Refusal::NoRequest | Refusal::Window | Refusal::Flush | Refusal::NoAddress => EINVAL,
            Refusal::Post(error) => error.into(),
        }
    }
}

struct Staged {
    wr_id: u64,
    op: SendOp,
    flags: SendFlags,
    data: Stored,
    to: Target,
}

/// Where a work request's data lies in its batch.
enum Stored {
    Gather(Range<usize>),
    Inline(Range<usize>),
}

impl Batch {
    /// Removes all work requests and the error: `ibv_wr_start` or `ibv_wr_abort`.
    pub fn clear(&mut self) {
        self.error = None;
        self.wrs.clear();
        self.sges.clear();
        self.inline.clear();
    }

    /// Makes `ibv_wr_complete` fail with `error`, unless an earlier error is kept.
    pub fn fail(&mut self, error: Refusal) {
        self.error.get_or_insert(error);
    }

    /// Adds a work request without data: no more requests than the send queue can hold.
    pub fn begin(&mut self, wr_id: u64, flags: u32, op: SendOp, max: u32) {
        if self.wrs.len() >= max as usize {
            return self.fail(Refusal::Requests);
        }
        // The setter decides whether the data is inline.
        let flags = SendFlags::from_bits_truncate(flags) - SendFlags::INLINE;
        self.wrs.push(Staged { wr_id, op, flags, data: Stored::Gather(0..0), to: Target::Peer });
    }

    /// Sets the target of the newest work request. Whether the QP needs this target is checked when the request is
    /// posted.
    pub fn address(&mut self, to: Target) {
        match self.wrs.last_mut() {
            Some(wr) => wr.to = to,
            None => self.fail(Refusal::NoRequest),
        }
    }

    /// Sets the SGEs of the newest work request: no more than the QP was created for, `max`.
    pub fn gather(&mut self, sges: &[Sge], max: u32) {
        if sges.len() > max as usize {
            return self.fail(Refusal::Sges(sges.len()));
        }
        let Some(wr) = self.wrs.last_mut() else { return self.fail(Refusal::NoRequest) };
        let start = self.sges.len();
        self.sges.extend_from_slice(sges);
        wr.flags.remove(SendFlags::INLINE);
        wr.data = Stored::Gather(start..self.sges.len());
    }

    /// Sets the data of the newest work request and copies it now: no more bytes than the QP was created for, `max`.
    ///
    /// # Safety
    /// Each segment is readable for its length.
    pub unsafe fn copy(&mut self, segments: impl Iterator<Item = (*const u8, usize)> + Clone, max: usize) {
        let length = segments.clone().fold(0usize, |sum, (_, length)| sum.saturating_add(length));
        if length > max {
            return self.fail(Refusal::Inline(length));
        }
        let Some(wr) = self.wrs.last_mut() else { return self.fail(Refusal::NoRequest) };
        let start = self.inline.len();
        self.inline.reserve(length);
        for (from, length) in segments.filter(|(_, length)| *length > 0) {
            let end = self.inline.len();
            // SAFETY: the caller guarantees that it is readable; the reserved space holds the sum of all lengths.
            unsafe {
                self.inline.as_mut_ptr().add(end).copy_from_nonoverlapping(from, length);
                self.inline.set_len(end + length);
            }
        }
        wr.flags.insert(SendFlags::INLINE);
        wr.data = Stored::Inline(start..self.inline.len());
    }

    /// The work requests in the order in which they were begun, each with its target.
    pub fn requests(&self) -> impl ExactSizeIterator<Item = (SendWr<'_>, Target)> {
        self.wrs.iter().map(|wr| {
            let data = match &wr.data {
                Stored::Gather(range) => Data::Gather(&self.sges[range.clone()]),
                Stored::Inline(range) => Data::Inline(&self.inline[range.clone()]),
            };
            (SendWr { wr_id: wr.wr_id, op: wr.op, flags: wr.flags, data }, wr.to)
        })
    }

    /// Posts all work requests, or none: `ibv_wr_complete`.
    pub fn post(&self, qp: &weir_device::Qp) -> Result<(), Refusal> {
        if let Some(error) = self.error {
            return Err(error);
        }
        if !self.wrs.is_empty() {
            qp.post_sends(self.requests()).map_err(Refusal::Post)?;
            qp.doorbell();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::*;

    fn write() -> SendOp {
        SendOp::Write { remote_addr: 1, rkey: 2 }
    }

    #[test]
    fn each_work_request_has_its_own_data() {
        let mut batch = Batch::default();
        let sge = |length| Sge { addr: 1, length, lkey: 2 };
        batch.begin(7, IBV_SEND_SIGNALED | IBV_SEND_INLINE, SendOp::Send, 8);
        batch.gather(&[sge(3), sge(4)], 2);
        batch.begin(8, 0, write(), 8);
        let (a, b) = (*b"in", *b"line");
        // SAFETY: arrays of this test.
        unsafe { batch.copy([(a.as_ptr(), 2), (std::ptr::null(), 0), (b.as_ptr(), 4)].into_iter(), 6) };
        batch.begin(9, IBV_SEND_FENCE, write(), 8);
        let wrs: Vec<_> = batch.requests().map(|(wr, _)| wr).collect();
        assert_eq!(wrs.iter().map(|wr| wr.wr_id).collect::<Vec<_>>(), [7, 8, 9]);
        assert!(matches!(wrs[0].data, Data::Gather([x, y]) if (x.length, y.length) == (3, 4)));
        assert_eq!(wrs[0].flags, SendFlags::SIGNALED);
        assert!(matches!(wrs[1].data, Data::Inline(b"inline")));
        assert!(matches!(wrs[2].data, Data::Gather([])));
        assert_eq!(batch.error, None);
    }

    #[test]
    fn a_target_belongs_to_the_newest_work_request() {
        let mut batch = Batch::default();
        batch.begin(1, 0, SendOp::Send, 8);
        batch.begin(2, 0, SendOp::Send, 8);
        batch.address(Target::Srq(5));
        assert_eq!(batch.requests().map(|(_, to)| to).collect::<Vec<_>>(), [Target::Peer, Target::Srq(5)]);
        batch.clear();
        batch.address(Target::Srq(5));
        assert_eq!(batch.error, Some(Refusal::NoRequest));
    }

    #[test]
    fn the_first_error_is_kept_until_the_batch_is_cleared() {
        let mut batch = Batch::default();
        batch.gather(&[], 1);
        assert_eq!(batch.error, Some(Refusal::NoRequest));
        batch.begin(1, 0, write(), 0);
        assert_eq!(batch.error, Some(Refusal::NoRequest));
        batch.clear();
        batch.begin(1, 0, write(), 1);
        batch.gather(&[Sge::default(); 2], 1);
        assert_eq!(batch.error, Some(Refusal::Sges(2)));
        batch.clear();
        batch.begin(1, 0, write(), 1);
        // SAFETY: an array of this test.
        unsafe { batch.copy(std::iter::once((b"four".as_ptr(), 4)), 3) };
        assert_eq!(batch.error, Some(Refusal::Inline(4)));
    }
}
