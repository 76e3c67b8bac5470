//! Hellos: the control messages between two Weir processes, from slot port to slot port.
//!
//! A hello may *ask* (it carries a nonce) and may *answer* (it repeats the other side's nonce). The parameters
//! in a hello are used only if it answers: a sender that did not receive the nonce cannot answer, so forged source
//! addresses change nothing. An answer also carries a [`Proof`] for each QP that its sender has towards the asker.

use crate::Errno;
use crate::engine::peers::proof::{PROOF_LEN, Proof, checksum};
use std::time::Duration;

/// First bytes of a hello. As a BTH opcode, `W` belongs to the RD service, which no adapter implements.
pub const MAGIC: [u8; 4] = *b"WEIR";
/// Version of the format. A peer with another version is treated as a foreign adapter.
const VERSION: u8 = 2;
/// What a process offers, as bits of byte 5. A process ignores bits that it does not have: an offer holds only if both
/// sides make it.
const ICRC_AUTO: u8 = 1 << 0;
const FRAMES: u8 = 1 << 1;
const LOCAL: u8 = 1 << 2;
/// Bytes before the proofs.
const HEAD: usize = 64;
/// Bytes of the checksum at the end, because fault injection damages hellos too.
const TAIL: usize = 8;
/// The most proofs in one hello: it then fits into the minimum IPv6 MTU.
pub const MAX_PROOFS: usize = 48;
/// The longest hello, bytes.
pub const MAX_LEN: usize = HEAD + MAX_PROOFS * PROOF_LEN + TAIL;

/// The parameters of a process, without the proofs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The nonce that the answer must repeat; 0: no answer is requested.
    pub ask: u64,
    /// The nonce of the hello that this one answers; 0: it is no answer.
    pub answer: u64,
    /// Shows that the answer comes from the same process as earlier answers (`proof::alive`).
    pub alive: u64,
    /// The sender agrees to packets without ICRC on one machine.
    pub icrc_auto: bool,
    /// The sender accepts frames ([`weir_wire::frame`]), and sends frames to a peer that does.
    pub frames: bool,
    /// The sender offers shared memory to processes of its network namespace and user.
    pub local: bool,
    /// Identifies the running kernel.
    pub boot_id: [u8; 16],
    /// Bytes that the receiver of this hello may have in flight towards its sender.
    pub window: u32,
    /// How long the receiver of this hello keeps trying while its sender does not answer.
    pub patience: Duration,
    /// The number of a flow-control question (UC, UD); an answer repeats it, and its sender has taken in all packets
    /// that came before the question. 0: none.
    pub mark: u32,
}

impl Hello {
    /// Encodes the hello with as many proofs as fit; returns the length in bytes. `out` has at least [`MAX_LEN`].
    pub fn encode(&self, proofs: &[Proof], out: &mut [u8]) -> usize {
        let proofs = &proofs[..proofs.len().min(MAX_PROOFS)];
        let head = &mut out[..HEAD];
        head.fill(0);
        head[..4].copy_from_slice(&MAGIC);
        let offer = |made: bool, bit: u8| if made { bit } else { 0 };
        let offers = offer(self.icrc_auto, ICRC_AUTO) | offer(self.frames, FRAMES) | offer(self.local, LOCAL);
        (head[4], head[5], head[6]) = (VERSION, offers, proofs.len() as u8);
        head[8..24].copy_from_slice(&self.boot_id);
        head[24..32].copy_from_slice(&self.ask.to_be_bytes());
        head[32..40].copy_from_slice(&self.answer.to_be_bytes());
        head[40..48].copy_from_slice(&self.alive.to_be_bytes());
        head[48..52].copy_from_slice(&self.window.to_be_bytes());
        head[52..56].copy_from_slice(&(self.patience.as_millis() as u32).to_be_bytes());
        head[56..60].copy_from_slice(&self.mark.to_be_bytes());
        let mut len = HEAD;
        for proof in proofs {
            out[len..len + PROOF_LEN].copy_from_slice(&proof.0);
            len += PROOF_LEN;
        }
        let sum = checksum(&out[..len]);
        out[len..len + TAIL].copy_from_slice(&sum.to_be_bytes());
        len + TAIL
    }

    /// Decodes a hello and its proofs. `None` if the bytes are no undamaged hello of this version.
    pub fn decode(bytes: &[u8]) -> Option<(Hello, impl Iterator<Item = Proof> + Clone)> {
        let count = usize::from(*bytes.get(6)?);
        let end = HEAD + count * PROOF_LEN;
        if bytes.len() != end + TAIL || bytes[..4] != MAGIC || bytes[4] != VERSION {
            return None;
        }
        let word = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        let long = |at: usize| u64::from_be_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        if long(end) != checksum(&bytes[..end]) {
            return None;
        }
        let hello = Hello {
            ask: long(24),
            answer: long(32),
            alive: long(40),
            icrc_auto: bytes[5] & ICRC_AUTO != 0,
            frames: bytes[5] & FRAMES != 0,
            local: bytes[5] & LOCAL != 0,
            boot_id: bytes[8..24].try_into().expect("sixteen bytes"),
            window: word(48),
            patience: Duration::from_millis(u64::from(word(52))),
            mark: word(56),
        };
        let proofs = bytes[HEAD..end].chunks_exact(PROOF_LEN);
        Some((hello, proofs.map(|proof| Proof(proof.try_into().expect("the length of a proof")))))
    }
}

/// The running kernel's identity; zeros if it is not available. Error: EMFILE, ENFILE.
pub fn boot_id() -> Result<[u8; 16], Errno> {
    let text = match std::fs::read_to_string("/proc/sys/kernel/random/boot_id").map_err(Errno::from) {
        Err(error) if error.is_out_of_descriptors() => return Err(error),
        text => text.unwrap_or_default(),
    };
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    Ok(u128::from_str_radix(&digits, 16).unwrap_or(0).to_be_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hello_is_decoded_as_encoded_and_a_damaged_one_is_rejected() {
        let hello = Hello {
            ask: 0x1122_3344_5566_7788,
            answer: 9,
            alive: u64::MAX,
            icrc_auto: true,
            frames: true,
            local: true,
            boot_id: [9; 16],
            window: 123_456,
            patience: Duration::from_secs(60),
            mark: 77,
        };
        for count in [0, 1, MAX_PROOFS] {
            let proofs: Vec<Proof> = (0..count).map(|n| Proof([n as u8; PROOF_LEN])).collect();
            let mut bytes = [0xff; MAX_LEN];
            let len = hello.encode(&proofs, &mut bytes);
            let bytes = &mut bytes[..len];
            let (decoded, found) = Hello::decode(bytes).unwrap();
            assert_eq!((decoded, found.collect::<Vec<_>>()), (hello, proofs));
            for at in 0..len {
                assert!(Hello::decode(&bytes[..at]).is_none());
                bytes[at] ^= 0x10;
                assert!(Hello::decode(bytes).is_none(), "byte {at} is damaged");
                bytes[at] ^= 0x10;
            }
        }
        assert_ne!(boot_id().unwrap(), [0; 16]);
    }

    #[test]
    fn random_bytes_cause_no_panic() {
        let seed = getrandom::u64().unwrap();
        println!("seed {seed}");
        let mut state = seed;
        for _ in 0..20_000 {
            let mut bytes: Vec<u8> = (0..next(&mut state) % 200).map(|_| next(&mut state) as u8).collect();
            if bytes.len() > HEAD {
                // Bytes that pass the first checks, some of them as valid hellos.
                bytes[..4].copy_from_slice(&MAGIC);
                (bytes[4], bytes[6]) = (VERSION, bytes[6] % 8);
                let end = HEAD + usize::from(bytes[6]) * PROOF_LEN;
                bytes.resize(end, 0);
                bytes.extend(checksum(&bytes).to_be_bytes());
                assert!(Hello::decode(&bytes).is_some());
                bytes.truncate(next(&mut state) as usize % (bytes.len() + 1));
            }
            let _ = Hello::decode(&bytes).map(|(_, proofs)| proofs.count());
        }
    }

    /// The next number of a pseudo-random sequence.
    fn next(state: &mut u64) -> u64 {
        *state = crate::engine::peers::proof::alive(*state, 1);
        *state
    }
}
