//! The machine around an adapter: the bus to memory, the cache behind it, and memory of another NUMA node.
//!
//! A host has one if its profile has a [`HostModel`], which has the parameters; `connectx3-fdr.toml` of
//! `weir-profiles` says where each number comes from. The model, in the order in which payload meets it:
//!
//! - The sender's adapter reads the payload of a packet over the bus before the packet enters the link. The read of the
//!   next packet overlaps with the wire time of a packet, so that the port is as fast as the slower of the two.
//! - The receiver's adapter writes the payload before the packet has its effect: completion, acknowledgement, response.
//!   Packets queue before the bus in the order of their arrival, those without payload too. InfiniBand's credits would
//!   keep the packets of this queue at the sender. A queue at the receiver has the same throughput, because the slowest
//!   part of the way sets it.
//! - Payload moves in transfers of up to `tlp` bytes, and a transfer in whole cache lines of `line_ns` each. Each
//!   direction of a host's bus moves one line after the other. Payload that begins in the midst of a line needs one
//!   line more in each transfer: five instead of four, with 256 and 64 bytes.
//! - The lines that the adapter has accessed last are in a cache. Another line costs `miss_ns` more. A write to a part
//!   of such a line costs `partial_miss_ns` in addition: it is read, changed and written. The next transfer writes the
//!   other part of that line, which is in the cache then.
//! - A region can be on another NUMA node. All of this takes `remote_factor` times as long there.
//! - The adapter moves no payload while it writes a completion or raises an event. An application knows when a queue is
//!   armed, so it says that there is an event ([`crate::Simulation::raise_event`]).
//!
//! Not modelled: the latency of the bus, reads of work requests, the memory bandwidth that programs use, and the sets
//! of a cache. Atomics take no time.
//!
//! | file | |
//! | --- | --- |
//! | `bus` | a direction of the bus as a clock |
//! | `cache` | which lines are in the cache |
//! | `transfers` | lines of a range of memory |

mod bus;
mod cache;
mod transfers;

use crate::link::Pipe;
use crate::memory::for_each_segment;
use crate::packet::PacketKey;
use bus::Bus;
use cache::Cache;
use std::collections::VecDeque;
use transfers::{Lines, Transfers};
use weir_transport::{HostModel, Instant, Payload, Remote, Sge};

/// What a host's adapter has moved over the bus so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BusCounts {
    /// Lines that were read and written; a line counts in each transfer that accesses it.
    pub lines: u64,
    /// Of these, lines that were not in the cache.
    pub missed: u64,
    /// Of these, lines of which a part was written.
    pub partial: u64,
    /// Completions that were written, and events that were raised.
    pub completions: u64,
    pub events: u64,
}

#[derive(Debug)]
pub(crate) struct Machine {
    model: HostModel,
    transfers: Transfers,
    cache: Cache,
    reads: Bus,
    writes: Bus,
    /// Picoseconds that the payload of the packet of the turn needs on the bus.
    staged: u64,
    /// Packets that have arrived, with their payload lengths. The payload of the first is being written.
    incoming: VecDeque<(PacketKey, usize)>,
    /// Regions, by the upper bits of their keys, that are on another NUMA node.
    remote: Vec<bool>,
    pub counts: BusCounts,
}

impl Machine {
    pub fn new(model: HostModel) -> Self {
        Machine {
            model,
            transfers: Transfers::new(model.tlp, model.line),
            cache: Cache::new(model.cache / u64::from(model.line)),
            reads: Bus::default(),
            writes: Bus::default(),
            staged: 0,
            incoming: VecDeque::new(),
            remote: Vec::new(),
            counts: BusCounts::default(),
        }
    }

    /// A region is on another NUMA node than the adapter, or on the same.
    pub fn set_remote(&mut self, key: u32, remote: bool) {
        let index = region(key);
        if index >= self.remote.len() {
            self.remote.resize(index + 1, false);
        }
        self.remote[index] = remote;
    }

    /// The packet of the turn has this payload.
    #[inline(never)]
    pub fn read(&mut self, payload: &Payload<'_>) {
        self.staged = match *payload {
            // Inline data came with the work request.
            Payload::None | Payload::Bytes(_) => 0,
            Payload::Gather { sges, offset, len } => self.segments(sges, offset, len as u64, false),
            Payload::Remote(Remote { rkey, va, len, .. }) => self.time(rkey, va, len, false),
        };
    }

    /// The packet of the turn enters a pipe when its payload is read. Returns when the port is free for the next
    /// packet, and when this packet arrives.
    #[inline(never)]
    pub fn send(&mut self, now: Instant, pipe: &mut Pipe, bytes: u32) -> (Instant, Instant) {
        let time = std::mem::take(&mut self.staged);
        // A packet without payload needs no bus.
        let read = if time == 0 { now } else { self.reads.occupy(now, time) };
        // The next packet is read while this one is on the wire, and not earlier: the adapter reads one packet ahead.
        let starts = read.max(pipe.free());
        let (_, arrival) = pipe.occupy(read, bytes);
        (starts, arrival)
    }

    /// A packet arrives. Returns when its payload is written, if no packet is before it.
    pub fn take_in(&mut self, now: Instant, key: PacketKey, payload: usize) -> Option<Instant> {
        self.incoming.push_back((key, payload));
        if self.incoming.len() == 1 { self.next_in(now) } else { None }
    }

    /// The packet of which the payload is written now. `next_in` follows, after the packet's effect.
    pub fn taken_in(&mut self) -> Option<PacketKey> {
        self.incoming.pop_front().map(|(key, _)| key)
    }

    /// When the payload of the first packet that waits is written; `None` if there is no packet.
    ///
    /// Where payload goes is known when the QP handles the packet. Until then this is the time of aligned payload that
    /// is in the cache. What it takes in addition is added by `write`, before the next packet.
    pub fn next_in(&mut self, now: Instant) -> Option<Instant> {
        let (_, payload) = self.incoming.front()?;
        let least = self.least(*payload as u64);
        Some(self.writes.occupy(now, least))
    }

    /// Payload is written to SGEs.
    #[inline(never)]
    pub fn write(&mut self, now: Instant, sges: &[Sge], offset: u64, len: u64) {
        let time = self.segments(sges, offset, len, true);
        self.writes.occupy(now, time.saturating_sub(self.least(len)));
    }

    /// Payload is written to a region.
    #[inline(never)]
    pub fn write_region(&mut self, now: Instant, key: u32, addr: u64, len: u64) {
        let time = self.time(key, addr, len, true);
        self.writes.occupy(now, time.saturating_sub(self.least(len)));
    }

    /// The adapter writes a completion.
    #[inline(never)]
    pub fn complete(&mut self, now: Instant) {
        self.counts.completions += 1;
        self.pause(now, self.model.completion.as_nanos() as u64 * 1000);
    }

    /// The adapter raises an event.
    pub fn raise_event(&mut self, now: Instant) {
        self.counts.events += 1;
        self.pause(now, self.model.event.as_nanos() as u64 * 1000);
    }

    fn pause(&mut self, now: Instant, picoseconds: u64) {
        self.reads.occupy(now, picoseconds);
        self.writes.occupy(now, picoseconds);
    }

    /// Picoseconds of aligned payload that is in the cache.
    fn least(&self, len: u64) -> u64 {
        picoseconds(len.div_ceil(self.model.line.into()) as f64 * self.model.line_ns)
    }

    /// Picoseconds that a part of an SGE list needs on the bus.
    fn segments(&mut self, sges: &[Sge], offset: u64, len: u64, write: bool) -> u64 {
        let mut time = 0;
        // No segment fails.
        let _ = for_each_segment(sges, offset, len, |sge, addr, len, _| {
            time += self.time(sge.lkey, addr, len, write);
            Ok(())
        });
        time
    }

    /// Picoseconds that a range of a region needs on the bus.
    fn time(&mut self, key: u32, addr: u64, len: u64, write: bool) -> u64 {
        let Lines { moved, missed, partial } = self.transfers.lines(&mut self.cache, addr, len, write);
        self.counts.lines += moved;
        self.counts.missed += missed;
        self.counts.partial += partial;
        let HostModel { line_ns, miss_ns, partial_miss_ns, remote_factor, .. } = self.model;
        let local = moved as f64 * line_ns + missed as f64 * miss_ns + partial as f64 * partial_miss_ns;
        let remote = self.remote.get(region(key)).is_some_and(|remote| *remote);
        picoseconds(if remote { local * remote_factor } else { local })
    }
}

fn region(key: u32) -> usize {
    (key >> 8) as usize
}

fn picoseconds(nanoseconds: f64) -> u64 {
    (nanoseconds * 1e3).round() as u64
}
