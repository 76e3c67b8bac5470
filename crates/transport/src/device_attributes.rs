//! What programs read of an adapter by `ibv_query_device` and `ibv_query_device_ex`, as far as adapters differ in it.

use crate::SendOp;
use bitflags::bitflags;
use weir_wire::Service;

/// The most READs and atomics that an adapter may allow for a QP, in either direction.
pub const MAX_RD_ATOMIC: u8 = 128;

bitflags! {
    /// `ibv_odp_transport_cap_bits`, bit for bit: the operations that wait for missing pages.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct OdpOps: u32 {
        const SEND = 1;
        const RECV = 2;
        const WRITE = 4;
        const READ = 8;
        const ATOMIC = 16;
        const SRQ_RECV = 32;
        const FLUSH = 64;
        const ATOMIC_WRITE = 128;
    }
}

/// Attributes of a device, under the names of `ibv_device_attr`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceAttributes {
    /// The most READs and atomics of the peer that a QP accepts at a time: the limit of `max_dest_rd_atomic`.
    pub max_qp_rd_atom: u8,
    /// The most READs and atomics that a QP has outstanding: the limit of `max_rd_atomic`.
    pub max_qp_init_rd_atom: u8,
    /// How long the adapter takes for an ACK: 4.096 µs · 2^value.
    pub local_ca_ack_delay: u8,
    pub odp: OdpCaps,
}

/// The operations of each service for which the adapter has ODP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OdpCaps {
    /// All memory of a process may be one region.
    pub implicit: bool,
    pub rc: OdpOps,
    pub uc: OdpOps,
    pub ud: OdpOps,
    pub xrc: OdpOps,
}

impl OdpCaps {
    /// The operations of a service. Verbs have no capabilities of raw QPs: these have ODP.
    pub fn of(&self, service: Service) -> OdpOps {
        match service {
            Service::Uc => self.uc,
            Service::Ud => self.ud,
            Service::Xrc => self.xrc,
            Service::Raw => OdpOps::all(),
            Service::Rc | Service::Rd | Service::Other => self.rc,
        }
    }
}

impl OdpOps {
    /// The operation of a work request, which the requester executes.
    pub(crate) fn of(op: &SendOp) -> OdpOps {
        match op {
            SendOp::Send | SendOp::SendImm { .. } | SendOp::SendInvalidate { .. } => OdpOps::SEND,
            SendOp::Write { .. } | SendOp::WriteImm { .. } => OdpOps::WRITE,
            SendOp::Read { .. } => OdpOps::READ,
            SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. } => OdpOps::ATOMIC,
            SendOp::AtomicWrite { .. } => OdpOps::ATOMIC_WRITE,
            SendOp::Flush { .. } => OdpOps::FLUSH,
            // They touch no memory.
            SendOp::LocalInvalidate { .. } | SendOp::BindWindow(_) => OdpOps::empty(),
        }
    }
}

impl DeviceAttributes {
    /// What Weir itself can do.
    pub(crate) const fn ideal() -> DeviceAttributes {
        let messages = OdpOps::SEND.union(OdpOps::RECV).union(OdpOps::SRQ_RECV);
        let odp = OdpCaps {
            implicit: true,
            rc: OdpOps::all(),
            uc: messages.union(OdpOps::WRITE),
            ud: messages,
            // XRC receives by SRQs only.
            xrc: OdpOps::all().difference(OdpOps::RECV),
        };
        DeviceAttributes { max_qp_rd_atom: 16, max_qp_init_rd_atom: 16, local_ca_ack_delay: 15, odp }
    }
}
