//! AETH syndromes: ACK, RNR NAK and NAK (IBTA 9.7.5.1, table 44 and 45).

use std::time::Duration;

/// The meaning of an AETH's syndrome byte.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Syndrome {
    /// An ACK; carries the credit code, 31 = no limit.
    Ack(u8),
    /// Receiver not ready; the requester waits for the timer's delay.
    RnrNak(RnrTimer),
    /// A NAK.
    Nak(NakCode),
    /// A reserved value.
    Reserved(u8),
}

/// The reason of a NAK.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum NakCode {
    /// A PSN is missing.
    PsnSequence = 0,
    /// Malformed or unsupported request.
    InvalidRequest = 1,
    /// Invalid key, bounds or permission.
    RemoteAccess = 2,
    /// The responder failed locally.
    RemoteOperational = 3,
}

/// An RNR NAK timer code, 0 ..= 31 (IBTA table 45).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RnrTimer(u8);

impl Syndrome {
    /// An ACK without credit limit.
    pub const ACK_UNLIMITED: Syndrome = Syndrome::Ack(31);

    /// Decodes a syndrome byte.
    pub const fn from_byte(byte: u8) -> Self {
        match byte >> 5 {
            0 => Syndrome::Ack(byte & 0x1f),
            1 => Syndrome::RnrNak(RnrTimer::new(byte)),
            3 => match byte & 0x1f {
                0 => Syndrome::Nak(NakCode::PsnSequence),
                1 => Syndrome::Nak(NakCode::InvalidRequest),
                2 => Syndrome::Nak(NakCode::RemoteAccess),
                3 => Syndrome::Nak(NakCode::RemoteOperational),
                _ => Syndrome::Reserved(byte),
            },
            _ => Syndrome::Reserved(byte),
        }
    }

    /// The number of receives that an ACK advertises beyond the messages counted by its MSN; `None`: no limit
    /// (IBTA 9.7.7.2, table 46).
    pub const fn credits(self) -> Option<u32> {
        match self {
            Syndrome::Ack(31) => None,
            Syndrome::Ack(code @ 0..2) => Some(code as u32),
            Syndrome::Ack(code) => Some((2 | (code & 1) as u32) << (code / 2 - 1)),
            _ => None,
        }
    }

    /// Encodes to a syndrome byte.
    pub const fn to_byte(self) -> u8 {
        match self {
            Syndrome::Ack(credits) => credits & 0x1f,
            Syndrome::RnrNak(timer) => 0x20 | timer.0,
            Syndrome::Nak(code) => 0x60 | code as u8,
            Syndrome::Reserved(byte) => byte,
        }
    }
}

impl RnrTimer {
    /// Takes the low five bits.
    pub const fn new(code: u8) -> Self {
        RnrTimer(code & 0x1f)
    }

    /// The code, 0 ..= 31.
    pub const fn code(self) -> u8 {
        self.0
    }

    /// The minimum time that the requester waits.
    pub const fn delay(self) -> Duration {
        /// In units of 10 µs.
        const TABLE: [u32; 32] = [
            65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072,
            4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
        ];
        Duration::from_micros(TABLE[self.0 as usize] as u64 * 10)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_round_trips() {
        for byte in 0..=255 {
            assert_eq!(Syndrome::from_byte(byte).to_byte(), byte);
        }
    }

    #[test]
    fn rnr_delays() {
        assert_eq!(RnrTimer::new(14).delay(), Duration::from_micros(1280));
        assert_eq!(RnrTimer::new(0).delay(), Duration::from_micros(655_360));
        assert_eq!(RnrTimer::new(31).delay(), Duration::from_micros(491_520));
    }
}
