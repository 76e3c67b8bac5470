//! What a QP did with a packet, and the two sides of a QP that handle packets.

/// The result of handling a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handled {
    /// The packet was executed, or dropped.
    Done,
    /// The packet met a page fault, or follows one that did, and has changed nothing. Pass it in again after
    /// [`crate::Qp::page_resolved`], in the order in which the requests, or the responses, arrived, or of their PSNs; or drop it, as the
    /// network might. Before requests call `poll_transmit` too, so that the response to a READ leaves before later
    /// requests are executed.
    Held,
    /// The request is behind a READ, and the READ's data has not been read out; or it is behind such a request. It has
    /// changed nothing. Call [`crate::Qp::poll_responses`] or `poll_transmit`, and pass it in again when
    /// [`crate::Qp::awaits_reads`] is false, in the order in which the requests arrived, or of their PSNs: before any request that
    /// arrives later. A caller that cannot keep it calls [`crate::Qp::refuse_waiting`].
    AfterReads,
    /// The adapter lost the packet after it had arrived: packet damming. It has changed nothing, and nothing answers it.
    Dammed,
}

/// The two halves of a QP: they share the egress, and each waits for its own pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// Sends requests and takes responses.
    Requester,
    /// Takes requests and sends responses.
    Responder,
}
