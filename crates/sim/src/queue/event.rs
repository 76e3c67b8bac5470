//! What happens in a simulation, and its form in the queue of events.

use crate::ids::{HostId, QpId};
use crate::packet::PacketKey;

/// A future event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// A host's port is free for the next packet.
    PortFree(HostId),
    /// The first packet in a pipe arrives at its end.
    Arrival(u32),
    /// A packet arrives at the end of a pipe, behind packets that entered the pipe later.
    Straggler(u32, PacketKey),
    /// A QP's deadline, unless it has moved.
    Deadline(QpId),
    /// A page fault of a host ends.
    FaultEnds(HostId, u32),
    /// A page-fault event of a host is served: a requester may resume.
    ResumeRequesters(HostId),
    /// The payload of the first packet that waits for a host's bus is written.
    Written(HostId),
    /// A timer of the application.
    Timer(u64),
}

/// An event as two words: what it is, in the low byte of the first, and its values. An enum would be written in parts
/// and read as a whole, for which a processor waits until the parts have left its store buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Packed(pub u64, pub u64);

impl Event {
    #[inline(always)]
    pub(super) fn pack(self) -> Packed {
        match self {
            Event::PortFree(host) => Packed(u64::from(host.0) << 8, 0),
            Event::Arrival(pipe) => Packed(u64::from(pipe) << 8 | 1, 0),
            Event::Deadline(qp) => Packed(u64::from(qp.host.0) << 8 | 2, qp.num.into()),
            Event::FaultEnds(host, fault) => Packed(u64::from(host.0) << 8 | 3, fault.into()),
            Event::ResumeRequesters(host) => Packed(u64::from(host.0) << 8 | 4, 0),
            Event::Timer(token) => Packed(5, token),
            Event::Written(host) => Packed(u64::from(host.0) << 8 | 7, 0),
            Event::Straggler(pipe, packet) => Packed(u64::from(pipe) << 8 | 6, packet.number().into()),
        }
    }
}

impl Packed {
    #[inline(always)]
    pub(super) fn unpack(self) -> Event {
        let Packed(what, value) = self;
        let (number, host) = ((what >> 8) as u32, HostId((what >> 8) as u32));
        match what & 0xff {
            0 => Event::PortFree(host),
            1 => Event::Arrival(number),
            2 => Event::Deadline(QpId { host, num: value as u32 }),
            3 => Event::FaultEnds(host, value as u32),
            4 => Event::ResumeRequesters(host),
            5 => Event::Timer(value),
            7 => Event::Written(host),
            _ => Event::Straggler(number, PacketKey::from_number(value as u32)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_the_same_after_packing() {
        let host = HostId(u32::MAX);
        for event in [
            Event::PortFree(host),
            Event::Arrival(u32::MAX),
            Event::Deadline(QpId { host, num: 0xff_ffff }),
            Event::FaultEnds(host, u32::MAX),
            Event::ResumeRequesters(host),
            Event::Timer(u64::MAX),
            Event::Written(host),
            Event::Straggler(u32::MAX, PacketKey::from_number(u32::MAX)),
        ] {
            assert_eq!(event.pack().unpack(), event);
        }
    }
}
