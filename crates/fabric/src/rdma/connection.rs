//! Connections of librdmacm.

use crate::rdma::adapter::Adapter;
use crate::rdma::address::to_storage;
use crate::rdma::channel::EventChannel;
use crate::rdma::cm_types::rdma_conn_param;
use crate::rdma::errno::Errno;
use crate::rdma::events::{self, ConnectRequest};
use crate::rdma::id::Id;
use crate::rdma::queue_pair::{QueuePair, Queues};
use std::ffi::c_int;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use weir_abi::{ibv_recv_wr, ibv_send_wr};

/// Bytes of private data of a connection request, beside what the addresses take (IBTA annex A11).
pub const MAX_CONNECT_DATA: usize = 56;
/// Bytes of private data of an acceptance (IBTA 12.6.8).
const MAX_ACCEPT_DATA: usize = 196;
/// READs and atomics at a time, if the device allows so many.
const MAX_READS: u8 = 16;

/// A cm id with an RC QP. It may be dropped in any state.
///
/// The side that connects: [`connect_start`](Self::connect_start), event `AddressResolved`,
/// [`resolve_route`](Self::resolve_route), event `RouteResolved`, [`create_qp`](Self::create_qp),
/// [`connect`](Self::connect), event `Established`. The side that accepts: [`from_request`](Self::from_request),
/// [`create_qp`](Self::create_qp), [`accept`](Self::accept), event `Established`.
pub struct Connection {
    // The id is dropped first, with the QP; then the CQs and the adapter.
    id: Id,
    qp: OnceLock<QueuePair>,
    adapter: Arc<Adapter>,
    /// READs and atomics at a time that the peer may send, and that this side may.
    responder_resources: u8,
    initiator_depth: u8,
}

impl Connection {
    /// Begins to resolve the destination's address, from a local address of the adapter. EXDEV: the local address belongs
    /// to another device.
    pub fn connect_start(
        channel: &Arc<EventChannel>,
        adapter: &Arc<Adapter>,
        source: SocketAddr,
        destination: SocketAddr,
        timeout: Duration,
        token: u64,
    ) -> Result<Connection, Errno> {
        let id = Id::create(channel, token)?;
        id.bind(source)?;
        let connection = Connection::new(id, adapter, MAX_READS, MAX_READS)?;
        let mut storage = to_storage(destination);
        connection.id.call(|libraries, id| {
            let destination = (&raw mut storage).cast();
            // SAFETY: the id exists, and the library copies the address.
            unsafe { (libraries.rdma_resolve_addr)(id, std::ptr::null_mut(), destination, milliseconds(timeout)) }
        })?;
        Ok(connection)
    }

    /// The connection of a request, with a token of its own. EXDEV: the request came to another device; it is rejected.
    pub fn from_request(request: ConnectRequest, adapter: &Arc<Adapter>, token: u64) -> Result<Connection, Errno> {
        request.id.set_token(token);
        Connection::new(request.id, adapter, request.responder_resources, request.initiator_depth)
    }

    fn new(id: Id, adapter: &Arc<Adapter>, resources: u8, depth: u8) -> Result<Connection, Errno> {
        if id.context() != adapter.context {
            return Err(Errno(libc::EXDEV));
        }
        let device = adapter.attributes();
        Ok(Connection {
            id,
            qp: OnceLock::new(),
            adapter: adapter.clone(),
            responder_resources: resources.min(device.max_responder_resources).min(MAX_READS),
            initiator_depth: depth.min(device.max_initiator_depth).min(MAX_READS),
        })
    }

    /// After `AddressResolved`.
    pub fn resolve_route(&self, timeout: Duration) -> Result<(), Errno> {
        // SAFETY: the id exists.
        self.id.call(|libraries, id| unsafe { (libraries.rdma_resolve_route)(id, milliseconds(timeout)) })
    }

    /// Creates the QP, once, before [`connect`](Self::connect) or [`accept`](Self::accept).
    pub fn create_qp(&self, queues: &Queues) -> Result<&QueuePair, Errno> {
        let mut init = queues.init(&self.adapter)?;
        let mut qp = Err(Errno(libc::EEXIST));
        self.id.call(|libraries, id| {
            // SAFETY: the id exists. Its QP and the CQs exist as long as this connection, in which there is no QP yet:
            // the id has none, and only the holder of the channel's lock creates it.
            unsafe {
                if !(*id).qp.is_null() {
                    return libc::EEXIST;
                }
                let returned = (libraries.rdma_create_qp)(id, self.adapter.pd, &mut init);
                if returned == 0 {
                    let new = QueuePair::new((*id).qp, queues, init.cap);
                    qp = Ok(self.qp.get_or_init(|| new));
                }
                returned
            }
        })?;
        qp
    }

    /// Sends the connection request, after `RouteResolved`. `private_data` has [`MAX_CONNECT_DATA`] bytes at most.
    pub fn connect(&self, private_data: &[u8]) -> Result<(), Errno> {
        let mut parameters = self.parameters(private_data, MAX_CONNECT_DATA)?;
        // SAFETY: the id exists, and the library copies the parameters and the data.
        self.id.call(|libraries, id| unsafe { (libraries.rdma_connect)(id, &mut parameters) })
    }

    /// Accepts a request. `private_data` has 196 bytes at most.
    pub fn accept(&self, private_data: &[u8]) -> Result<(), Errno> {
        let mut parameters = self.parameters(private_data, MAX_ACCEPT_DATA)?;
        // SAFETY: as above.
        self.id.call(|libraries, id| unsafe { (libraries.rdma_accept)(id, &mut parameters) })
    }

    /// Rejects a request. `private_data` has 148 bytes at most.
    pub fn reject(&self, private_data: &[u8]) -> Result<(), Errno> {
        events::reject(&self.id, private_data)
    }

    /// Ends the connection: the QP is in the error state, and the peer gets `Disconnected`. This side gets it when the
    /// peer has called this too or has dropped its connection, or after librdmacm's retries.
    pub fn disconnect(&self) -> Result<(), Errno> {
        // SAFETY: the id exists.
        self.id.call(|libraries, id| unsafe { (libraries.rdma_disconnect)(id) })
    }

    /// The QP, if it was created.
    #[inline]
    pub fn qp(&self) -> Option<&QueuePair> {
        self.qp.get()
    }

    pub fn qp_num(&self) -> Option<u32> {
        self.qp().map(QueuePair::number)
    }

    /// Sets the QP to the error state: all its requests complete with an error.
    pub fn fail(&self) -> Result<(), Errno> {
        self.qp().ok_or(Errno(libc::ENOTCONN))?.fail()
    }

    /// Posts a list of send requests.
    ///
    /// # Safety
    /// As [`QueuePair::post_send`].
    #[inline]
    pub unsafe fn post_send(&self, request: &mut ibv_send_wr) -> Result<(), Errno> {
        // SAFETY: the caller's request.
        unsafe { self.qp().ok_or(Errno(libc::ENOTCONN))?.post_send(request) }
    }

    /// Posts a list of receive requests, from the time that the QP exists.
    ///
    /// # Safety
    /// As [`QueuePair::post_recv`].
    #[inline]
    pub unsafe fn post_recv(&self, request: &mut ibv_recv_wr) -> Result<(), Errno> {
        // SAFETY: the caller's request.
        unsafe { self.qp().ok_or(Errno(libc::ENOTCONN))?.post_recv(request) }
    }

    /// A number that no other existing listener or connection has.
    pub fn id(&self) -> usize {
        self.id.number()
    }

    /// The local address, once it is known.
    pub fn local_address(&self) -> Option<SocketAddr> {
        self.id.addresses()[0]
    }

    /// The peer's address, once it is known.
    pub fn peer_address(&self) -> Option<SocketAddr> {
        self.id.addresses()[1]
    }

    pub fn adapter(&self) -> &Arc<Adapter> {
        &self.adapter
    }

    fn parameters(&self, private_data: &[u8], most: usize) -> Result<rdma_conn_param, Errno> {
        if private_data.len() > most {
            return Err(Errno(libc::EINVAL));
        }
        Ok(rdma_conn_param {
            private_data: private_data.as_ptr().cast(),
            private_data_len: private_data.len() as u8,
            responder_resources: self.responder_resources,
            initiator_depth: self.initiator_depth,
            flow_control: 1,
            retry_count: 7,
            rnr_retry_count: 7,
            srq: 0,
            qp_num: 0,
        })
    }
}

fn milliseconds(timeout: Duration) -> c_int {
    timeout.as_millis().min(c_int::MAX as u128) as c_int
}
