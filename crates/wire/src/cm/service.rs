//! Service IDs, and the messages that resolve one to a UD QP.

use super::bits::{Bits, Value, message};
use std::fmt;

/// What a listener listens on, and a REQ or SIDR_REQ asks for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ServiceId(pub u64);

/// Bits 16 to 31 of a service ID that stands for an IP port: the librdmacm's port spaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortSpace(pub u16);

impl PortSpace {
    /// RC, as TCP.
    pub const TCP: PortSpace = PortSpace(0x0106);
    /// UD, as UDP.
    pub const UDP: PortSpace = PortSpace(0x0111);
    /// Any service, for addresses of InfiniBand.
    pub const IB: PortSpace = PortSpace(0x013f);
}

impl ServiceId {
    /// The ID of an IP port (IBTA annex A11).
    pub const fn ip(space: PortSpace, port: u16) -> ServiceId {
        ServiceId((space.0 as u64) << 16 | port as u64)
    }

    /// The IP port that the ID stands for; none if it does not have that form.
    pub const fn as_ip(self) -> Option<(PortSpace, u16)> {
        match self.0 >> 24 {
            1 => Some((PortSpace((self.0 >> 16) as u16), self.0 as u16)),
            _ => None,
        }
    }
}

impl fmt::Debug for ServiceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ServiceId({:#018x})", self.0)
    }
}

impl Value for ServiceId {
    fn get(bytes: &[u8], at: Bits) -> Self {
        ServiceId(u64::get(bytes, at))
    }

    fn put(&self, bytes: &mut [u8], at: Bits) {
        self.0.put(bytes, at);
    }
}

/// `status` of a SIDR_REP (IBTA 12.11.2).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct SidrStatus(pub u8);

impl SidrStatus {
    /// QPN and Q_Key are valid.
    pub const VALID: SidrStatus = SidrStatus(0);
    /// There is no such service.
    pub const UNSUPPORTED: SidrStatus = SidrStatus(1);
    /// The service refuses.
    pub const REJECTED: SidrStatus = SidrStatus(2);
    /// The service has no QP.
    pub const NO_QP: SidrStatus = SidrStatus(3);
    /// Another port serves it.
    pub const REDIRECT: SidrStatus = SidrStatus(4);
    /// The receiver does not support the class version.
    pub const UNSUPPORTED_VERSION: SidrStatus = SidrStatus(5);
}

impl Value for SidrStatus {
    fn get(bytes: &[u8], at: Bits) -> Self {
        SidrStatus(u8::get(bytes, at))
    }

    fn put(&self, bytes: &mut [u8], at: Bits) {
        self.0.put(bytes, at);
    }
}

message! {
    /// SIDR_REQ: which UD QP serves a service ID? (IBTA 12.11.1)
    SidrReq {
        request_id: u32 = (0, 0, 32),
        pkey: u16 = (4, 0, 16),
        service_id: ServiceId = (8, 0, 64),
        private: [u8; 216] = (16, 0, 1728),
    }
}
message! {
    /// SIDR_REP: the answer to SIDR_REQ (IBTA 12.11.2).
    SidrRep {
        request_id: u32 = (0, 0, 32),
        status: SidrStatus = (4, 0, 8),
        /// Valid bytes of `info`.
        info_len: u8 = (5, 0, 8),
        qpn: u32 = (8, 0, 24),
        service_id: ServiceId = (12, 0, 64),
        qkey: u32 = (20, 0, 32),
        /// Additional information; its meaning is that of the status.
        info: [u8; 72] = (24, 0, 576),
        private: [u8; 136] = (96, 0, 1088),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn service_ids_stand_for_ports() {
        assert_eq!(ServiceId::ip(PortSpace::TCP, 18515), ServiceId(0x0000_0000_0106_4853));
        assert_eq!(ServiceId(0x0000_0000_0111_0007).as_ip(), Some((PortSpace::UDP, 7)));
        for other in [0, 0x0000_0000_0206_0001, 0x1000_0000_0106_0001, u64::MAX] {
            assert_eq!(ServiceId(other).as_ip(), None);
        }
    }
}
