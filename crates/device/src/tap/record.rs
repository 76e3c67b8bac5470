//! A record: what a watcher learns of a packet. Fifteen words, of which any values can be read without harm.

use std::net::{IpAddr, Ipv6Addr};
use weir_wire::{Headers, MAX_HEADERS};

/// Words of a record.
pub const WORDS: usize = 15;
/// Words before the headers.
const BEFORE: usize = 7;
/// Room for headers, bytes.
const ROOM: usize = 8 * (WORDS - BEFORE);
const _: () = assert!(MAX_HEADERS <= ROOM);

const QPN: u64 = 0xff_ffff;
const OTHER: u32 = 24;
const SENT: u64 = 1 << 48;
const OVER_LINKS: u64 = 1 << 49;
const LEN: u32 = 56;

/// A packet of RC or XRC that an adapter has sent, or received and accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// CLOCK_MONOTONIC, ns.
    pub time: u64,
    pub sent: bool,
    /// The adapter's QP.
    pub own_qp: u32,
    /// The peer's QP.
    pub other_qp: u32,
    /// The adapter's address.
    pub local: IpAddr,
    /// The peer's address.
    pub remote: IpAddr,
    /// Bytes of payload, without pad.
    pub payload: u32,
    /// It came over several links, where packets within a message overtake each other.
    pub over_links: bool,
    /// BTH and extension headers.
    pub headers: Headers,
}

impl Record {
    /// Its words.
    pub fn encode(&self) -> [u64; WORDS] {
        let mut words = [0; WORDS];
        let mut headers = [0; ROOM];
        let len = self.headers.emit(&mut headers);
        words[0] = self.time;
        let (own, other) = (u64::from(self.own_qp) & QPN, u64::from(self.other_qp) & QPN);
        let bits = (SENT * u64::from(self.sent)) | (OVER_LINKS * u64::from(self.over_links));
        words[1] = own | (other << OTHER) | bits | ((len as u64) << LEN);
        words[2] = self.payload.into();
        [words[3], words[4]] = halves(self.local);
        [words[5], words[6]] = halves(self.remote);
        for (word, bytes) in words[BEFORE..].iter_mut().zip(headers.as_chunks().0) {
            *word = u64::from_le_bytes(*bytes);
        }
        words
    }

    /// The record in these words; `None` if no adapter writes them.
    pub fn decode(words: &[u64; WORDS]) -> Option<Record> {
        let mut headers = [0; ROOM];
        for (bytes, word) in headers.as_chunks_mut().0.iter_mut().zip(&words[BEFORE..]) {
            *bytes = word.to_le_bytes();
        }
        let len = (words[1] >> LEN) as usize;
        Some(Record {
            time: words[0],
            sent: words[1] & SENT != 0,
            own_qp: (words[1] & QPN) as u32,
            other_qp: ((words[1] >> OTHER) & QPN) as u32,
            local: address([words[3], words[4]]),
            remote: address([words[5], words[6]]),
            payload: words[2] as u32,
            over_links: words[1] & OVER_LINKS != 0,
            headers: Headers::parse(headers.get(..len)?, len).ok()?,
        })
    }
}

fn halves(address: IpAddr) -> [u64; 2] {
    let bits = match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().to_bits(),
        IpAddr::V6(v6) => v6.to_bits(),
    };
    [(bits >> 64) as u64, bits as u64]
}

fn address([high, low]: [u64; 2]) -> IpAddr {
    Ipv6Addr::from_bits((u128::from(high) << 64) | u128::from(low)).to_canonical()
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use weir_wire::{Aeth, AtomicEth, Bth, Opcode, Operation, Psn, Reth, Service, XrcEth};

    /// A record of a packet with this PSN.
    pub fn of_psn(psn: u32) -> Record {
        let mut headers =
            Headers::new(Bth::new(Opcode::new(Service::Rc, Operation::ReadRequest), 0x123456, Psn::new(psn)));
        headers.put(Reth { va: 0x1_0000_0000.into(), rkey: 7.into(), dma_len: 5000.into() });
        Record {
            time: 0x1234_5678_9abc,
            sent: true,
            own_qp: 0xff_fffe,
            other_qp: 0x123456,
            local: "10.0.0.1".parse().unwrap(),
            remote: "fd00::7".parse().unwrap(),
            payload: 4096,
            over_links: true,
            headers,
        }
    }

    #[test]
    fn records_are_read_as_written() {
        let record = of_psn(0xabcdef);
        assert_eq!(Record::decode(&record.encode()), Some(record));
        // The longest headers, and an ACK.
        let mut longest = Headers::new(Bth::new(Opcode::new(Service::Xrc, Operation::CompareSwap), 5, Psn::new(6)));
        longest.put(XrcEth { srq: 9.into() });
        longest.put(AtomicEth { va: 1.into(), rkey: 2.into(), swap_or_add: 3.into(), compare: 4.into() });
        let mut ack = Headers::new(Bth::new(Opcode::new(Service::Rc, Operation::Acknowledge), 5, Psn::new(6)));
        ack.put(Aeth::new(0x60, 77));
        assert_eq!(longest.len(), MAX_HEADERS);
        for headers in [longest, ack] {
            let record = Record { headers, sent: false, payload: 0, over_links: false, ..record };
            assert_eq!(Record::decode(&record.encode()), Some(record));
        }
    }

    #[test]
    fn any_words_are_a_record_or_none() {
        let right = of_psn(1).encode();
        for at in 0..WORDS {
            for bit in 0..64 {
                let mut words = right;
                words[at] ^= 1 << bit;
                if let Some(record) = Record::decode(&words) {
                    assert!(record.own_qp <= 0xff_ffff && record.headers.len() <= ROOM);
                }
            }
        }
        assert_eq!(Record::decode(&[u64::MAX; WORDS]), None);
        assert_eq!(Record::decode(&[0; WORDS]), None);
    }
}
