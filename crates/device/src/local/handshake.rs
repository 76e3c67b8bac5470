//! The messages by which two processes agree on a segment, over a unix socket.
//!
//! The acceptor sends a *greeting* with a nonce. The connector sends a *claim*: which peer it is, a nonce of its own, and
//! a code over all of that, with the segment's file beside it. The acceptor sends an *answer*: a code over both nonces.
//! The key of the codes consists of the incarnations of both processes, which each has received only in the proof of a QP
//! (`engine/peers/proof.rs`). So each side knows that the other end of the socket is the process that proved its QPs. A
//! process that merely has the name of the socket cannot make a code.

use siphasher::sip128::{Hasher128, SipHasher24};
use std::hash::Hasher;
use std::net::{IpAddr, Ipv6Addr};

/// First bytes of each message, with the version of the format.
const MAGIC: [u8; 8] = *b"weirmem1";
/// Bytes of the messages. A claim is the longest.
const GREETING_LEN: usize = 16;
pub const CLAIM_LEN: usize = 8 + 8 + 16 + 16 + 2 + CODE_LEN;
const ANSWER_LEN: usize = 8 + CODE_LEN;
const CODE_LEN: usize = 16;
/// The message that wakes the peer's thread.
pub const WAKE: [u8; 1] = [0];

/// What only the two processes have.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Keys {
    /// The incarnation of the process that connected, as it is sealed in its proofs.
    pub connector: u64,
    /// That of the process that accepted.
    pub acceptor: u64,
}

/// The connector's message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    pub nonce: u64,
    /// The connector's address, and that of its peer.
    pub from: IpAddr,
    pub to: IpAddr,
    /// The connector's slot.
    pub slot: u16,
    code: [u8; CODE_LEN],
}

/// A greeting with this nonce.
pub fn greeting(nonce: u64) -> [u8; GREETING_LEN] {
    let mut message = [0; GREETING_LEN];
    message[..8].copy_from_slice(&MAGIC);
    message[8..].copy_from_slice(&nonce.to_be_bytes());
    message
}

/// The nonce of a greeting; `None` if the message is none.
pub fn read_greeting(message: &[u8]) -> Option<u64> {
    let message: &[u8; GREETING_LEN] = message.try_into().ok()?;
    let (magic, nonce) = message.split_first_chunk::<8>()?;
    (*magic == MAGIC).then(|| u64::from_be_bytes(nonce.try_into().expect("eight bytes")))
}

impl Claim {
    /// The claim that answers a greeting.
    pub fn new(keys: &Keys, greeting: u64, nonce: u64, from: IpAddr, to: IpAddr, slot: u16) -> Claim {
        let mut claim = Claim { nonce, from, to, slot, code: [0; CODE_LEN] };
        claim.code = claim.expected(keys, greeting);
        claim
    }

    /// Its wire format.
    pub fn encode(&self) -> [u8; CLAIM_LEN] {
        let mut message = [0; CLAIM_LEN];
        message[..8].copy_from_slice(&MAGIC);
        message[8..16].copy_from_slice(&self.nonce.to_be_bytes());
        message[16..32].copy_from_slice(&octets(self.from));
        message[32..48].copy_from_slice(&octets(self.to));
        message[48..50].copy_from_slice(&self.slot.to_be_bytes());
        message[50..].copy_from_slice(&self.code);
        message
    }

    /// `None` if the message is no claim.
    pub fn decode(message: &[u8]) -> Option<Claim> {
        let message: &[u8; CLAIM_LEN] = message.try_into().ok()?;
        if message[..8] != MAGIC {
            return None;
        }
        Some(Claim {
            nonce: u64::from_be_bytes(message[8..16].try_into().expect("eight bytes")),
            from: address(message[16..32].try_into().expect("sixteen bytes")),
            to: address(message[32..48].try_into().expect("sixteen bytes")),
            slot: u16::from_be_bytes([message[48], message[49]]),
            code: message[50..].try_into().expect("the rest"),
        })
    }

    /// Returns whether it comes from the process that has the keys, and answers this greeting.
    pub fn is_valid(&self, keys: &Keys, greeting: u64) -> bool {
        self.code == self.expected(keys, greeting)
    }

    /// The answer of the process that has the keys.
    pub fn answer(&self, keys: &Keys, greeting: u64) -> [u8; ANSWER_LEN] {
        let mut message = [0; ANSWER_LEN];
        message[..8].copy_from_slice(&MAGIC);
        message[8..].copy_from_slice(&code(keys, b'a', greeting, self.nonce, &[]));
        message
    }

    fn expected(&self, keys: &Keys, greeting: u64) -> [u8; CODE_LEN] {
        let (from, to) = (octets(self.from), octets(self.to));
        code(keys, b'c', greeting, self.nonce, &[&from, &to, &self.slot.to_be_bytes()])
    }
}

fn code(keys: &Keys, purpose: u8, greeting: u64, nonce: u64, fields: &[&[u8]]) -> [u8; CODE_LEN] {
    let mut hasher = SipHasher24::new_with_keys(keys.connector, keys.acceptor);
    hasher.write_u8(purpose);
    hasher.write_u64(greeting);
    hasher.write_u64(nonce);
    fields.iter().for_each(|field| hasher.write(field));
    hasher.finish128().as_bytes()
}

fn octets(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

fn address(octets: [u8; 16]) -> IpAddr {
    Ipv6Addr::from(octets).to_canonical()
}

/// The body of the fuzz target: any bytes as a message. What is read encodes to the same bytes, and no code is right.
#[cfg(any(test, feature = "testing"))]
pub fn fuzz(bytes: &[u8]) {
    if let Some(nonce) = read_greeting(bytes) {
        assert_eq!(greeting(nonce)[..], *bytes);
    }
    let Some(claim) = Claim::decode(bytes) else { return };
    // An address that is mapped into IPv6 decodes to the same address; others are kept as they are.
    assert_eq!(claim.encode()[..], *bytes);
    let keys = Keys { connector: 0x1234_5678_9abc_def0, acceptor: 0x0fed_cba9_8765_4321 };
    assert!(!claim.is_valid(&keys, claim.nonce), "a code was guessed");
    let right = Claim::new(&keys, claim.nonce, claim.nonce, claim.from, claim.to, claim.slot);
    assert!(right.is_valid(&keys, claim.nonce) && Claim::decode(&right.encode()) == Some(right));
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEYS: Keys = Keys { connector: 11, acceptor: 22 };

    fn claim(from: &str) -> Claim {
        Claim::new(&KEYS, 5, 6, from.parse().unwrap(), "10.0.0.2".parse().unwrap(), 77)
    }

    #[test]
    fn messages_are_decoded_as_encoded() {
        assert_eq!(read_greeting(&greeting(0x0102_0304_0506_0708)), Some(0x0102_0304_0506_0708));
        for from in ["10.0.0.1", "fd00::7"] {
            let claim = claim(from);
            assert_eq!(Claim::decode(&claim.encode()), Some(claim));
            assert!(claim.is_valid(&KEYS, 5));
        }
        let (mut greeting, mut claim) = (greeting(1), claim("10.0.0.1").encode());
        assert_eq!((read_greeting(&greeting[1..]), Claim::decode(&claim[1..])), (None, None));
        (greeting[7], claim[7]) = (b'2', b'2');
        assert_eq!((read_greeting(&greeting), Claim::decode(&claim)), (None, None), "another version");
    }

    #[test]
    fn a_code_holds_for_its_keys_nonces_and_fields_alone() {
        let claim = claim("10.0.0.1");
        assert!(!claim.is_valid(&KEYS, 6), "another greeting");
        for keys in
            [Keys { connector: 12, ..KEYS }, Keys { acceptor: 12, ..KEYS }, Keys { connector: 22, acceptor: 11 }]
        {
            assert!(!claim.is_valid(&keys, 5));
            assert_ne!(claim.answer(&keys, 5), claim.answer(&KEYS, 5));
        }
        let others = [
            Claim { nonce: 7, ..claim },
            Claim { from: claim.to, ..claim },
            Claim { to: claim.from, ..claim },
            Claim { slot: 78, ..claim },
        ];
        assert!(others.iter().all(|other| !other.is_valid(&KEYS, 5)));
        assert_ne!(claim.answer(&KEYS, 5), claim.answer(&KEYS, 4));
        // The acceptor's code is not the connector's, sent back.
        assert_ne!(claim.answer(&KEYS, 5)[8..], claim.code);
    }

    /// The inputs of the fuzz target, and messages with one changed byte.
    #[test]
    fn fuzzed_messages_are_no_claims_of_the_peer() {
        weir_trials::run("handshake", fuzz);
        for message in [greeting(7).to_vec(), claim("10.0.0.1").encode().to_vec(), claim("fd00::7").encode().to_vec()] {
            for at in 0..message.len() {
                let mut changed = message.clone();
                changed[at] ^= 0x55;
                fuzz(&changed);
                fuzz(&message[..at]);
            }
        }
    }
}
