//! The operations of MultiEdge (thesis 2.1.1 and 2.5.1), and the pieces of which their packets consist.

use bitflags::bitflags;

/// What an operation does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Bytes go from this process to the peer's.
    Write,
    /// Bytes come from the peer's process to this one.
    Read,
}

bitflags! {
    /// What an operation asks for.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct Flags: u32 {
        /// It is performed after all earlier ones of this side.
        const BACKWARD_FENCE = 1 << 0;
        /// It is performed before all later ones of this side.
        const FORWARD_FENCE = 1 << 1;
        /// A WRITE: the peer is told when it has been performed.
        const NOTIFY = 1 << 2;
    }
}

/// An operation on the peer's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Operation {
    pub kind: Kind,
    /// Address in the peer's process.
    pub remote: u64,
    /// Address in this process.
    pub local: u64,
    pub bytes: u32,
    pub flags: Flags,
}

/// Why an operation failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Failure {
    #[error("the peer has no such memory, or does not allow it to be used")]
    Remote,
    #[error("this process has no such memory")]
    Local,
}

/// Bytes could not be read or written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fault;

/// The memory of a process. `Bytes` is what is kept of a packet's payload.
pub trait Memory {
    type Bytes;

    /// Copies bytes out of memory; `by_peer`: for the peer, which must be allowed to read them.
    fn read(&mut self, address: u64, bytes: u32, by_peer: bool) -> Result<Self::Bytes, Fault>;

    /// Copies bytes into memory; `by_peer`: for the peer, which must be allowed to write them.
    fn write(&mut self, address: u64, bytes: &Self::Bytes, by_peer: bool) -> Result<(), Fault>;

    /// A payload of no bytes.
    fn nothing(&mut self) -> Self::Bytes;
}

/// What happened to an operation, or to this process's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// An operation of this side is complete: nothing of it is under way any more. One that has failed may have written a
    /// part.
    Completed { operation: u32, result: Result<(), Failure> },
    /// The peer has performed a WRITE that it wants to be known.
    Notified { address: u64, bytes: u32 },
}
