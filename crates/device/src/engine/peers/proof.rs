//! How a process proves that it owns the QP at the other end of a connection.
//!
//! Both QPs have what their programs exchanged out of band: the two QPNs and the first PSN of each direction. A key
//! ([`PairKey`]) is derived from them. The answer to a hello carries, for each QP towards the asker, a [`Proof`] under
//! that key. The proof seals what the prover demands: a *tag* that packets to its QP carry in place of an omitted
//! ICRC, and the prover's *incarnation*, by which later answers show that they come from the same process.
//! A process that takes the port of a dead peer has neither.
//!
//! A hello itself contains no QPNs and PSNs, so that a program that answers at the port of a foreign peer has to guess
//! them. SECURITY.md says what protection that gives.

use crate::engine::peers::identity::PeerKey;
use siphasher::sip::SipHasher24;
use siphasher::sip128::{Hasher128, SipHasher24 as SipHasher24To128};
use std::hash::Hasher;
use std::net::IpAddr;

/// Bytes of a proof: an ID of its QP, and the sealed demand.
pub const PROOF_LEN: usize = ID + SEALED;
const ID: usize = 8;
const SEALED: usize = 4 + 8;

/// A secret of this process. The values for different peers differ and are derived from it, so that none is stored.
pub struct Secret([u8; 16]);

impl Secret {
    /// A new one. Error: the system has no random numbers.
    pub fn new() -> Result<Secret, getrandom::Error> {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes)?;
        Ok(Secret(bytes))
    }

    /// What a peer's answers must repeat; never 0.
    pub fn nonce(&self, peer: &PeerKey) -> u64 {
        self.of_peer(b'n', peer).max(1)
    }

    /// Identifies this process to a peer until it ends.
    pub fn incarnation(&self, peer: &PeerKey) -> u64 {
        self.of_peer(b'l', peer)
    }

    /// The tag that a peer's packets to a QP must carry in the QP's `connection`-th connection.
    pub fn tag(&self, qpn: u32, connection: u64) -> u32 {
        let mut hasher = SipHasher24::new_with_key(&self.0);
        hasher.write_u8(b't');
        hasher.write_u32(qpn);
        hasher.write_u64(connection);
        hasher.finish() as u32
    }

    fn of_peer(&self, purpose: u8, (local, remote, port): &PeerKey) -> u64 {
        let mut hasher = SipHasher24::new_with_key(&self.0);
        hasher.write_u8(purpose);
        for address in [local, remote] {
            match address {
                IpAddr::V4(v4) => hasher.write(&v4.octets()),
                IpAddr::V6(v6) => hasher.write(&v6.octets()),
            }
        }
        hasher.write_u16(*port);
        hasher.finish()
    }
}

/// The answer of the process with an `incarnation` to a nonce.
pub fn alive(incarnation: u64, nonce: u64) -> u64 {
    let mut hasher = SipHasher24::new_with_keys(incarnation, u64::from(b'a'));
    hasher.write_u64(nonce);
    hasher.finish()
}

/// What a proof seals for its verifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Demand {
    /// Packets to the prover's QP carry this where the ICRC is omitted.
    pub tag: u32,
    /// The prover's incarnation.
    pub incarnation: u64,
}

/// A proof in its wire format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Proof(pub [u8; PROOF_LEN]);

impl Proof {
    /// By which its verifier finds the QP that it is for.
    pub fn id(&self) -> u64 {
        u64::from_be_bytes(self.0[..ID].try_into().expect("as long as an ID"))
    }
}

/// A key that only the two QPs of a connection can derive, for one direction.
pub struct PairKey([u8; 16]);

impl PairKey {
    /// The key of the direction in which the QP `from` sends to the QP `to`, with `psn` as the first PSN.
    pub fn new(from: u32, to: u32, psn: u32) -> PairKey {
        let mut hasher = SipHasher24To128::new_with_key(b"weir pair of QPs");
        for number in [from, to, psn] {
            hasher.write_u32(number);
        }
        PairKey(hasher.finish128().as_bytes())
    }

    /// The proof of the QP `prover` for an asker's nonce. It depends on the prover's number, so that a proof that the
    /// verifier itself made is not valid when reflected.
    pub fn prove(&self, prover: u32, nonce: u64, demand: Demand) -> Proof {
        let mut proof = [0; PROOF_LEN];
        let mask = self.mask(prover, nonce);
        proof[..ID].copy_from_slice(&self.id(prover, nonce));
        proof[ID..ID + 4].copy_from_slice(&demand.tag.to_be_bytes());
        proof[ID + 4..].copy_from_slice(&demand.incarnation.to_be_bytes());
        proof[ID..].iter_mut().zip(mask).for_each(|(byte, mask)| *byte ^= mask);
        Proof(proof)
    }

    /// What a proof demands, if it is that of the QP `prover` for this nonce.
    pub fn open(&self, prover: u32, nonce: u64, proof: Proof) -> Option<Demand> {
        if proof.0[..ID] != self.id(prover, nonce) {
            return None;
        }
        let mut sealed: [u8; SEALED] = proof.0[ID..].try_into().expect("the rest of a proof");
        sealed.iter_mut().zip(self.mask(prover, nonce)).for_each(|(byte, mask)| *byte ^= mask);
        let (tag, incarnation) = sealed.split_first_chunk().expect("four bytes and eight");
        Some(Demand {
            tag: u32::from_be_bytes(*tag),
            incarnation: u64::from_be_bytes(incarnation.try_into().expect("eight bytes")),
        })
    }

    /// The ID of the proof of the QP `prover` for this nonce.
    pub fn expected(&self, prover: u32, nonce: u64) -> u64 {
        u64::from_be_bytes(self.id(prover, nonce))
    }

    fn id(&self, prover: u32, nonce: u64) -> [u8; ID] {
        self.hash(b'i', prover, nonce)[..ID].try_into().expect("as long as an ID")
    }

    fn mask(&self, prover: u32, nonce: u64) -> [u8; 16] {
        self.hash(b's', prover, nonce)
    }

    fn hash(&self, purpose: u8, prover: u32, nonce: u64) -> [u8; 16] {
        let mut hasher = SipHasher24To128::new_with_key(&self.0);
        hasher.write_u8(purpose);
        hasher.write_u32(prover);
        hasher.write_u64(nonce);
        hasher.finish128().as_bytes()
    }
}

/// Detects damage, not forgery.
pub fn checksum(bytes: &[u8]) -> u64 {
    let mut hasher = SipHasher24::new();
    hasher.write(bytes);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEMAND: Demand = Demand { tag: 0x1234_5678, incarnation: 0x0102_0304_0506_0708 };

    #[test]
    fn a_proof_holds_for_its_qps_its_psn_and_its_nonce_alone() {
        let key = PairKey::new(0x11, 0x22, 0x333);
        let proof = key.prove(0x22, 7, DEMAND);
        let found = |key: PairKey, prover, nonce| key.open(prover, nonce, proof);
        assert_eq!(found(PairKey::new(0x11, 0x22, 0x333), 0x22, 7), Some(DEMAND));
        assert_eq!(found(PairKey::new(0x11, 0x22, 0x333), 0x22, 8), None, "another nonce");
        assert_eq!(found(PairKey::new(0x11, 0x22, 0x333), 0x11, 7), None, "the verifier's own proof, reflected");
        for other in [(0x12, 0x22, 0x333), (0x11, 0x23, 0x333), (0x11, 0x22, 0x334), (0x22, 0x11, 0x333)] {
            assert_eq!(found(PairKey::new(other.0, other.1, other.2), 0x22, 7), None, "{other:?}");
        }
    }

    #[test]
    fn values_differ_between_peers_and_secrets() {
        let (secret, other) = (Secret::new().unwrap(), Secret::new().unwrap());
        let peer = |port| ([127, 0, 0, 1].into(), [127, 0, 0, 1].into(), port);
        assert_eq!(secret.incarnation(&peer(1)), secret.incarnation(&peer(1)));
        assert_ne!(secret.incarnation(&peer(1)), secret.incarnation(&peer(2)));
        assert_ne!(secret.incarnation(&peer(1)), other.incarnation(&peer(1)));
        assert_ne!(secret.incarnation(&peer(1)), secret.nonce(&peer(1)));
        assert_ne!(secret.tag(5, 1), secret.tag(5, 2));
        assert_ne!(alive(secret.incarnation(&peer(1)), 9), alive(secret.incarnation(&peer(1)), 10));
    }
}
