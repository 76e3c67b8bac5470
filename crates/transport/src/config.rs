//! The state that the three state machines of a QP share: its attributes, and values derived from them.

use crate::quirk::Chance;
use crate::{Mtu, OdpOps, Profile, QpAttr, QpInit, QpState, ResponderFaults, Tuning};
use std::sync::Arc;
use std::time::Duration;
use weir_wire::{Bth, Headers, Opcode, Operation, Psn, Service};

/// A QP's attributes in the form that its inner loops need.
pub(crate) struct Config {
    pub init: QpInit,
    pub attr: QpAttr,
    pub profile: Arc<Profile>,
    pub tuning: Tuning,
    pub state: QpState,
    /// Payload bytes per packet.
    pub mtu: usize,
    /// Packets of the largest READ request.
    pub read_packets: u32,
    /// The shortest time before the QP gives up on its peer, whatever the retry count is.
    pub patience: Duration,
    /// XRC: this end responds and the other end sends requests.
    pub xrc_target: bool,
    /// Payload of SENDs, WRITEs and READ responses leaves in frames ([`weir_wire::frame`]).
    pub frames: bool,
    /// The application polls for completions; otherwise it waits for events.
    pub program_polls: bool,
    /// Path MTU of datagrams; no QP attribute contains it.
    pub datagram_mtu: Mtu,
    /// Raw: bytes of the longest Ethernet frame.
    pub ethernet_limit: usize,
}

/// Classes of QPs with the same state transitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    Rc,
    Uc,
    Ud,
    XrcInitiator,
    XrcTarget,
    Raw,
}

impl Config {
    /// The attributes of a QP in RESET.
    pub fn new(init: QpInit, profile: Arc<Profile>, tuning: Tuning) -> Self {
        let mut config = Config {
            init,
            attr: QpAttr { caps: init.caps, ..QpAttr::default() },
            profile,
            tuning,
            state: QpState::Reset,
            mtu: 0,
            read_packets: 1,
            patience: Duration::ZERO,
            xrc_target: false,
            frames: false,
            program_polls: true,
            datagram_mtu: Mtu::M4096,
            ethernet_limit: 1514,
        };
        config.derive();
        config
    }

    /// Recomputes the values that are derived from the attributes.
    pub fn derive(&mut self) {
        self.mtu = match self.init.service {
            Service::Ud => self.datagram_mtu.bytes(),
            Service::Raw => self.ethernet_limit,
            _ => self.attr.path_mtu.bytes(),
        };
        self.read_packets = (self.tuning.read_chunk / self.mtu).clamp(1, 1 << 20) as u32;
    }

    /// T_o of the local ACK timeout, drawn from `chance`; `None` = off.
    pub fn ack_timeout(&self, chance: &mut Chance) -> Option<Duration> {
        // T_tr = 4.096 µs · 2^timeout, detected within T_tr ..= 4·T_tr (IBTA 9.7.6.1.3, C9-140).
        (self.attr.timeout != 0).then(|| {
            let profile = &self.profile.ack_timeout;
            let t_tr = profile.t_tr(self.attr.timeout);
            t_tr.mul_f64(profile.factor.at(chance.share())).max(profile.floor)
        })
    }

    /// Whether a peer gets an RNR NAK if its request meets a page fault.
    pub fn answers_faults_with_naks(&self) -> bool {
        matches!(self.profile.page_faults.responder, ResponderFaults::RnrNak { .. })
    }

    /// Whether the adapter has ODP for an operation of this QP. Otherwise a missing page is an error, as memory that is
    /// not mapped is: a driver that does not resolve a page fault reports the same to the adapter in both cases.
    pub fn has_odp(&self, operation: OdpOps) -> bool {
        self.profile.device.odp.of(self.init.service).contains(operation)
    }

    /// The class, which decides about state transitions.
    #[inline]
    pub fn class(&self) -> Class {
        match self.init.service {
            Service::Uc => Class::Uc,
            Service::Ud => Class::Ud,
            Service::Xrc if self.xrc_target => Class::XrcTarget,
            Service::Xrc => Class::XrcInitiator,
            Service::Raw => Class::Raw,
            Service::Rc | Service::Rd | Service::Other => Class::Rc,
        }
    }

    /// Whether the service has acknowledgements.
    #[inline]
    pub fn is_reliable(&self) -> bool {
        !matches!(self.init.service, Service::Uc | Service::Ud | Service::Raw)
    }

    /// Whether each message is one packet.
    #[inline]
    pub fn has_datagrams(&self) -> bool {
        matches!(self.init.service, Service::Ud | Service::Raw)
    }

    /// Packets of a message of `length` bytes: a zero-length message takes one packet too (IBTA 9.7.2).
    pub fn packets(&self, length: u32) -> u32 {
        (u64::from(length).div_ceil(self.mtu as u64) as u32).max(1)
    }

    /// A BTH addressed to the peer, with the pad count for `payload` bytes.
    #[inline(always)]
    pub fn headers(&self, operation: Operation, psn: Psn, payload: usize) -> Headers {
        let opcode = Opcode::new(self.init.service, operation);
        let mut bth = Bth::new(opcode, self.attr.dest_qp_num, psn);
        bth.pad = (payload.wrapping_neg() & 3) as u8;
        Headers::new(bth)
    }
}
