//! What two Weir processes tell each other before they exchange packets, from slot port to slot port.
//!
//! A hello is answered by a welcome; both carry the same. No answer: the peer is another kind of adapter.

use std::time::Duration;

/// First bytes of a control datagram. As a BTH opcode `W` would be of the RD service, which nobody speaks.
pub const MAGIC: [u8; 4] = *b"WEIR";
/// Version of what follows. A peer with another one is treated as a foreign adapter.
const VERSION: u8 = 1;
/// Bytes of a control datagram.
const LEN: usize = 48;

/// What kind of control datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Wants a [`Kind::Welcome`] back.
    Hello = 1,
    /// The answer, or news: a window that has changed.
    Welcome = 2,
}

/// What a process says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Hello or welcome.
    pub kind: Kind,
    /// It agrees to packets without ICRC on one machine.
    pub icrc_auto: bool,
    /// Identifies the running kernel.
    pub boot_id: [u8; 16],
    /// Identifies this adapter instance: a restarted process has another.
    pub epoch: u64,
    /// Bytes that the receiver of this may have in flight towards its sender.
    pub window: u32,
    /// How long to keep trying while the sender of this does not answer.
    pub patience: Duration,
    /// A welcome repeats that of its hello: by then all that came before the hello was taken in. 0: nobody asks.
    pub mark: u32,
}

impl Hello {
    /// As bytes.
    pub fn encode(&self) -> [u8; LEN] {
        let mut out = [0; LEN];
        out[..4].copy_from_slice(&MAGIC);
        out[4] = VERSION;
        out[5] = self.kind as u8;
        out[6] = u8::from(self.icrc_auto);
        out[8..24].copy_from_slice(&self.boot_id);
        out[24..32].copy_from_slice(&self.epoch.to_be_bytes());
        out[32..36].copy_from_slice(&self.window.to_be_bytes());
        out[36..40].copy_from_slice(&(self.patience.as_millis() as u32).to_be_bytes());
        out[40..44].copy_from_slice(&self.mark.to_be_bytes());
        out
    }

    /// From bytes; `None` if they are no control datagram of our version.
    pub fn decode(bytes: &[u8]) -> Option<Hello> {
        let bytes: &[u8; LEN] = bytes.get(..LEN)?.try_into().ok()?;
        if bytes[..4] != MAGIC || bytes[4] != VERSION {
            return None;
        }
        let word = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        Some(Hello {
            kind: match bytes[5] {
                1 => Kind::Hello,
                2 => Kind::Welcome,
                _ => return None,
            },
            icrc_auto: bytes[6] & 1 != 0,
            boot_id: bytes[8..24].try_into().expect("sixteen bytes"),
            epoch: u64::from_be_bytes(bytes[24..32].try_into().expect("eight bytes")),
            window: word(32),
            patience: Duration::from_millis(u64::from(word(36))),
            mark: word(40),
        })
    }
}

/// The running kernel's identity; zeros if it does not tell.
pub fn boot_id() -> [u8; 16] {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    u128::from_str_radix(&digits, 16).unwrap_or(0).to_be_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip_and_garbage() {
        let hello = Hello {
            kind: Kind::Welcome,
            icrc_auto: true,
            boot_id: [9; 16],
            epoch: 0x1122_3344_5566_7788,
            window: 123_456,
            patience: Duration::from_secs(60),
            mark: 77,
        };
        let bytes = hello.encode();
        assert_eq!(Hello::decode(&bytes), Some(hello));
        for cut in 0..bytes.len() {
            assert_eq!(Hello::decode(&bytes[..cut]), None);
        }
        let mut other_version = bytes;
        other_version[4] = 2;
        assert_eq!(Hello::decode(&other_version), None);
        assert_ne!(boot_id(), [0; 16]);
    }
}
