//! The numbers of connections: at random, or derived from what a peer that asks has said.

use siphasher::sip::SipHasher24;
use std::hash::{Hash, Hasher};
use weir_transport::edge::{Numbers, Seq};

/// Peers that share a count of connections that have ended.
const BUCKETS: usize = 1024;

/// Makes numbers.
#[derive(Debug)]
pub struct NumberSource {
    secret: [u8; 16],
    /// Connections that have ended, by hashes of the peers' addresses: what an earlier connection used is not used again.
    ended: Vec<u32>,
}

impl NumberSource {
    /// With a new secret. Fails if the kernel has no random bytes.
    pub fn new() -> Result<NumberSource, getrandom::Error> {
        let mut secret = [0; 16];
        getrandom::fill(&mut secret)?;
        Ok(NumberSource { secret, ended: vec![0; BUCKETS] })
    }

    /// For a peer that asks with this number.
    pub fn derive(&self, from: &impl Hash, peer: u32) -> Numbers {
        let hash = |n: u8| self.hash(&(n, from, peer, self.ended[self.bucket(from)]));
        let (nonce, random) = (hash(1), hash(2));
        Numbers { nonce: nonce.max(1), connection: random as u32, first: Seq((random >> 32) as u32) }
    }

    /// For a question of this side.
    pub fn random(&self) -> Numbers {
        let mut bytes = [0; 16];
        // The secret stays secret if there are no random bytes now, but numbers may repeat.
        let _ = getrandom::fill(&mut bytes);
        let random = u128::from_ne_bytes(bytes);
        let (nonce, rest) = (random as u64, (random >> 64) as u64);
        Numbers { nonce: nonce.max(1), connection: rest as u32, first: Seq((rest >> 32) as u32) }
    }

    /// A connection with a peer has ended.
    pub fn ended(&mut self, from: &impl Hash) {
        let bucket = self.bucket(from);
        self.ended[bucket] = self.ended[bucket].wrapping_add(1);
    }

    fn bucket(&self, from: &impl Hash) -> usize {
        self.hash(&(0u8, from)) as usize % BUCKETS
    }

    fn hash(&self, value: &impl Hash) -> u64 {
        let mut hasher = SipHasher24::new_with_key(&self.secret);
        value.hash(&mut hasher);
        hasher.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::SocketAddr;

    #[test]
    fn numbers_stay_until_a_connection_ends() {
        let mut source = NumberSource::new().unwrap();
        let [a, b] = ["10.0.0.1:5", "10.0.0.1:6"].map(|text| text.parse::<SocketAddr>().unwrap());
        let before = source.derive(&a, 1);
        assert_eq!(source.derive(&a, 1), before);
        assert_ne!(source.derive(&a, 2), before);
        assert_ne!(source.derive(&b, 1), before);
        assert_ne!(NumberSource::new().unwrap().derive(&a, 1), before);
        source.ended(&a);
        assert_ne!(source.derive(&a, 1), before);
        assert_ne!(source.random(), source.random());
    }
}
