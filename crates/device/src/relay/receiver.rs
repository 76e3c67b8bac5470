//! To which process of the network namespace the holder of port 4791 hands a packet over.

use crate::os::name::Name;
use crate::slot;

/// A process, by the name that it has claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Receiver {
    /// The process of a slot: packets for its QPs.
    Slot(u16),
    /// The process that listens for requests to a service (IBTA A11.2): MADs that begin a connection.
    Service(u64),
    /// The process with this number in its communication ids: MADs that belong to a connection.
    Communication(u32),
}

/// Bits of a communication id that count within a process; the bits above are the number of the process.
pub const COMMUNICATION_BITS: u32 = 20;
/// Numbers of processes in communication ids.
pub const COMMUNICATIONS: u32 = 1 << (32 - COMMUNICATION_BITS);

impl Receiver {
    /// The name of its socket in the abstract namespace.
    pub fn name(self) -> Name {
        match self {
            Receiver::Slot(slot) => slot::name(slot),
            Receiver::Service(service) => Name::new(format_args!("weir/service/{service:x}")),
            Receiver::Communication(number) => Name::new(format_args!("weir/cm/{number}")),
        }
    }

    /// Returns whether it is the process of a communication id that the sender did not know. No process has that number.
    pub fn is_unknown(self) -> bool {
        self == Receiver::Communication(0)
    }

    /// The receiver of a management datagram (MAD) of the communication manager; `None` for other MADs. `mad`: its 256
    /// bytes, from the header on (IBTA 13.4.3, 16.7.1).
    pub fn of_mad(mad: &[u8]) -> Option<Receiver> {
        const REQ: u16 = 0x10;
        const SIDR_REQ: u16 = 0x17;
        const SIDR_REP: u16 = 0x18;
        const LAST: u16 = 0x1a;
        let word = |at: usize| Some(u32::from_be_bytes(*mad.get(at..)?.first_chunk()?));
        let service = || Some(Receiver::Service(u64::from_be_bytes(*mad.get(32..)?.first_chunk()?)));
        let process = |id: u32| Receiver::Communication(id >> COMMUNICATION_BITS);
        // Base version 1, class 7 (communication management) of version 2, method Send.
        if word(0)? != 0x0107_0203 {
            return None;
        }
        match u16::from_be_bytes(*mad.get(16..)?.first_chunk()?) {
            REQ | SIDR_REQ => service(),
            // Its first word is the id that the request had.
            SIDR_REP => Some(process(word(24)?)),
            // The first word is the id of the sender, the second that of the receiver.
            REQ..=LAST => Some(process(word(28)?)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mad(attribute: u16) -> [u8; 256] {
        let mut mad = [0; 256];
        mad[..4].copy_from_slice(&[1, 7, 2, 3]);
        mad[16..18].copy_from_slice(&attribute.to_be_bytes());
        mad[24..28].copy_from_slice(&0x1230_0001u32.to_be_bytes());
        mad[28..32].copy_from_slice(&0x4560_0002u32.to_be_bytes());
        mad[32..40].copy_from_slice(&0x0106_1d2fu64.to_be_bytes());
        mad
    }

    #[test]
    fn a_mad_goes_to_the_process_of_its_service_or_connection() {
        for (attribute, receiver) in [
            (0x10, Some(Receiver::Service(0x0106_1d2f))),
            (0x12, Some(Receiver::Communication(0x456))),
            (0x13, Some(Receiver::Communication(0x456))),
            (0x17, Some(Receiver::Service(0x0106_1d2f))),
            (0x18, Some(Receiver::Communication(0x123))),
            (0x1b, None),
        ] {
            assert_eq!(Receiver::of_mad(&mad(attribute)), receiver, "attribute {attribute:#x}");
        }
        let mut other_class = mad(0x10);
        other_class[1] = 3;
        assert_eq!(Receiver::of_mad(&other_class), None);
        assert_eq!(Receiver::of_mad(&mad(0x10)[..39]), None);
    }

    #[test]
    fn every_name_has_room() {
        assert_eq!(&*Receiver::Service(u64::MAX).name(), "weir/service/ffffffffffffffff");
        assert_eq!(&*Receiver::Communication(COMMUNICATIONS - 1).name(), "weir/cm/4095");
        assert_eq!(&*Receiver::Slot(1022).name(), "weir/slot/1022");
    }
}
