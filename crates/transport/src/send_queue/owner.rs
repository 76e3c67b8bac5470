//! Which requests of a send queue are the program's, and which the adapter's.

/// The origin of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    Program,
    /// The READ of a rendezvous. Only its failure completes the tag.
    Read,
    /// The SEND at the end of a rendezvous: it completes the tag.
    Fin,
    /// The same, where the request of the rendezvous had the solicited bit.
    SolicitedFin,
    /// The same, after its READ has failed and completed the tag.
    FailedFin,
}

/// The requests of the adapter in a send queue.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct OwnRequests {
    /// The most of them in the queue.
    pub limit: u32,
    /// Those in the queue.
    pub queued: u32,
    /// Those that have been retired, wrapping.
    pub retired: u32,
}
