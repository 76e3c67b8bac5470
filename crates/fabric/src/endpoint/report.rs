//! How the end of an operation reaches queues and counters.

use crate::endpoint::bindings::Bindings;
use crate::queue::Entry;
use std::ffi::{c_int, c_void};
use weir_fabric_abi::*;
use weir_msg::{Endpoint, Event, Failure, Kind, Reason};

/// Reports ends of operations.
pub struct Reports {
    /// Peers may write to this process's memory, and the program wants to know of it.
    remote_writes: bool,
    /// A failure that belongs to a peer is logged once.
    logged: Option<Failure>,
}

impl Reports {
    /// `remote_writes`: WRITEs of peers with data are reported, too.
    pub fn new(remote_writes: bool) -> Reports {
        Reports { remote_writes, logged: None }
    }

    /// Reports what a program has asked for: there is nothing that has ended.
    pub fn report_found(&mut self, bindings: &Bindings, protocol: &Endpoint, event: &Event) {
        self.show(bindings, protocol, event);
    }

    /// Reports an end.
    pub fn report(&mut self, bindings: &Bindings, protocol: &Endpoint, event: &Event) {
        if event.kind == Kind::WrittenByPeer && !self.remote_writes {
            return;
        }
        let (_, counted, _) = kind(event);
        for (counts, counter) in &bindings.counters {
            if counts & counted != 0 {
                counter.count(event.result.is_ok());
            }
        }
        self.show(bindings, protocol, event);
    }

    fn show(&mut self, bindings: &Bindings, protocol: &Endpoint, event: &Event) {
        let (flags, _, transmits) = kind(event);
        let error = event.result.err().map_or(0, error_of);
        if let Err(failure @ (Failure::Unreachable(_) | Failure::Memory(_))) = event.result
            && self.logged != Some(failure)
        {
            crate::core::warn(FI_LOG_EP_DATA, &failure.to_string());
            self.logged = Some(failure);
        }
        if let Err(failure) = event.result {
            crate::core::log(FI_LOG_INFO, FI_LOG_EP_DATA, &format!("{:?}: {failure}", event.kind));
        }
        let bound = if transmits { &bindings.transmit } else { &bindings.receive };
        let Some(queue) = &bound.queue else { return };
        if !event.reported && error == 0 {
            return;
        }
        let mut flags = flags;
        if event.data.is_some() {
            flags |= FI_REMOTE_CQ_DATA;
        }
        if event.released {
            flags |= FI_MULTI_RECV;
        }
        let source = event.from.and_then(|peer| bindings.vector.as_ref()?.number(&protocol.name_of(peer)));
        let olen = match event.result {
            Err(Failure::Truncated { by }) => by as usize,
            _ => 0,
        };
        let at: *mut c_void = std::ptr::with_exposed_provenance_mut(event.addr as usize);
        queue.push(Entry {
            entry: fi_cq_tagged_entry {
                op_context: std::ptr::with_exposed_provenance_mut(event.context as usize),
                flags,
                len: event.len as usize,
                buf: at,
                data: event.data.unwrap_or(0),
                tag: event.tag.unwrap_or(0),
            },
            source: source.unwrap_or(FI_ADDR_NOTAVAIL),
            error,
            olen,
        });
    }
}

/// The flags of an operation's completion, the kind that counters count, and whether it belongs to the queue of sends.
fn kind(event: &Event) -> (u64, u64, bool) {
    let message = |tagged| if tagged { FI_TAGGED } else { FI_MSG };
    match event.kind {
        Kind::Send { tagged } => (message(tagged) | FI_SEND, FI_SEND, true),
        Kind::Receive { tagged } => (message(tagged) | FI_RECV, FI_RECV, false),
        Kind::Write => (FI_RMA | FI_WRITE, FI_WRITE, true),
        Kind::Read => (FI_RMA | FI_READ, FI_READ, true),
        Kind::Atomic { fetches: false } => (FI_ATOMIC | FI_WRITE, FI_WRITE, true),
        Kind::Atomic { fetches: true } => (FI_ATOMIC | FI_READ, FI_READ, true),
        Kind::WrittenByPeer => (FI_RMA | FI_REMOTE_WRITE, FI_REMOTE_WRITE, false),
    }
}

/// The error number of a failure.
fn error_of(failure: Failure) -> c_int {
    match failure {
        Failure::Truncated { .. } => FI_ETRUNC,
        Failure::Cancelled => FI_ECANCELED,
        Failure::Denied => FI_EACCES,
        Failure::Disconnected => FI_ECONNRESET,
        Failure::Unreachable(Reason::System(errno)) => errno.0,
        Failure::Unreachable(_) => FI_EHOSTUNREACH,
        Failure::Memory(errno) => errno.0,
    }
}
