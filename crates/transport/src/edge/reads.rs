//! What READs have asked for, and what has come of it.

use super::operation::{Failure, Fault};
use std::collections::HashMap;

/// The most bytes that a packet asks for.
pub(super) const AT_ONCE: u32 = 64 << 10;
/// The most requests that are open at a time.
pub(super) const MOST: usize = 32;

/// The open requests, by their numbers.
#[derive(Debug, Default)]
pub(super) struct Reads {
    next: u32,
    open: HashMap<u32, Request>,
}

/// A part of a READ that one packet has asked for.
#[derive(Clone, Copy, Debug)]
struct Request {
    operation: u32,
    /// Where its bytes belong.
    local: u64,
    bytes: u32,
    /// Bytes that have not come.
    missing: u32,
    failure: Option<Failure>,
}

impl Reads {
    /// Whether another request may be open.
    pub fn has_room(&self) -> bool {
        self.open.len() < MOST
    }

    /// The number that the next request gets.
    pub fn next(&self) -> u32 {
        self.next
    }

    /// A packet of this operation has asked for bytes that belong to an address.
    pub fn asked(&mut self, operation: u32, local: u64, bytes: u32) {
        self.open.insert(self.next, Request { operation, local, bytes, missing: bytes, failure: None });
        self.next = self.next.wrapping_add(1);
    }

    /// Bytes have come; `write` stores them at an address. Returns the operation and the outcome of the request, if all
    /// have come. What was not asked for is ignored.
    pub fn response(
        &mut self,
        number: u32,
        offset: u32,
        bytes: u32,
        write: impl FnOnce(u64) -> Result<(), Fault>,
    ) -> Option<(u32, Result<(), Failure>)> {
        let request = self.open.get_mut(&number)?;
        let end = u64::from(offset) + u64::from(bytes);
        if end > u64::from(request.bytes) || bytes > request.missing {
            return None;
        }
        request.missing -= bytes;
        if write(request.local.wrapping_add(u64::from(offset))).is_err() {
            request.failure = Some(Failure::Local);
        }
        let Request { operation, missing, failure, .. } = *request;
        (missing == 0).then(|| {
            self.open.remove(&number);
            (operation, failure.map_or(Ok(()), Err))
        })
    }

    /// The peer cannot read what was asked for. Returns the operation.
    pub fn failed(&mut self, number: u32) -> Option<u32> {
        self.open.remove(&number).map(|request| request.operation)
    }
}
