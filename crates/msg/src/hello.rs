//! What two endpoints tell each other when they connect: names, and how much may be sent to them.

use crate::flow::SMALLEST_RECEIVES;
use std::fmt;

/// Longest name of an endpoint, bytes: a socket address.
pub const MAX_NAME: usize = 28;
/// Length of a hello, bytes. It fits into the private data that librdmacm carries (56 bytes).
pub const HELLO_LEN: usize = 20 + MAX_NAME;

const MAGIC: u32 = 0x5765_4d73;
const VERSION: u8 = 1;

/// The name by which peers find an endpoint: bytes that only the port understands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name {
    bytes: [u8; MAX_NAME],
    len: u8,
}

/// What an endpoint says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    pub name: Name,
    /// Receives that it posts for this connection.
    pub receives: u16,
    /// Bytes of each receive.
    pub slot: u32,
    /// Bytes of messages that may arrive before they match ([`crate::Settings::unexpected`]).
    pub unexpected: u32,
    /// Announcements that may arrive before they match ([`crate::Settings::announced`]).
    pub announced: u32,
}

/// Why an endpoint refuses a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rejection {
    /// Both sides connect at once, and the other connection stays.
    Crossing,
    /// The endpoint speaks another version of the protocol, or is none.
    Version,
    /// The endpoint has no resources left.
    Resources,
}

impl Name {
    /// `None`: it is longer than [`MAX_NAME`].
    pub fn new(name: &[u8]) -> Option<Name> {
        let mut bytes = [0; MAX_NAME];
        bytes.get_mut(..name.len())?.copy_from_slice(name);
        Some(Name { bytes, len: name.len() as u8 })
    }

    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl Hello {
    /// Its bytes.
    pub fn emit(&self) -> [u8; HELLO_LEN] {
        let mut out = [0; HELLO_LEN];
        out[..4].copy_from_slice(&MAGIC.to_le_bytes());
        out[4] = VERSION;
        out[5] = self.name.len;
        out[6..8].copy_from_slice(&self.receives.to_le_bytes());
        out[8..12].copy_from_slice(&self.slot.to_le_bytes());
        out[12..16].copy_from_slice(&self.unexpected.to_le_bytes());
        out[16..20].copy_from_slice(&self.announced.to_le_bytes());
        out[20..].copy_from_slice(&self.name.bytes);
        out
    }

    /// Reads a hello. Bytes behind it are ignored, because connection managers pad private data. `None`: these bytes are no hello of
    /// this version, or say what no endpoint says.
    pub fn parse(bytes: &[u8]) -> Option<Hello> {
        let bytes: &[u8; HELLO_LEN] = bytes.first_chunk()?;
        let u32_at = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        if u32_at(0) != MAGIC || bytes[4] != VERSION {
            return None;
        }
        let hello = Hello {
            name: Name::new(bytes[20..].get(..usize::from(bytes[5]))?)?,
            receives: u16::from_le_bytes([bytes[6], bytes[7]]),
            slot: u32_at(8),
            unexpected: u32_at(12),
            announced: u32_at(16),
        };
        let usable = hello.receives >= SMALLEST_RECEIVES && hello.slot as usize >= crate::SMALLEST_SLOT;
        usable.then_some(hello)
    }
}

impl Rejection {
    const ALL: [Rejection; 3] = [Rejection::Crossing, Rejection::Version, Rejection::Resources];

    /// Its number on the wire.
    pub fn code(self) -> u8 {
        self as u8 + 1
    }

    /// The rejection with this number on the wire.
    pub fn from_code(code: u8) -> Option<Rejection> {
        Rejection::ALL.into_iter().find(|rejection| rejection.code() == code)
    }
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Rejection::Crossing => "both sides connect at once",
            Rejection::Version => "the peer is no endpoint of weir-odp, or of another version",
            Rejection::Resources => "the peer has no resources for another connection",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hello_survives_the_wire_and_nonsense_does_not() {
        let name = Name::new(&[7; 16]).unwrap();
        let hello = Hello { name, receives: 32, slot: 8192, unexpected: 1 << 20, announced: 99 };
        let mut bytes = hello.emit().to_vec();
        bytes.resize(56, 0);
        assert_eq!(Hello::parse(&bytes), Some(hello));
        for (at, value) in [(0, 0), (4, 2), (5, 29), (6, 1), (9, 0)] {
            let mut wrong = bytes.clone();
            wrong[at] = value;
            assert_eq!(Hello::parse(&wrong), None, "byte {at}");
        }
        assert_eq!(Hello::parse(&bytes[..HELLO_LEN - 1]), None);
        assert_eq!(Name::new(&[0; 29]), None);
    }
}
