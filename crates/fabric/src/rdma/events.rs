//! Connection events.

use crate::rdma::address::from_sockaddr;
use crate::rdma::channel::EventChannel;
use crate::rdma::cm_types::*;
use crate::rdma::errno::Errno;
use crate::rdma::id::Id;
use std::ffi::c_int;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

/// An event of a listener or a connection.
#[derive(Debug)]
pub struct Event {
    /// The owner's token of the listener or the connection; a connection request has that of its listener.
    pub token: u64,
    /// `Connection::id` or `Listener::id`; that of the new connection in a connection request.
    pub id: usize,
    pub kind: EventKind,
}

/// What has happened. Private data may have zero bytes after those that the peer sent.
#[derive(Debug)]
pub enum EventKind {
    AddressResolved,
    AddressError(Errno),
    RouteResolved,
    RouteError(Errno),
    ConnectRequest(ConnectRequest),
    ConnectError(Errno),
    Established {
        /// What the peer has accepted with; empty on the side that accepted.
        private_data: Vec<u8>,
    },
    /// The peer rejects the connection. `reason` 28: the peer's program did; 8: no listener (IBTA 12.6.7.2).
    Rejected {
        reason: c_int,
        private_data: Vec<u8>,
    },
    Unreachable(Errno),
    Disconnected,
    TimewaitExit,
    DeviceRemoval,
    /// Another `RDMA_CM_EVENT_…`.
    Other(c_int),
}

/// A peer's request for a connection. Dropping it rejects it.
pub struct ConnectRequest {
    pub private_data: Vec<u8>,
    pub peer: SocketAddr,
    pub local: SocketAddr,
    /// How many READs and atomics at a time the peer wants to send.
    pub responder_resources: u8,
    /// How many READs and atomics at a time the peer allows.
    pub initiator_depth: u8,
    pub(crate) id: Id,
}

impl std::fmt::Debug for ConnectRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ConnectRequest").field("peer", &self.peer).field("local", &self.local).finish_non_exhaustive()
    }
}

impl ConnectRequest {
    /// The peer's event has this private data, of 148 bytes at most.
    pub fn reject(self, private_data: &[u8]) -> Result<(), Errno> {
        reject(&self.id, private_data)
    }
}

/// `rdma_reject`.
pub(crate) fn reject(id: &Id, private_data: &[u8]) -> Result<(), Errno> {
    /// Private data of a REJ (IBTA 12.6.7).
    const MOST: usize = 148;
    if private_data.len() > MOST {
        return Err(Errno(libc::EINVAL));
    }
    id.call(|libraries, id| {
        // SAFETY: the id exists, and the library copies the data.
        unsafe { (libraries.rdma_reject)(id, private_data.as_ptr().cast(), private_data.len() as u8) }
    })
}

impl EventChannel {
    /// The next event, if there is one.
    pub fn next(self: &Arc<Self>) -> Result<Option<Event>, Errno> {
        let _calls = self.lock();
        let mut taken = std::ptr::null_mut();
        // SAFETY: the channel exists, and the library fills the variable.
        while unsafe { (self.libraries.rdma_get_cm_event)(self.raw, &mut taken) } != 0 {
            match Errno::last() {
                Errno(libc::EAGAIN) => return Ok(None),
                Errno(libc::EINTR) => {}
                error => return Err(error),
            }
        }
        // SAFETY: the event and its id exist until it is acknowledged.
        let event = unsafe { self.owned(&*taken) };
        // SAFETY: the event that was taken, once; nothing refers to it any more.
        unsafe { (self.libraries.rdma_ack_cm_event)(taken) };
        Ok(Some(event))
    }

    /// # Safety
    /// An event of this channel that is not acknowledged.
    unsafe fn owned(self: &Arc<Self>, event: &rdma_cm_event) -> Event {
        let error = || Errno(event.status.saturating_abs());
        let kind = match event.event {
            RDMA_CM_EVENT_ADDR_RESOLVED => EventKind::AddressResolved,
            RDMA_CM_EVENT_ADDR_ERROR => EventKind::AddressError(error()),
            RDMA_CM_EVENT_ROUTE_RESOLVED => EventKind::RouteResolved,
            RDMA_CM_EVENT_ROUTE_ERROR => EventKind::RouteError(error()),
            // SAFETY: a connection request, as the caller says.
            RDMA_CM_EVENT_CONNECT_REQUEST => EventKind::ConnectRequest(unsafe { self.request(event) }),
            RDMA_CM_EVENT_CONNECT_ERROR => EventKind::ConnectError(error()),
            RDMA_CM_EVENT_UNREACHABLE => EventKind::Unreachable(error()),
            RDMA_CM_EVENT_REJECTED => {
                // SAFETY: an event of a connection.
                EventKind::Rejected { reason: event.status, private_data: unsafe { private_data(event) } }
            }
            // SAFETY: an event of a connection.
            RDMA_CM_EVENT_ESTABLISHED => EventKind::Established { private_data: unsafe { private_data(event) } },
            RDMA_CM_EVENT_DISCONNECTED => EventKind::Disconnected,
            RDMA_CM_EVENT_TIMEWAIT_EXIT => EventKind::TimewaitExit,
            RDMA_CM_EVENT_DEVICE_REMOVAL => EventKind::DeviceRemoval,
            other => EventKind::Other(other),
        };
        // SAFETY: the id exists until the event is acknowledged. A new id has its listener's context.
        Event { token: unsafe { (*event.id).context }.addr() as u64, id: event.id.addr(), kind }
    }

    /// # Safety
    /// A connection request that is not acknowledged.
    unsafe fn request(self: &Arc<Self>, event: &rdma_cm_event) -> ConnectRequest {
        const UNKNOWN: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);
        // SAFETY: the event's new id is this crate's from now on; its storage is large enough for every address. (The
        // methods of `Id` would take the lock, which the caller holds.)
        unsafe {
            let addresses = &raw const (*event.id).route.addr;
            ConnectRequest {
                private_data: private_data(event),
                peer: from_sockaddr((&raw const (*addresses).dst).cast()).unwrap_or(UNKNOWN),
                local: from_sockaddr((&raw const (*addresses).src).cast()).unwrap_or(UNKNOWN),
                responder_resources: event.param.conn.responder_resources,
                initiator_depth: event.param.conn.initiator_depth,
                id: Id::adopt(event.id, self),
            }
        }
    }
}

/// # Safety
/// An event of a connection that is not acknowledged.
unsafe fn private_data(event: &rdma_cm_event) -> Vec<u8> {
    // SAFETY: the library has set the address and the length of the data, which are in the event's own memory.
    unsafe {
        let conn = event.param.conn;
        if conn.private_data.is_null() {
            return vec![];
        }
        std::slice::from_raw_parts(conn.private_data.cast::<u8>(), conn.private_data_len.into()).to_vec()
    }
}
