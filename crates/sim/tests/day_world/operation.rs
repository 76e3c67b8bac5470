//! A random operation: the bytes of its slot on both sides before and after it.

use super::SLOT;
use weir_transport::{Instant, OdpOps, SendOp};
use weir_trials::Rng;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Send,
    Write,
    Read,
    FetchAdd,
    /// The value is the expected one, or not.
    CompareSwap(bool),
}

#[derive(Clone, Debug)]
pub struct Operation {
    pub number: u64,
    pub kind: Kind,
    pub slot: usize,
    /// Offset within the slot, the same on both sides, and length.
    pub at: u64,
    pub len: u32,
    pub signaled: bool,
    pub fenced: bool,
    pub posted: Instant,
}

impl Operation {
    /// Its slot is chosen later.
    pub fn random(rng: &mut Rng, number: u64, posted: Instant) -> Operation {
        let kind = match rng.below(8) {
            0..=1 => Kind::Send,
            2..=3 => Kind::Write,
            4..=5 => Kind::Read,
            6 => Kind::FetchAdd,
            _ => Kind::CompareSwap(rng.below(2) == 0),
        };
        let (at, len) = if matches!(kind, Kind::FetchAdd | Kind::CompareSwap(_)) {
            (rng.below(SLOT / 8) * 8, 8)
        } else {
            let at = rng.below(SLOT);
            // Often short.
            let most = if rng.below(2) == 0 { 64 } else { SLOT };
            (at, rng.below(most.min(SLOT - at) + 1))
        };
        let (signaled, fenced) = (rng.below(4) > 0, rng.below(8) == 0);
        Operation { number, kind, slot: 0, at: at as u64, len: len as u32, signaled, fenced, posted }
    }

    /// What on-demand memory on both sides needs.
    pub fn odp(&self) -> OdpOps {
        match self.kind {
            Kind::Send => OdpOps::SEND | OdpOps::RECV,
            Kind::Write => OdpOps::WRITE,
            Kind::Read => OdpOps::READ,
            Kind::FetchAdd | Kind::CompareSwap(_) => OdpOps::ATOMIC,
        }
    }

    pub fn send_op(&self, remote_addr: u64, rkey: u32) -> SendOp {
        match self.kind {
            Kind::Send => SendOp::Send,
            Kind::Write => SendOp::Write { remote_addr, rkey },
            Kind::Read => SendOp::Read { remote_addr, rkey },
            Kind::FetchAdd => SendOp::FetchAdd { remote_addr, rkey, add: self.number },
            Kind::CompareSwap(expected) => {
                let compare = if expected { self.word(true) } else { !self.word(true) };
                SendOp::CompareSwap { remote_addr, rkey, compare, swap: self.number }
            }
        }
    }

    /// The bytes of the slot on one side before it.
    pub fn before(&self, remote: bool) -> Vec<u8> {
        let start = self.number.wrapping_mul(2654435761).wrapping_add(if remote { 128 } else { 0 });
        (0..SLOT as u64).map(|i| (start.wrapping_add(i.wrapping_mul(7)) ^ (i >> 8)) as u8).collect()
    }

    /// The bytes of the slot on one side after it.
    pub fn after(&self, remote: bool) -> Vec<u8> {
        let (mut bytes, range) = (self.before(remote), self.at as usize..self.at as usize + self.len as usize);
        let comes_here = match self.kind {
            Kind::Send | Kind::Write => remote,
            Kind::Read => !remote,
            Kind::FetchAdd | Kind::CompareSwap(_) => true,
        };
        if !comes_here {
            return bytes;
        }
        let other = || self.before(!remote)[range.clone()].to_vec();
        let new = match self.kind {
            Kind::FetchAdd if remote => self.word(true).wrapping_add(self.number).to_ne_bytes().to_vec(),
            Kind::CompareSwap(true) if remote => self.number.to_ne_bytes().to_vec(),
            Kind::CompareSwap(false) if remote => return bytes,
            _ => other(),
        };
        bytes[range].copy_from_slice(&new);
        bytes
    }

    /// The word at its place before it.
    fn word(&self, remote: bool) -> u64 {
        let at = self.at as usize;
        u64::from_ne_bytes(self.before(remote)[at..at + 8].try_into().expect("eight bytes"))
    }
}
