//! Completion queues.

use crate::rdma::adapter::Adapter;
use crate::rdma::descriptor::set_nonblocking;
use crate::rdma::errno::{Errno, check_object};
use crate::rdma::tables;
use std::ffi::c_int;
use std::os::fd::RawFd;
use std::sync::Arc;
use weir_abi::{ibv_comp_channel, ibv_cq, ibv_wc};

/// What [`CompletionQueue::poll`] overwrites.
pub const EMPTY_COMPLETION: ibv_wc = ibv_wc {
    wr_id: 0,
    status: 0,
    opcode: 0,
    vendor_err: 0,
    byte_len: 0,
    imm_data: 0,
    qp_num: 0,
    src_qp: 0,
    wc_flags: 0,
    pkey_index: 0,
    slid: 0,
    sl: 0,
    dlid_path_bits: 0,
};

/// A CQ, with a completion channel of its own if it was created with one.
pub struct CompletionQueue {
    pub(crate) adapter: Arc<Adapter>,
    pub(crate) raw: *mut ibv_cq,
    capacity: usize,
    channel: Option<Channel>,
}

// SAFETY: verbs may be called by several threads.
unsafe impl Send for CompletionQueue {}
// SAFETY: as above.
unsafe impl Sync for CompletionQueue {}

impl CompletionQueue {
    /// A CQ for at least so many completions. The descriptor of its channel, if any, never blocks.
    pub fn new(adapter: &Arc<Adapter>, capacity: usize, with_channel: bool) -> Result<Arc<CompletionQueue>, Errno> {
        let capacity = c_int::try_from(capacity.max(1)).map_err(|_| Errno(libc::EINVAL))?;
        let channel = with_channel.then(|| Channel::new(adapter)).transpose()?;
        let notified = channel.as_ref().map_or(std::ptr::null_mut(), |channel| channel.raw);
        // SAFETY: the device and the channel exist longer than the CQ.
        let raw = check_object(unsafe {
            (adapter.libraries.ibv_create_cq)(adapter.context, capacity, std::ptr::null_mut(), notified, 0)
        })?;
        // SAFETY: the new CQ.
        let capacity = unsafe { (*raw).cqe }.max(0) as usize;
        Ok(Arc::new(CompletionQueue { adapter: adapter.clone(), raw, capacity, channel }))
    }

    /// How many completions there is room for.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    pub fn adapter(&self) -> &Arc<Adapter> {
        &self.adapter
    }

    /// Takes completions; returns how many.
    #[inline]
    pub fn poll(&self, completions: &mut [ibv_wc]) -> Result<usize, Errno> {
        // SAFETY: the CQ exists.
        unsafe { tables::poll(self.raw, completions) }
    }

    /// The next completion makes the channel's descriptor readable. Completions that are in the CQ already may not: poll
    /// once more afterwards.
    pub fn request_notification(&self) -> Result<(), Errno> {
        // SAFETY: the CQ exists.
        unsafe { tables::request_notification(self.raw, false) }
    }

    /// The channel's descriptor.
    pub fn channel_fd(&self) -> Option<RawFd> {
        // SAFETY: the channel exists.
        self.channel.as_ref().map(|channel| unsafe { (*channel.raw).fd })
    }

    /// Takes and acknowledges all notifications; returns how many.
    pub fn take_notifications(&self) -> Result<usize, Errno> {
        let Some(channel) = &self.channel else { return Ok(0) };
        let libraries = self.adapter.libraries;
        let mut taken = 0;
        loop {
            let (mut cq, mut context) = (std::ptr::null_mut(), std::ptr::null_mut());
            // SAFETY: the channel exists, and only this CQ uses it; the library fills the variables.
            if unsafe { (libraries.ibv_get_cq_event)(channel.raw, &mut cq, &mut context) } == 0 {
                // SAFETY: the CQ of the event, once.
                unsafe { (libraries.ibv_ack_cq_events)(cq, 1) };
                taken += 1;
                continue;
            }
            match Errno::last() {
                Errno(libc::EAGAIN) => return Ok(taken),
                Errno(libc::EINTR) => {}
                error => return Err(error),
            }
        }
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        // SAFETY: QPs hold the CQ, so there are none, and all events are acknowledged. The channel is dropped after this.
        unsafe { (self.adapter.libraries.ibv_destroy_cq)(self.raw) };
    }
}

/// A completion channel.
struct Channel {
    adapter: Arc<Adapter>,
    raw: *mut ibv_comp_channel,
}

impl Channel {
    fn new(adapter: &Arc<Adapter>) -> Result<Channel, Errno> {
        // SAFETY: the device is open as long as the adapter.
        let raw = check_object(unsafe { (adapter.libraries.ibv_create_comp_channel)(adapter.context) })?;
        let channel = Channel { adapter: adapter.clone(), raw };
        // SAFETY: the new channel.
        set_nonblocking(unsafe { (*raw).fd })?;
        Ok(channel)
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: the channel's CQ is destroyed.
        unsafe { (self.adapter.libraries.ibv_destroy_comp_channel)(self.raw) };
    }
}
