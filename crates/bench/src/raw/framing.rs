//! The datagrams of a RoCE WRITE, by size, and how they are grouped into UDP_SEGMENT sends.

/// Path MTU: payload bytes of a full packet.
const MTU: usize = 4096;
/// BTH and ICRC.
const PLAIN: usize = 12 + 4;
/// RETH, in the first packet of a WRITE only.
const RETH: usize = 16;
/// Largest UDP payload over IPv4.
const LARGEST: usize = 65_507;

/// UDP payload bytes of a WRITE of 8 bytes.
pub const SMALL_WRITE: usize = PLAIN + RETH + 8;

/// A UDP_SEGMENT send: datagrams of `segment` bytes, of which the last may be shorter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Burst {
    /// Bytes in all.
    pub len: usize,
    /// Bytes of each datagram but the last.
    pub segment: usize,
}

/// Bursts that carry complete messages, sent again and again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cycle {
    /// In order.
    pub bursts: Vec<Burst>,
    /// Application bytes in all bursts.
    pub payload: usize,
}

impl Cycle {
    /// The cycle for messages of `message` bytes, at least 1.
    ///
    /// All datagrams of a burst have the same length, but the last may be shorter. The first packet of a message of
    /// several packets is longer than the others, so it begins a burst, which the second packet ends.
    pub fn of(message: usize) -> Cycle {
        if message <= MTU {
            let segment = PLAIN + RETH + message;
            let count = (LARGEST / segment).min(64);
            return Cycle { bursts: vec![Burst { len: count * segment, segment }], payload: count * message };
        }
        let wire = |left: usize| PLAIN + left.min(MTU);
        let mut left = message - MTU;
        let second = wire(left);
        left -= left.min(MTU);
        let mut bursts = vec![Burst { len: PLAIN + RETH + MTU + second, segment: PLAIN + RETH + MTU }];
        let segment = PLAIN + MTU;
        while left > 0 {
            let mut len = 0;
            while left > 0 && len + wire(left) <= LARGEST {
                len += wire(left);
                left -= left.min(MTU);
            }
            bursts.push(Burst { len, segment });
        }
        Cycle { bursts, payload: message }
    }

    /// Bytes of UDP payload in a cycle.
    pub fn wire(&self) -> usize {
        self.bursts.iter().map(|b| b.len).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn single_packets_fill_a_burst() {
        let cycle = Cycle::of(4096);
        assert_eq!(cycle.bursts, [Burst { len: 15 * 4128, segment: 4128 }]);
        assert_eq!(cycle.payload, 15 * 4096);
        assert_eq!(SMALL_WRITE, 40);
    }

    #[test]
    fn the_longer_first_packet_ends_a_burst_early() {
        let cycle = Cycle::of(64 << 10);
        assert_eq!(cycle.bursts, [Burst { len: 4128 + 4112, segment: 4128 }, Burst { len: 14 * 4112, segment: 4112 }]);
        assert_eq!(Cycle::of(1 << 20).bursts.len(), 1 + 254usize.div_ceil(15));
        assert_eq!(Cycle::of(5000).bursts, [Burst { len: 4128 + 16 + 904, segment: 4128 }]);
    }

    #[test]
    fn bursts_hold_all_bytes_of_a_message() {
        for message in [4097, 8192, 12288, 12289, 65536, 1 << 20, (1 << 20) + 1] {
            let cycle = Cycle::of(message);
            let packets = message.div_ceil(MTU);
            assert_eq!(cycle.wire(), message + packets * PLAIN + RETH, "{message}");
            assert!(cycle.bursts.iter().all(|b| b.len <= LARGEST && b.len.div_ceil(b.segment) <= 64), "{message}");
        }
    }
}
