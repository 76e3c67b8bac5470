//! A connection: operations on the peer's memory, and what happens to this side's.

use crate::allowed::{Access, RangeId};
use crate::driver::{Driven, Shared};
use crate::engine::Engine;
use crate::error::Error;
use crate::events::Event;
use bitflags::bitflags;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Duration;
use weir_guarded::copy;
use weir_transport::edge::{Flags, Kind, Operation};

/// The number of an operation.
pub type Handle = u32;

bitflags! {
    /// What an operation asks for.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct OperationFlags: u32 {
        /// It is performed after all earlier ones of this side.
        const BACKWARD_FENCE = 1 << 0;
        /// It is performed before all later ones of this side.
        const FORWARD_FENCE = 1 << 1;
        /// A WRITE: the peer is told when it has been performed.
        const NOTIFY = 1 << 2;
        /// A WRITE: its bytes are copied, so that the buffer may be used again when the call returns.
        const COPY = 1 << 3;
    }
}

/// A connection. Dropping it ends it: the peer is told, and its later operations fail.
pub struct Connection {
    driven: Arc<Driven>,
    number: u32,
}

impl Connection {
    pub(crate) fn new(driven: Arc<Driven>, number: u32) -> Connection {
        Connection { driven, number }
    }

    fn shared(&self) -> &Shared {
        &self.driven.shared
    }

    /// Begins an operation (MultiEdge's `RDMA_operation`): `bytes` bytes at `local` are written to `remote` in the peer's
    /// process, or read from there. Its end is an [`Event`]. `Local` if COPY is given and the bytes cannot be read.
    ///
    /// # Safety
    /// `local` may be any address: memory that is not mapped is an error of the operation. Until the operation is complete,
    /// what a READ writes must not be used otherwise, and what a WRITE reads must not be changed, but for COPY.
    pub unsafe fn operation(
        &self,
        kind: Kind,
        remote: u64,
        local: *mut u8,
        bytes: usize,
        flags: OperationFlags,
    ) -> Result<Handle, Error> {
        self.issue(kind, remote, local, bytes, flags, false)
    }

    /// Performs an operation: begins it, and waits until it is complete. Its end is not an event: another thread that asks
    /// for events does not get it.
    ///
    /// # Safety
    /// As [`Connection::operation`].
    pub unsafe fn perform(
        &self,
        kind: Kind,
        remote: u64,
        local: *mut u8,
        bytes: usize,
        flags: OperationFlags,
    ) -> Result<(), Error> {
        let handle = self.issue(kind, remote, local, bytes, flags, true)?;
        // It ends: if the peer is silent for long, with an error.
        self.shared().wait(None, |engine| self.end_of(engine, handle))?.unwrap_or(Err(Error::Timeout))
    }

    fn issue(
        &self,
        kind: Kind,
        remote: u64,
        local: *mut u8,
        bytes: usize,
        flags: OperationFlags,
        is_claimed: bool,
    ) -> Result<Handle, Error> {
        let size = u32::try_from(bytes);
        let size =
            size.map_err(|_| Error::Invalid(format!("{bytes} bytes are more than {}: divide them", u32::MAX)))?;
        if kind == Kind::Read && flags.intersects(OperationFlags::NOTIFY | OperationFlags::COPY) {
            return Err(Error::Invalid("NOTIFY and COPY are for WRITEs".into()));
        }
        let copies = match flags.contains(OperationFlags::COPY) && bytes > 0 {
            true => Some(copied(local, bytes)?),
            false => None,
        };
        let of_protocol = Flags::from_bits_truncate((flags - OperationFlags::COPY).bits());
        let local = local.expose_provenance() as u64;
        let operation = Operation { kind, remote, local, bytes: size, flags: of_protocol };
        self.shared().with(|engine| engine.issue(self.number, operation, copies, is_claimed))
    }

    /// Whether an operation is complete (MultiEdge's `query_event`), and how it ended, which is told once.
    pub fn query(&self, handle: Handle) -> Result<Option<Result<(), Error>>, Error> {
        self.shared().poll(|engine| self.end_of(engine, handle))
    }

    /// Waits until an operation is complete. `Timeout` if it is not after `timeout`; `None`: waits without end, which comes
    /// when the peer is silent for long.
    pub fn wait(&self, handle: Handle, timeout: Option<Duration>) -> Result<(), Error> {
        self.wait_end(handle, timeout)?.unwrap_or(Err(Error::Timeout))
    }

    /// The same; how it ended is apart from why it cannot be waited for. `None`: it is not complete after `timeout`. What ends
    /// meanwhile is not given to another thread that asks for events.
    pub fn wait_end(&self, handle: Handle, timeout: Option<Duration>) -> Result<Option<Result<(), Error>>, Error> {
        let mut is_claimed = false;
        let end = self.shared().wait(timeout, |engine| {
            if !std::mem::replace(&mut is_claimed, true)
                && let Some(peer) = engine.peers.get_mut(&self.number)
            {
                peer.events.claim(handle);
            }
            self.end_of(engine, handle)
        })?;
        if end.is_none() {
            self.shared().with(|engine| {
                if let Some(peer) = engine.peers.get_mut(&self.number) {
                    // It may be complete since, and other threads may wait for events.
                    engine.has_news |= peer.events.release(handle);
                }
                Ok(())
            })?;
        }
        Ok(end)
    }

    /// The oldest event that the program has not been told of. An error if there is none and the connection has ended.
    pub fn next_event(&self) -> Result<Option<Event>, Error> {
        self.shared().poll(|engine| self.event(engine))
    }

    /// Waits for an event. `Timeout` if none comes.
    pub fn wait_event(&self, timeout: Option<Duration>) -> Result<Event, Error> {
        self.shared().wait(timeout, |engine| self.event(engine))?.ok_or(Error::Timeout)
    }

    /// A descriptor that is readable while there are events, or if the connection has ended. It belongs to the connection. A
    /// node that polls makes it readable only while the program polls, or a few milliseconds later.
    pub fn descriptor(&self) -> Result<RawFd, Error> {
        self.shared().with(|engine| {
            let peer = engine.peers.get_mut(&self.number).ok_or(Error::Closed)?;
            peer.events.descriptor().map_err(|error| Error::system("no event descriptor can be made", &error))
        })
    }

    /// Writes bytes to the peer's memory; returns when they are there, or an error. Other events remain.
    pub fn write(&self, remote: u64, bytes: &[u8], flags: OperationFlags) -> Result<(), Error> {
        // SAFETY: the bytes are borrowed until the operation is complete.
        unsafe { self.perform(Kind::Write, remote, bytes.as_ptr().cast_mut(), bytes.len(), flags) }
    }

    /// Reads bytes of the peer's memory; returns when they are here, or an error.
    pub fn read(&self, remote: u64, bytes: &mut [u8], flags: OperationFlags) -> Result<(), Error> {
        // SAFETY: the bytes are borrowed until the operation is complete.
        unsafe { self.perform(Kind::Read, remote, bytes.as_mut_ptr(), bytes.len(), flags) }
    }

    /// Tells the peer a number: the address of a WRITE of 0 bytes, of which the peer is notified. It needs no memory there.
    pub fn tell(&self, number: u64) -> Result<Handle, Error> {
        let (nothing, flags) = (std::ptr::null_mut(), OperationFlags::NOTIFY);
        // SAFETY: no bytes are read.
        unsafe { self.operation(Kind::Write, number, nothing, 0, flags) }
    }

    /// Allows the peer to use a range, from now on.
    ///
    /// # Safety
    /// The peer may read or write the range at any time, as `access` says: the program uses it accordingly, for instance
    /// through pointers. Memory that is not mapped, or not for writing, is an error of the peer's operation.
    pub unsafe fn register(&self, address: *const u8, bytes: usize, access: Access) -> Result<RangeId, Error> {
        let start = address.expose_provenance() as u64;
        self.shared().with(|engine| engine.open_peer(self.number)?.allowed.add(start, bytes as u64, access))
    }

    /// Ends what `register` has allowed: nothing of the peer uses the range when this returns, unless another range or the
    /// whole process is allowed.
    pub fn deregister(&self, range: RangeId) -> Result<(), Error> {
        self.shared().with(|engine| engine.open_peer(self.number)?.allowed.remove(range))
    }

    /// The number of links, and the bytes of operations in a packet, at most.
    pub fn links(&self) -> Result<usize, Error> {
        self.shared().with(|engine| Ok(engine.open_peer(self.number)?.links.len()))
    }

    fn end_of(&self, engine: &mut Engine, handle: Handle) -> Result<Option<Result<(), Error>>, Error> {
        let end = engine.peers.get_mut(&self.number).ok_or(Error::Closed)?.events.take(handle);
        self.make_room(engine);
        end
    }

    fn event(&self, engine: &mut Engine) -> Result<Option<Event>, Error> {
        let peer = engine.peers.get_mut(&self.number).ok_or(Error::Closed)?;
        let event = peer.events.pop();
        if event.is_none()
            && let Some(error) = &peer.ended
        {
            return Err(error.clone());
        }
        self.make_room(engine);
        Ok(event)
    }

    /// Takes notifications that had no room.
    fn make_room(&self, engine: &mut Engine) {
        engine.collect(self.number);
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // In a child of the process that has it, there is nothing to end.
        let _ = self.shared().with(|engine| {
            engine.close(self.number);
            Ok(())
        });
    }
}

/// A copy of bytes of the program.
fn copied(local: *const u8, bytes: usize) -> Result<Box<[u8]>, Error> {
    let mut copies = Vec::new();
    let no_memory = |_| Error::Invalid(format!("{bytes} bytes are too many to be copied"));
    copies.try_reserve_exact(bytes).map_err(no_memory)?;
    // SAFETY: the copy has room for so many bytes, and `local` is memory in any state.
    unsafe {
        copy::copy(copies.as_mut_ptr(), local, bytes).map_err(|_| Error::Local)?;
        copies.set_len(bytes);
    }
    Ok(copies.into_boxed_slice())
}
