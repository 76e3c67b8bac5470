//! Listening for connection requests.

use crate::rdma::channel::EventChannel;
use crate::rdma::errno::Errno;
use crate::rdma::id::Id;
use std::ffi::c_int;
use std::net::SocketAddr;
use std::sync::Arc;

/// A cm id that listens. Its requests are events of the channel.
pub struct Listener {
    id: Id,
    address: SocketAddr,
}

impl Listener {
    /// Listens at an address, which may be unspecified; port 0: a free port.
    pub fn bind(
        channel: &Arc<EventChannel>,
        address: SocketAddr,
        backlog: c_int,
        token: u64,
    ) -> Result<Listener, Errno> {
        let id = Id::create(channel, token)?;
        id.bind(address)?;
        // SAFETY: the id exists.
        id.call(|libraries, id| unsafe { (libraries.rdma_listen)(id, backlog) })?;
        let [local, _] = id.addresses();
        Ok(Listener { id, address: local.unwrap_or(address) })
    }

    /// With the port that was chosen.
    pub fn local_address(&self) -> SocketAddr {
        self.address
    }

    /// A number that no other existing listener or connection has.
    pub fn id(&self) -> usize {
        self.id.number()
    }
}
