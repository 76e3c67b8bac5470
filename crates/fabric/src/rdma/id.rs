//! `rdma_cm_id`.

use crate::rdma::address::{from_sockaddr, to_storage};
use crate::rdma::channel::EventChannel;
use crate::rdma::cm_types::{RDMA_PS_TCP, rdma_cm_id};
use crate::rdma::errno::{Errno, check};
use crate::rdma::libraries::Libraries;
use std::ffi::{c_int, c_void};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};
use weir_abi::ibv_context;

/// A cm id with the QP that was created on it, if there is one. Its `context` is its owner's token.
pub(crate) struct Id {
    raw: *mut rdma_cm_id,
    channel: Arc<EventChannel>,
}

// SAFETY: each call for the id is made with the channel's lock held.
unsafe impl Send for Id {}
// SAFETY: as above.
unsafe impl Sync for Id {}

impl Id {
    pub fn create(channel: &Arc<EventChannel>, token: u64) -> Result<Id, Errno> {
        let mut raw = std::ptr::null_mut();
        let context = std::ptr::without_provenance_mut::<c_void>(token as usize);
        let _calls = channel.lock();
        // SAFETY: the channel exists as long as the id.
        check(unsafe { (channel.libraries.rdma_create_id)(channel.raw, &mut raw, context, RDMA_PS_TCP) })?;
        Ok(Id { raw, channel: channel.clone() })
    }

    /// The id of a connection request.
    ///
    /// # Safety
    /// An id of the channel that nothing else destroys.
    pub unsafe fn adopt(raw: *mut rdma_cm_id, channel: &Arc<EventChannel>) -> Id {
        Id { raw, channel: channel.clone() }
    }

    /// Binds the id to a local address; a device's address leads to the device.
    pub fn bind(&self, address: SocketAddr) -> Result<(), Errno> {
        let mut storage = to_storage(address);
        self.call(|libraries, id| {
            // SAFETY: the id exists, and the library copies the address.
            unsafe { (libraries.rdma_bind_addr)(id, (&raw mut storage).cast()) }
        })
    }

    /// Makes one call for the id.
    pub fn call(&self, call: impl FnOnce(&Libraries, *mut rdma_cm_id) -> c_int) -> Result<(), Errno> {
        let _calls = self.channel.lock();
        check(call(self.channel.libraries, self.raw))
    }

    /// The open device; NULL until the id is bound to it.
    pub fn context(&self) -> *mut ibv_context {
        let _calls = self.channel.lock();
        // SAFETY: the id exists.
        unsafe { (*self.raw).verbs }
    }

    pub fn port_num(&self) -> u8 {
        let _calls = self.channel.lock();
        // SAFETY: the id exists.
        unsafe { (*self.raw).port_num }
    }

    /// The addresses of this side and the peer, if they are known.
    pub fn addresses(&self) -> [Option<SocketAddr>; 2] {
        let _calls = self.channel.lock();
        // SAFETY: the id exists; its storage is large enough for every kind of address.
        unsafe {
            let addresses = &raw const (*self.raw).route.addr;
            [from_sockaddr((&raw const (*addresses).src).cast()), from_sockaddr((&raw const (*addresses).dst).cast())]
        }
    }

    pub fn set_token(&self, token: u64) {
        let _calls = self.channel.lock();
        // SAFETY: the id exists, and its context is this crate's variable.
        let context = unsafe { AtomicPtr::from_ptr(&raw mut (*self.raw).context) };
        context.store(std::ptr::without_provenance_mut(token as usize), Relaxed);
    }

    /// A number that no other existing id has.
    pub fn number(&self) -> usize {
        self.raw.addr()
    }
}

impl Drop for Id {
    fn drop(&mut self) {
        let _calls = self.channel.lock();
        // SAFETY: no thread is taking an event, and all that were taken are acknowledged, so this does not wait. The
        // holder of a QP drops its id before the CQs.
        unsafe {
            if !(*self.raw).qp.is_null() {
                (self.channel.libraries.rdma_destroy_qp)(self.raw);
            }
            (self.channel.libraries.rdma_destroy_id)(self.raw);
        }
    }
}
