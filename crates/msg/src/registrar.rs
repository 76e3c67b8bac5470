//! The program's memory: registered for operations, prefetched at the moments of the scheme.

use crate::buffer::{Buffer, MAX_PIECES, Piece, Remote, RemoteBuffer};
use crate::cache::{Cache, Cached, RegionId};
use crate::counters::Counters;
use crate::port::{Errno, Port, Registered, Registration};
use crate::scheme::{Moment, Scheme};
use crate::settings::Settings;
use std::time::Duration;

const PAGE: u64 = 4096;
const EFAULT: i32 = 14;

/// Registrations of the pieces of a buffer, in use until [`Registrar::release`].
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Held {
    regions: [RegionId; MAX_PIECES],
    count: u8,
    /// Some of it was not registered before.
    fresh: bool,
    /// When its pages were prefetched last, or were found to need none.
    warmed: Duration,
}

impl Held {
    /// Whether nothing is registered.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }
}

/// Registers buffers and prefetches them.
#[derive(Debug)]
pub(crate) struct Registrar {
    scheme: Scheme,
    cache: Cache,
    /// How many pages the adapter had lost, and when it was asked.
    lost: Option<(Duration, Option<u64>)>,
    /// After so long it is asked again: a program that computes loses pages.
    computes: Duration,
}

impl Registrar {
    pub fn new(settings: &Settings) -> Registrar {
        let Settings { scheme, cache_bytes, cache_regions, computes, .. } = *settings;
        Registrar { scheme, cache: Cache::new(cache_bytes, cache_regions), lost: None, computes }
    }

    /// Registers a buffer, or finds it registered. `writable`: the adapter will write to it.
    pub fn hold(
        &mut self,
        port: &mut impl Port,
        counters: &mut Counters,
        buffer: &Buffer,
        writable: bool,
    ) -> Result<Held, Errno> {
        let mut held = Held::default();
        for piece in buffer.pieces() {
            match self.region(port, counters, piece, writable) {
                Ok((region, fresh)) => {
                    held.regions[usize::from(held.count)] = region;
                    held.count += 1;
                    held.fresh |= fresh;
                }
                Err(errno) => {
                    self.release(port, counters, held);
                    return Err(errno);
                }
            }
        }
        Ok(held)
    }

    /// Ends the use of a buffer's registrations.
    pub fn release(&mut self, port: &mut impl Port, counters: &mut Counters, held: Held) {
        for &region in &held.regions[..usize::from(held.count)] {
            let mut ended = 0;
            self.cache.release(region, |cached| {
                ended += 1;
                end(self.scheme, port, counters, cached);
            });
            counters.evictions += ended;
        }
    }

    /// The key of a buffer's piece.
    pub fn lkey(&self, held: &Held, piece: usize) -> u32 {
        self.cache.get(held.regions[piece]).registered.lkey
    }

    /// A registered buffer as a peer sees it. Empty, if nothing is registered.
    pub fn remote(&self, held: &Held, buffer: &Buffer) -> RemoteBuffer {
        let mut remote = RemoteBuffer::default();
        for (piece, &region) in buffer.pieces().iter().zip(&held.regions[..usize::from(held.count)]) {
            let rkey = self.cache.get(region).registered.rkey;
            remote.push(Remote { addr: piece.addr, len: piece.len, rkey });
        }
        remote
    }

    /// Prefetches a registered buffer, if the scheme does so at this moment: pages that the adapter was not asked for yet, or
    /// may have lost.
    #[allow(clippy::too_many_arguments)] // The moment, the buffer, and what is needed to do it.
    pub fn prefetch(
        &mut self,
        port: &mut impl Port,
        counters: &mut Counters,
        now: Duration,
        moment: Moment,
        held: &mut Held,
        buffer: &Buffer,
        write: bool,
    ) {
        if !self.scheme.prefetches(moment) || moment == Moment::Registered && !held.fresh {
            return;
        }
        held.warmed = now;
        let lost = self.lost(port, now);
        for (at, piece) in buffer.pieces().iter().enumerate().take(usize::from(held.count)) {
            if !self.cache.warm(held.regions[at]).needs(piece, write, lost) {
                continue;
            }
            port.prefetch(self.lkey(held, at), piece.addr, piece.len, write);
            counters.prefetches += 1;
            counters.prefetched_pages += pages(piece.addr, piece.len);
        }
    }

    /// How many pages the adapter has lost. The number may be a little old, because reading it takes time: what is lost meanwhile
    /// is found the next time, and until then there may be a page fault.
    fn lost(&mut self, port: &mut impl Port, now: Duration) -> Option<u64> {
        match self.lost {
            Some((read, lost)) if now <= read + self.computes => lost,
            _ => {
                let lost = port.invalidations();
                self.lost = Some((now, lost));
                lost
            }
        }
    }

    /// Whether the pages of a held buffer may have gone since they were prefetched: the program has computed since `computed`.
    pub fn is_stale(&self, held: &Held, computed: Option<Duration>) -> bool {
        held.count > 0 && computed.is_some_and(|computed| held.warmed <= computed)
    }

    /// Memory goes away, or becomes other memory.
    pub fn invalidate(&mut self, port: &mut impl Port, counters: &mut Counters, addr: u64, len: u64) {
        self.cache.invalidate(addr, len, |cached| {
            counters.evictions += 1;
            end(self.scheme, port, counters, cached);
        });
    }

    /// Ends all registrations.
    pub fn clear(&mut self, port: &mut impl Port, counters: &mut Counters) {
        self.cache.clear(|cached| end(self.scheme, port, counters, cached));
    }

    /// The registration of a piece, and whether it is new.
    fn region(
        &mut self,
        port: &mut impl Port,
        counters: &mut Counters,
        piece: &Piece,
        writable: bool,
    ) -> Result<(RegionId, bool), Errno> {
        while let Some((addr, len)) = port.next_gone() {
            self.invalidate(port, counters, addr, len);
        }
        if let Some(found) = self.cache.find(piece.addr, piece.len, writable) {
            counters.cache_hits += 1;
            return Ok((found, false));
        }
        // Whole pages, so that the next buffer beside it finds them registered.
        let start = piece.addr & !(PAGE - 1);
        let end = piece.addr.checked_add(piece.len).and_then(|end| end.checked_next_multiple_of(PAGE));
        let len = end.ok_or(Errno(EFAULT))? - start;
        let (registered, writable) = self.register(port, counters, start, len, writable)?;
        counters.registrations += 1;
        if self.scheme.on_demand() {
            return Ok((self.cache.add(start, len, writable, registered), true));
        }
        counters.pin(len);
        // Watched before it is used, so that nothing that happens meanwhile is missed.
        let watched = port.watch(start, len);
        let region = self.cache.add(start, len, writable, registered);
        if !watched {
            self.cache.use_once(region);
        }
        Ok((region, true))
    }

    /// Registers memory. Pinned memory becomes writable if it can, so that the next operation finds it. On-demand memory
    /// does not: an adapter finds out only at a page fault that a page cannot be written.
    fn register(
        &mut self,
        port: &mut impl Port,
        counters: &mut Counters,
        start: u64,
        len: u64,
        writable: bool,
    ) -> Result<(Registered, bool), Errno> {
        let on_demand = self.scheme.on_demand();
        let how = Registration { on_demand, writable: writable || !on_demand };
        loop {
            let error = match port.register(start, len, how) {
                Ok(registered) => return Ok((registered, how.writable)),
                Err(error) => error,
            };
            if !writable
                && how.writable
                && let Ok(registered) = port.register(start, len, Registration { writable: false, ..how })
            {
                return Ok((registered, false));
            }
            if error == Errno(EFAULT) {
                return Err(error);
            }
            // No memory may be pinned any more, or the adapter has no more regions: other registrations make room.
            if !self.evict(port, counters) {
                return Err(error);
            }
        }
    }

    /// Ends the registration that was used least recently of those that no operation uses. False: there is none.
    pub fn evict(&mut self, port: &mut impl Port, counters: &mut Counters) -> bool {
        let scheme = self.scheme;
        let evicted = self.cache.evict(|cached| end(scheme, port, counters, cached));
        counters.evictions += u64::from(evicted);
        evicted
    }
}

/// Ends a registration of the cache.
fn end(scheme: Scheme, port: &mut impl Port, counters: &mut Counters, cached: &Cached) {
    port.deregister(cached.registered);
    if !scheme.on_demand() {
        counters.pinned_bytes -= cached.len;
        port.unwatch(cached.start, cached.len);
    }
}

/// The number of pages that a range touches.
pub(crate) fn pages(addr: u64, len: u64) -> u64 {
    if len == 0 { 0 } else { (addr + len).div_ceil(PAGE) - addr / PAGE }
}
