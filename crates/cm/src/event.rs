//! What a process learns about its connections.

use crate::{Address, ConnectionId, RejectReason, Reply, Request, SidrReply, SidrRequest};

/// Something happened to a connection. Private data has the length of its field in the message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A peer asks for a connection. The caller finds the listener of the request's service ID, and accepts, rejects
    /// (without a listener: [`RejectReason::INVALID_SERVICE_ID`]), delays or ignores the request.
    Request { id: ConnectionId, from: Address, request: Box<Request> },
    /// The peer accepted: the caller connects its QP and calls `ready`, or rejects.
    Reply { id: ConnectionId, reply: Box<Reply> },
    /// The peer is ready: the connection that the caller accepted is established.
    Established { id: ConnectionId, private: Vec<u8> },
    /// The peer rejected or gave up, or its connection is stale. It can come in every state before disconnection.
    Rejected { id: ConnectionId, reason: RejectReason, ari: Vec<u8>, private: Vec<u8> },
    /// The peer disconnects: the caller answers by `disconnect`.
    DisconnectRequest { id: ConnectionId, private: Vec<u8> },
    /// The peer confirmed the caller's disconnection, or did not answer (`timed_out`).
    Disconnected { id: ConnectionId, timed_out: bool, private: Vec<u8> },
    /// The peer does not answer to the caller's request or reply.
    Unreachable { id: ConnectionId },
    /// No packet of the connection can be on its way any more: its QP can be used again.
    TimewaitExit { id: ConnectionId },
    /// The peer needs up to 4.096 µs · 2^`service_timeout` to answer.
    Delayed { id: ConnectionId, service_timeout: u8, private: Vec<u8> },
    /// A peer asks for the QP of a service.
    ServiceRequest { id: ConnectionId, from: Address, request: SidrRequest },
    /// The answer to the caller's `resolve_service`.
    ServiceReply { id: ConnectionId, reply: SidrReply },
    /// No answer to the caller's `resolve_service`.
    ServiceUnreachable { id: ConnectionId },
}

impl Event {
    /// The connection that it is about.
    pub fn id(&self) -> ConnectionId {
        match *self {
            Event::Request { id, .. }
            | Event::Reply { id, .. }
            | Event::Established { id, .. }
            | Event::Rejected { id, .. }
            | Event::DisconnectRequest { id, .. }
            | Event::Disconnected { id, .. }
            | Event::Unreachable { id }
            | Event::TimewaitExit { id }
            | Event::Delayed { id, .. }
            | Event::ServiceRequest { id, .. }
            | Event::ServiceReply { id, .. }
            | Event::ServiceUnreachable { id } => id,
        }
    }
}
