//! A request of the program, as a connection has to know it.

/// What a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Read,
    Write,
    Send,
    /// An atomic operation, an atomic WRITE or a FLUSH: a packet.
    Atomic,
    /// It sends no packet: binding of a window, invalidation of a key.
    Local,
}

/// An address of the peer and its key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Remote {
    pub addr: u64,
    pub rkey: u32,
}

/// A request that is posted.
#[derive(Clone, Debug)]
pub struct Request<T> {
    /// It differs from those of all other requests of the QP, or completions are mistaken: programs may give many requests
    /// the same, so the caller posts another and puts the program's back into the completion.
    pub wr_id: u64,
    pub kind: Kind,
    pub bytes: u64,
    /// Of READs and WRITEs.
    pub remote: Remote,
    /// It has a completion if it succeeds.
    pub signaled: bool,
    /// It is a READ into ODP memory.
    pub on_demand: bool,
    /// The caller can post it again: its data is still where it was, and the peer takes a repetition for the same.
    pub repeatable: bool,
    /// What the caller needs to post it again.
    pub work: T,
}

impl Kind {
    /// Number of a request's PSNs (IBTA 9.7.2): a READ has one for each packet of its response.
    pub(crate) fn psns(self, bytes: u64, mtu: u32) -> u32 {
        match self {
            Kind::Local => 0,
            Kind::Atomic => 1,
            Kind::Read | Kind::Write | Kind::Send => (bytes.div_ceil(u64::from(mtu.max(1))) as u32).max(1),
        }
    }
}
