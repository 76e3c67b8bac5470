//! An open device and its protection domain.

use crate::rdma::attributes::Attributes;
use crate::rdma::channel::EventChannel;
use crate::rdma::errno::{Errno, check_object};
use crate::rdma::id::Id;
use crate::rdma::libraries::Libraries;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use weir_abi::{ibv_context, ibv_pd};

/// The device of a local address, with a PD.
pub struct Adapter {
    pub(crate) libraries: &'static Libraries,
    pub(crate) context: *mut ibv_context,
    pub(crate) pd: *mut ibv_pd,
    attributes: Attributes,
    address: IpAddr,
    /// librdmacm's device stays open as long as an id is bound to it.
    _id: Id,
}

// SAFETY: verbs may be called by several threads.
unsafe impl Send for Adapter {}
// SAFETY: as above.
unsafe impl Sync for Adapter {}

impl Adapter {
    /// Opens the device of a local address, with any port. ENODEV: no device has the address.
    pub fn open(address: SocketAddr) -> Result<Arc<Adapter>, Errno> {
        let channel = EventChannel::new()?;
        let id = Id::create(&channel, 0)?;
        let mut bound = address;
        bound.set_port(0);
        id.bind(bound)?;
        let context = id.context();
        if context.is_null() {
            return Err(Errno(libc::ENODEV));
        }
        let libraries = channel.libraries;
        // SAFETY: the device is open as long as the id.
        let attributes = unsafe { Attributes::query(libraries, context, id.port_num()) }?;
        // SAFETY: as above.
        let pd = check_object(unsafe { (libraries.ibv_alloc_pd)(context) })?;
        Ok(Arc::new(Adapter { libraries, context, pd, attributes, address: address.ip(), _id: id }))
    }

    /// As they were when the adapter was opened.
    pub fn attributes(&self) -> &Attributes {
        &self.attributes
    }

    /// The local address that led to the device.
    pub fn address(&self) -> IpAddr {
        self.address
    }
}

impl Drop for Adapter {
    fn drop(&mut self) {
        // SAFETY: regions, CQs and QPs hold the adapter, so there are none. The id is dropped after this.
        unsafe { (self.libraries.ibv_dealloc_pd)(self.pd) };
    }
}
