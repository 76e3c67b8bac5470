//! Departures by a ring: headers and payload of each packet are written into the ring, and the QP's tag beside them.

use crate::engine::staging::{fill, side_of};
use crate::local::ring::{NoRoom, Producer};
use crate::memory::access::Memory;
use crate::memory::keys::{Cached, Regions};
use crate::memory::window::User;
use crate::paging::QpFaults;
use crate::stat::sheet;
use std::sync::Arc;
use weir_transport::{Egress, Outgoing, Refused};

/// Bytes of one QP in one burst: other QPs, and the arrivals, get their turn.
const BURST: usize = 256 << 10;
/// Packets are published when there are this many bytes of them: the peer copies them while this side writes more.
const PUBLISHED: usize = 16 << 10;

/// Writes packets of one QP into a ring.
pub struct RingEgress<'a> {
    pub producer: &'a mut Producer,
    /// What packets of the QP must carry.
    pub tag: u32,
    /// The QP and its PD.
    pub user: User,
    pub faults: &'a Arc<QpFaults>,
    pub regions: &'a Regions,
    pub cached: &'a mut Cached,
    pub shown: &'static sheet::Device,
    pub written: Written,
}

/// What was written.
#[derive(Default)]
pub struct Written {
    pub packets: u64,
    pub bytes: usize,
    unpublished: usize,
    /// Bytes that found the ring full.
    lost: usize,
    /// The peer has written what no Weir process writes.
    pub lie: bool,
}

impl Egress for RingEgress<'_> {
    #[inline]
    fn has_room(&self) -> bool {
        // What is lost took as much time.
        self.written.bytes + self.written.lost <= BURST && !self.written.lie
    }

    #[inline]
    fn push(&mut self, packet: &Outgoing<'_>) -> Result<(), Refused> {
        let (headers, payload) = (packet.headers.len(), packet.payload.len());
        let body = payload + usize::from(packet.headers.bth.pad);
        if !self.has_room() {
            return Err(Refused::Full);
        }
        let room = match self.producer.reserve(headers, body) {
            Ok(room) => room,
            // The packet is lost, as on a wire that carries more than the receiver takes.
            Err(NoRoom::Full) => {
                self.shown.traffic.ring_full.bump(1);
                self.written.lost += headers + body;
                return Ok(());
            }
            Err(NoRoom::Lie) => {
                self.written.lie = true;
                return Ok(());
            }
        };
        let (start, rest) = self.producer.buffers(&room);
        packet.headers.emit(start);
        let (data, pad) = rest.split_at_mut(payload);
        let side = side_of(&packet.payload);
        let (user, regions, faults) = (self.user, self.regions, self.faults);
        let mut memory = Memory { user, side, regions, cached: self.cached, faults };
        fill(&mut memory, &packet.payload, data).map_err(Refused::Denied)?;
        pad.fill(0);
        self.producer.commit(room, self.tag);
        self.written.packets += 1;
        self.written.bytes += headers + body;
        self.written.unpublished += body;
        if self.written.unpublished >= PUBLISHED {
            self.written.unpublished = 0;
            self.producer.publish();
        }
        Ok(())
    }
}
