//! What the protocol needs of an adapter and of the process.

use crate::atomic::{Datatype, Operator};
use crate::hello::{Hello, Name};
use std::fmt;

/// A reliable connection of the adapter: a QP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub u32);

/// A bounce buffer: pinned memory that the port owns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot(pub u32);

/// Keys of registered memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Registered {
    pub lkey: u32,
    pub rkey: u32,
}

/// How the adapter may use memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registration {
    /// Pages are populated when they are needed; otherwise the memory is pinned.
    pub on_demand: bool,
    /// Peers may write to it, and so may this side's READs.
    pub writable: bool,
}

/// An error number of the operating system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub i32);

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        std::io::Error::from_raw_os_error(self.0).fmt(f)
    }
}

/// Where the bytes of a work request are on this side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Local {
    /// The first `len` bytes of a bounce buffer.
    Slot { slot: Slot, len: u32 },
    /// Registered memory of the program.
    Memory { addr: u64, len: u32, lkey: u32 },
}

/// A work request of the send queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work<'a> {
    Send(Local),
    /// A SEND of these bytes, which the adapter copies.
    SendInline(&'a [u8]),
    Write {
        local: Local,
        addr: u64,
        rkey: u32,
        immediate: Option<u32>,
    },
    /// A WRITE of these bytes, which the adapter copies.
    WriteInline {
        bytes: &'a [u8],
        addr: u64,
        rkey: u32,
        immediate: Option<u32>,
    },
    Read {
        local: Local,
        addr: u64,
        rkey: u32,
    },
}

/// An atomic on one element of this process's memory, on behalf of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Update {
    pub addr: u64,
    pub rkey: u32,
    pub operator: Operator,
    pub datatype: Datatype,
    /// The peer gets the value before.
    pub fetches: bool,
    /// In the low bytes, as the value before that [`Port::update`] returns.
    pub operand: u64,
    pub compare: u64,
}

/// An adapter, and the memory of the process. The functions return at once.
///
/// What the program's memory is, only the port knows: addresses come from the program and are used as they are.
pub trait Port {
    /// Registers memory of the program.
    fn register(&mut self, addr: u64, len: u64, how: Registration) -> Result<Registered, Errno>;

    /// Ends a registration.
    fn deregister(&mut self, registered: Registered);

    /// Asks for the pages of a range of registered on-demand memory, and does not wait for them.
    fn prefetch(&mut self, lkey: u32, addr: u64, len: u64, write: bool);

    /// Reports from now on by [`Self::next_gone`] when this memory of the program goes away. False: it cannot, so that a pinned
    /// registration of it must not outlive its operation.
    fn watch(&mut self, _addr: u64, _len: u64) -> bool {
        true
    }

    /// A pinned registration of this memory has ended: it need not be watched for it any more.
    fn unwatch(&mut self, _addr: u64, _len: u64) {}

    /// The next range (address, bytes) of watched memory that has gone away, or has become other memory.
    fn next_gone(&mut self) -> Option<(u64, u64)> {
        None
    }

    /// The number of pages that the adapter has lost so far. `None`: the adapter does not tell.
    fn invalidations(&mut self) -> Option<u64> {
        None
    }

    /// Provides another bounce buffer of the settings' size. `None`: no memory is left.
    fn new_slot(&mut self) -> Option<Slot>;

    /// A bounce buffer is not needed any more.
    fn free_slot(&mut self, slot: Slot);

    /// The bytes of a bounce buffer.
    fn slot(&mut self, slot: Slot) -> &mut [u8];

    /// Copies from the program's memory to a bounce buffer, from byte `at` on.
    fn copy_to_slot(&mut self, addr: u64, len: usize, slot: Slot, at: usize);

    /// Copies from a bounce buffer, from byte `at` on, to the program's memory.
    fn copy_from_slot(&mut self, slot: Slot, at: usize, addr: u64, len: usize);

    /// Copies from the program's memory.
    fn load(&mut self, addr: u64, into: &mut [u8]);

    /// Copies to the program's memory.
    fn store(&mut self, addr: u64, bytes: &[u8]);

    /// Performs an atomic on memory that the program has registered with `rkey`, and returns the value before. An error: the key
    /// does not permit it.
    fn update(&mut self, update: &Update) -> Result<u64, Errno>;

    /// Posts a work request. The endpoint never posts more than the depth that it was told. A request that is not
    /// signalled completes with the next one that is. An error ends the connection.
    fn post_send(&mut self, to: ConnectionId, id: u64, signaled: bool, work: Work<'_>) -> Result<(), Errno>;

    /// Posts a bounce buffer as a receive.
    fn post_receive(&mut self, on: ConnectionId, slot: Slot) -> Result<(), Errno>;

    /// Begins to connect to the endpoint of that name, and posts the bounce buffers as receives before the peer can
    /// send. [`crate::Endpoint::established`] or [`crate::Endpoint::refused`] follows.
    fn connect(&mut self, to: &Name, hello: &Hello, receives: &[Slot]) -> Result<ConnectionId, Errno>;

    /// Accepts a connection that [`crate::Endpoint::incoming`] was told of, and posts the bounce buffers as receives before
    /// the peer can send. [`crate::Endpoint::established`] follows.
    fn accept(&mut self, connection: ConnectionId, hello: &Hello, receives: &[Slot]) -> Result<(), Errno>;

    /// Ends a connection, whatever its state. Nothing of it is reported any more.
    fn disconnect(&mut self, connection: ConnectionId);
}
