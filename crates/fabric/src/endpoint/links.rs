//! Connections of an endpoint: QPs to peers, and one to itself.

use crate::endpoint::numbered::Numbered;
use crate::endpoint::numbers::receive_id;
use crate::endpoint::slots::Slots;
use crate::info::parse_name;
use crate::rdma::{
    Adapter, CompletionQueue, ConnectRequest, Connection, Errno, EventChannel, Listener, QueuePair, Queues,
    SelfConnection,
};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use weir_abi::{ibv_qp_cap, ibv_recv_wr, ibv_sge};
use weir_msg::{ConnectionId, Depth, HELLO_LEN, Hello, Name, Slot};

/// The listener's events carry this token; a connection's carry its number.
pub const LISTENER: u64 = u64::MAX;
/// Requests in a send queue.
const SEND_QUEUE: u32 = 256;
/// Longest inline request that is asked for, bytes.
const INLINE: u32 = 220;
/// Each step of connecting may take so long.
const STEP: Duration = Duration::from_secs(4);
/// Connection requests that may wait for this process.
const BACKLOG: i32 = 128;

/// The connections of an endpoint.
pub struct Links {
    adapter: Arc<Adapter>,
    pub channel: Arc<EventChannel>,
    pub queue: Arc<CompletionQueue>,
    listener: Listener,
    receives: u32,
    /// As many as the completion queue has room for.
    links: Numbered<Link>,
    /// Connections to the endpoint itself, which are established at once.
    ready: Vec<ConnectionId>,
}

/// A connection.
pub struct Link {
    way: Way,
    /// What this side says, or has said.
    pub hello: [u8; HELLO_LEN],
    /// Receives that are posted as soon as there is a QP.
    receives: Vec<Slot>,
    pub established: bool,
}

enum Way {
    Peer(Connection),
    Own(SelfConnection),
}

impl Link {
    /// The QP, if there is one.
    #[inline]
    pub fn qp(&self) -> Option<&QueuePair> {
        match &self.way {
            Way::Peer(connection) => connection.qp(),
            Way::Own(own) => Some(own.qp()),
        }
    }
}

impl Links {
    /// Listens at an address. `peers`: how many connections the completion queue has room for.
    pub fn new(adapter: &Arc<Adapter>, address: SocketAddr, receives: u16, peers: u32) -> Result<Links, Errno> {
        let channel = EventChannel::new()?;
        let listener = Listener::bind(&channel, address, BACKLOG, LISTENER)?;
        let receives = u32::from(receives);
        let wanted = (SEND_QUEUE + receives).saturating_mul(peers).min(adapter.attributes().max_cqe);
        let queue = CompletionQueue::new(adapter, wanted as usize, true)?;
        let most = (wanted / (SEND_QUEUE + receives)) as usize;
        let (links, ready) = (Numbered::new(most), Vec::new());
        Ok(Links { adapter: adapter.clone(), channel, queue, listener, receives, links, ready })
    }

    /// Where peers connect.
    pub fn address(&self) -> SocketAddr {
        self.listener.local_address()
    }

    /// A connection.
    #[inline]
    pub fn get(&self, id: ConnectionId) -> Option<&Link> {
        self.links.get(id.0)
    }

    /// A connection, to change it.
    pub fn get_mut(&mut self, id: ConnectionId) -> Option<&mut Link> {
        self.links.get_mut(id.0)
    }

    /// Begins to connect.
    pub fn connect(
        &mut self,
        slots: &Slots,
        to: &Name,
        hello: &Hello,
        receives: &[Slot],
    ) -> Result<ConnectionId, Errno> {
        let destination = parse_name(to.as_bytes()).ok_or(Errno(libc::EINVAL))?;
        let id = self.next_number()?;
        let (own, established) = (destination == self.address(), false);
        let (hello, receives) = (hello.emit(), receives.to_vec());
        if own {
            let way = Way::Own(SelfConnection::new(&self.adapter, &self.queues())?);
            let link = Link { way, hello, receives, established };
            link.post_receives(slots, id)?;
            self.links.insert(link);
            self.ready.push(id);
            return Ok(id);
        }
        let mut source = self.address();
        source.set_port(0);
        let (channel, adapter) = (&self.channel, &self.adapter);
        let connection = Connection::connect_start(channel, adapter, source, destination, STEP, id.0.into())?;
        self.links.insert(Link { way: Way::Peer(connection), hello, receives, established });
        Ok(id)
    }

    /// A peer asks for a connection: its number here.
    pub fn incoming(&mut self, request: ConnectRequest) -> Result<ConnectionId, Errno> {
        let id = self.next_number()?;
        let connection = Connection::from_request(request, &self.adapter, id.0.into())?;
        let (way, hello, receives, established) = (Way::Peer(connection), [0; HELLO_LEN], Vec::new(), false);
        self.links.insert(Link { way, hello, receives, established });
        Ok(id)
    }

    /// Accepts a connection.
    pub fn accept(&mut self, slots: &Slots, id: ConnectionId, hello: &Hello, receives: &[Slot]) -> Result<(), Errno> {
        let queues = self.queues();
        let link = self.get_mut(id).ok_or(Errno(libc::ENOTCONN))?;
        link.receives = receives.to_vec();
        link.with_qp(slots, id, &queues)?.accept(&hello.emit())
    }

    /// Refuses a connection.
    pub fn reject(&mut self, id: ConnectionId, code: u8) {
        if let Some(Link { way: Way::Peer(connection), .. }) = self.take(id) {
            // A peer that does not hear of it gives up by itself.
            let _ = connection.reject(&[code]);
        }
    }

    /// The next step of connecting: an address is resolved.
    pub fn resolve_route(&mut self, id: ConnectionId) -> Result<(), Errno> {
        match self.get(id) {
            Some(Link { way: Way::Peer(connection), .. }) => connection.resolve_route(STEP),
            _ => Ok(()),
        }
    }

    /// The next step of connecting: a route is resolved.
    pub fn send_request(&mut self, slots: &Slots, id: ConnectionId) -> Result<(), Errno> {
        let queues = self.queues();
        let Some(link) = self.get_mut(id) else { return Ok(()) };
        let hello = link.hello;
        link.with_qp(slots, id, &queues)?.connect(&hello)
    }

    /// Takes a connection out; dropping it ends it.
    pub fn take(&mut self, id: ConnectionId) -> Option<Link> {
        self.links.take(id.0)
    }

    /// The next connection to the endpoint itself that is established.
    pub fn next_ready(&mut self) -> Option<ConnectionId> {
        self.ready.pop()
    }

    /// Whether connections are being established.
    pub fn is_connecting(&self) -> bool {
        self.links.iter().any(|link| !link.established)
    }

    /// What a connection's QP has been granted.
    pub fn depth(&self, id: ConnectionId) -> Depth {
        let caps = self.get(id).and_then(Link::qp).map(|qp| *qp.caps());
        let (requests, inline) = caps.map_or((1, 0), |caps| (caps.max_send_wr, caps.max_inline_data));
        // More than was asked for may be granted, for which the completion queue has no room.
        Depth { requests: requests.min(SEND_QUEUE) as usize, inline: inline as usize }
    }

    /// The number of another connection. ENOBUFS: there are as many as can be.
    fn next_number(&self) -> Result<ConnectionId, Errno> {
        self.links.next_number().map(ConnectionId).ok_or(Errno(libc::ENOBUFS))
    }

    fn queues(&self) -> Queues {
        let attributes = self.adapter.attributes();
        let max_send_wr = SEND_QUEUE.min(attributes.max_qp_wr);
        let max_recv_wr = self.receives.min(attributes.max_qp_wr);
        let caps = ibv_qp_cap { max_send_wr, max_recv_wr, max_send_sge: 1, max_recv_sge: 1, max_inline_data: INLINE };
        Queues { send_cq: self.queue.clone(), recv_cq: self.queue.clone(), caps }
    }
}

impl Link {
    /// Makes the QP, and posts its receives.
    fn with_qp(&self, slots: &Slots, id: ConnectionId, queues: &Queues) -> Result<&Connection, Errno> {
        let Way::Peer(connection) = &self.way else { return Err(Errno(libc::EINVAL)) };
        let less = Queues { caps: ibv_qp_cap { max_inline_data: 0, ..queues.caps }, ..queues.clone() };
        // Not all adapters have as much room inline.
        connection.create_qp(queues).or_else(|_| connection.create_qp(&less))?;
        self.post_receives(slots, id)?;
        Ok(connection)
    }

    fn post_receives(&self, slots: &Slots, id: ConnectionId) -> Result<(), Errno> {
        self.receives.iter().try_for_each(|&slot| self.post_receive(slots, id, slot))
    }

    /// Posts a bounce buffer as a receive.
    pub fn post_receive(&self, slots: &Slots, id: ConnectionId, slot: Slot) -> Result<(), Errno> {
        let qp = self.qp().ok_or(Errno(libc::ENOTCONN))?;
        let (addr, lkey) = slots.local(slot);
        let mut sge = ibv_sge { addr, length: slots.size() as u32, lkey };
        let wr_id = receive_id(id, slot);
        let mut request = ibv_recv_wr { wr_id, next: std::ptr::null_mut(), sg_list: &mut sge, num_sge: 1 };
        // SAFETY: the buffer is the endpoint's, and lives longer than the QP.
        unsafe { qp.post_recv(&mut request) }
    }
}
