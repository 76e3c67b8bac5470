//! Arrivals by rings.

use crate::engine::host::QpHost;
use crate::engine::local::receive_wait::{LOOK, ReceiveWait};
use crate::engine::local::rings::{Ring, RingId, Use};
use crate::engine::peers::identity::PeerId;
use crate::engine::receive::is_wanted;
use crate::engine::{Engine, index_in};
use crate::local::ring::{Consumer, Lie, Record};
use crate::paging::held::Waiting;
use crate::shared::qp::QpShared;
use crate::shared::route::Route;
use crate::shared::state::AdapterState;
use crate::tap::Ends;
use std::sync::Arc;
use weir_transport::{Handled, Instant, Qp, Service, Side};
use weir_wire::{DEFAULT_PKEY, Headers, ICRC_LEN, Packet};

/// Bytes, and packets, that one turn takes from a ring, so that departures are not starved.
const BYTES: usize = 128 << 10;
const PACKETS: usize = 256;
/// The most packets in a ring.
const ALL: usize = 1 << 20;

/// What was taken from a ring.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Drained {
    /// All that was in it.
    All,
    /// As much as the budget allows.
    Part,
    /// What was before a packet that waits for a receive.
    Waits,
    /// What was before a request of this QP that waits for READs.
    BehindReads(u16),
}

/// How much is taken.
struct Budget {
    packets: usize,
    bytes: usize,
    /// Requests that wait for READs are held.
    holds: bool,
}

impl Engine {
    /// Takes packets from all rings. Returns whether there were any.
    #[inline]
    pub(in crate::engine) fn receive_by_rings(&mut self, adapter: &AdapterState, now: Instant) -> bool {
        let (mut left, mut any) = (self.rings.count, false);
        self.rings.next_look = None;
        let mut id = 0;
        while left > 0 && id < self.rings.rings.len() {
            if self.rings.rings[id].is_some() {
                left -= 1;
                any |= self.receive_by_ring(adapter, id, now, Budget { packets: PACKETS, bytes: BYTES, holds: false });
            }
            id += 1;
        }
        any
    }

    /// Takes all packets that were published in any ring before this call, except behind one that waits for a receive.
    pub(in crate::engine) fn empty_rings(&mut self, adapter: &AdapterState, now: Instant) {
        for id in self.rings.ids() {
            self.empty_ring(adapter, id, now);
        }
    }

    /// As [`empty_rings`](Self::empty_rings), for one ring.
    pub(super) fn empty_ring(&mut self, adapter: &AdapterState, id: RingId, now: Instant) {
        let all = Budget { packets: ALL, bytes: crate::local::segment::RING, holds: false };
        self.receive_by_ring(adapter, id, now, all);
    }

    fn receive_by_ring(&mut self, adapter: &AdapterState, id: RingId, now: Instant, mut budget: Budget) -> bool {
        // The ring is taken out while its packets are worked on.
        let Some(mut ring) = self.rings.rings[id].take() else { return false };
        let before = budget.packets;
        let mut result = self.drain(adapter, &mut ring, now, &mut budget);
        while let Ok(Drained::BehindReads(index)) = result {
            // The responses leave by this ring.
            self.rings.rings[id] = Some(ring);
            self.read_out(adapter, index, now);
            let Some(same) = self.rings.rings[id].take() else { return true };
            ring = same;
            result = self.drain(adapter, &mut ring, now, &mut budget);
        }
        let any = before != budget.packets;
        if any {
            ring.endpoint.consumer.release();
        }
        if result == Ok(Drained::Waits) {
            self.rings.next_look = Some(now + LOOK);
        } else {
            // Also where the QP that it waited for is gone.
            ring.wait.end(now);
        }
        let emptied = result == Ok(Drained::All);
        let answer = ring.answer.take_if(|_| emptied);
        let closes = emptied && ring.state == Use::Rest;
        if emptied {
            ring.wait.reset();
        }
        self.rings.rings[id] = Some(ring);
        if let Some(answer) = answer {
            self.send_hello(&answer, &[]);
        }
        if result == Err(Lie) {
            self.abandon_ring(id);
        } else if closes {
            self.close_ring(id);
        }
        any
    }

    /// The peer has written what no Weir process writes.
    #[cold]
    pub(in crate::engine) fn abandon_ring(&mut self, id: RingId) {
        if let Some(ring) = self.rings.get_mut(id) {
            let peer = self.peers.get_mut(ring.peer);
            // The thread writes the log.
            ring.state = Use::Lie(peer.to(false));
            peer.lied = Some(ring.incarnation);
        }
        self.close_ring(id);
    }

    fn drain(
        &mut self,
        adapter: &AdapterState,
        ring: &mut Ring,
        now: Instant,
        budget: &mut Budget,
    ) -> Result<Drained, Lie> {
        let peer = ring.peer;
        let consumer = &mut ring.endpoint.consumer;
        let mut next = next_packet(consumer)?;
        while let Some((record, headers)) = next.take() {
            let dest = headers.bth.dest_qp;
            let Some((index, shared, tag, retired)) = self.destination_in_ring(peer, dest) else {
                self.count(&record, budget);
                // The QP that the ring waited for may be gone.
                ring.wait.end(now);
                consumer.advance(&record);
                next = if budget.is_left() { next_packet(consumer)? } else { None };
                continue;
            };
            // A burst is usually for one QP, which is locked once.
            let mut protocol = shared.lock();
            let mut current = Some((record, headers));
            let (mut lie, mut came, mut asks, mut waits, mut behind_reads) = (false, false, false, false, false);
            while let Some((record, headers)) = current.take() {
                if shared.service == Service::Uc && record.tag == tag {
                    ring.unreliable = true;
                    let opcode = headers.bth.opcode;
                    let host = &mut QpHost::in_turn(
                        QpHost::side_of(opcode),
                        &shared,
                        &adapter.regions,
                        &mut self.cached,
                        &mut self.completions,
                    );
                    let has_receive = protocol.has_receive_for(&headers.bth, host);
                    waits = self.waits_for_receive(index, &mut ring.wait, has_receive, now);
                    if waits {
                        break;
                    }
                }
                if record.tag == tag {
                    came = true;
                    asks |= !headers.bth.opcode.is_response();
                    let Some(packet) = packet(consumer, &record, headers) else {
                        lie = true;
                        break;
                    };
                    // IBTA 9.6.1.1.3: it is dropped silently, and counted.
                    if !packet.headers.bth.is_in_partition_of(DEFAULT_PKEY) {
                        self.shown.traffic.pkey_violations.bump(1);
                    } else if !retired || is_wanted(&protocol, &packet) {
                        // A packet that is tried again was recorded before.
                        if let Some(tap) = &mut self.tapped.tap
                            && !budget.holds
                        {
                            let Route { local, remote, .. } = self.peers.get(peer).route;
                            let (own_qp, other_qp) = (shared.num, protocol.attr().dest_qp_num);
                            let ends = Ends { own_qp, other_qp, local, remote, over_links: false };
                            tap.packet(false, ends, &packet.headers, packet.payload.len());
                        }
                        let side = QpHost::side_of(packet.headers.bth.opcode);
                        let mut host =
                            QpHost::in_turn(side, &shared, &adapter.regions, &mut self.cached, &mut self.completions);
                        match protocol.handle_packet(now, &packet, &mut host) {
                            Handled::Done => {}
                            Handled::Dammed => self.shown.traffic.packets_dammed(),
                            Handled::AfterReads if !budget.holds && !self.holds_after_reads(index) => {
                                // Only this packet is tried again.
                                budget.holds = true;
                                behind_reads = true;
                                break;
                            }
                            handled => self.hold_record(adapter, (index, &mut protocol), (side, handled), &packet),
                        }
                    }
                }
                budget.holds = false;
                self.count(&record, budget);
                consumer.advance(&record);
                if !budget.is_left() {
                    break;
                }
                match next_packet(consumer) {
                    Ok(Some((record, headers))) if headers.bth.dest_qp == dest => current = Some((record, headers)),
                    Ok(other) => next = other,
                    Err(Lie) => lie = true,
                }
            }
            self.after(index, &mut protocol);
            drop(protocol);
            if came && let Some(entry) = self.table.get_mut(index) {
                entry.connection.note_packet(true, true, true);
                if asks {
                    // The peer sends requests by a ring when it has the responses that left by UDP.
                    entry.responded_by_udp = None;
                }
            }
            if lie {
                return Err(Lie);
            }
            if waits {
                return Ok(Drained::Waits);
            }
            if behind_reads {
                return Ok(Drained::BehindReads(index));
            }
        }
        Ok(if budget.is_left() { Drained::All } else { Drained::Part })
    }

    /// A UC packet is next in a ring, and has a receive, or takes none (`None`). Returns whether the ring waits.
    #[inline]
    fn waits_for_receive(
        &mut self,
        index: u16,
        wait: &mut ReceiveWait,
        has_receive: Option<bool>,
        now: Instant,
    ) -> bool {
        if has_receive == Some(false) {
            let Some(entry) = self.table.get_mut(index) else { return false };
            // Where a packet waited in vain, the next ones do not wait: the program may not mean to receive them.
            let others = entry.peer.is_some_and(|peer| self.peers.get(peer).members.all().len() > 1);
            if !entry.without_receive && wait.waits(now, others) {
                return true;
            }
            entry.without_receive = true;
            self.shown.traffic.without_receive.bump(1);
        } else if has_receive == Some(true)
            && let Some(entry) = self.table.get_mut(index)
        {
            entry.without_receive = false;
        }
        wait.end(now);
        false
    }

    #[inline]
    fn count(&self, record: &Record, budget: &mut Budget) {
        budget.packets -= 1;
        budget.bytes = budget.bytes.saturating_sub(record.len());
        self.shown.traffic.packets_received.bump(1);
        self.shown.traffic.bytes_received.bump(record.len() as u64);
    }

    /// The QP that a packet of a peer is for, its tag, and whether it is retired. `None`: the peer may not send to it.
    #[inline]
    fn destination_in_ring(&self, peer: PeerId, dest: u32) -> Option<(u16, Arc<QpShared>, u32, bool)> {
        let index = index_in(&self.slot, dest)?;
        let entry = self.table.get(index)?;
        let service = entry.shared.service;
        let retired = entry.retired.is_some();
        let refused = service == Service::Ud || retired && service == Service::Uc;
        if entry.shared.num != dest || entry.peer != Some(peer) || refused {
            return None;
        }
        Some((index, entry.shared.clone(), entry.connection.tag, retired))
    }

    /// A packet met a page fault, or waits for READs: a copy of it is kept, as a datagram.
    #[cold]
    #[inline(never)]
    fn hold_record(
        &mut self,
        adapter: &AdapterState,
        (index, protocol): (u16, &mut Qp),
        (side, handled): (Side, Handled),
        packet: &Packet<'_>,
    ) {
        let mut scratch = std::mem::take(&mut self.rings.scratch);
        let start = packet.headers.emit(&mut scratch);
        let end = start + packet.payload.len();
        scratch[start..end].copy_from_slice(packet.payload);
        let end = end + usize::from(packet.headers.bth.pad) + ICRC_LEN;
        let (psn, datagram) = (packet.headers.bth.psn, &scratch[..end]);
        let packet = Waiting { psn, datagram, header: None, over_links: false };
        if handled == Handled::AfterReads {
            self.hold_after_reads(adapter, (index, protocol), packet);
        } else {
            self.hold(index, side, packet);
        }
        self.rings.scratch = scratch;
    }
}

impl Budget {
    #[inline]
    fn is_left(&self) -> bool {
        self.packets > 0 && self.bytes > 0
    }
}

/// The next packet of a ring, with its headers.
#[inline]
fn next_packet(consumer: &mut Consumer) -> Result<Option<(Record, Headers)>, Lie> {
    let Some(record) = consumer.next()? else { return Ok(None) };
    let headers = Headers::parse(record.head(), record.headers_room()).map_err(|_| Lie)?;
    Ok(Some((record, headers)))
}

/// The packet of a record. `None`: it is shorter than its headers and pad.
#[inline]
fn packet<'a>(consumer: &'a Consumer, record: &Record, headers: Headers) -> Option<Packet<'a>> {
    let body = consumer.body(record, headers.len())?;
    let len = headers.payload_len(body.len()).ok()?;
    Some(Packet { headers, payload: &body[..len], icrc: 0, placement: None })
}
