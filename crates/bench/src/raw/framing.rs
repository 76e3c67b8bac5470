//! The datagrams of WRITEs between Weir peers, which are frames, and how they are grouped into UDP_SEGMENT sends.

use weir_wire::{ICRC_LEN, frame};

/// Path MTU: payload bytes of a full frame.
const MTU: usize = 4096;
/// Largest UDP payload over IPv4.
const LARGEST: usize = 65_507;
/// Most datagrams of a UDP_SEGMENT send.
const SEGMENTS: usize = 64;

/// UDP payload bytes of a WRITE of 8 bytes.
pub const SMALL_WRITE: usize = frame_len(8);

/// UDP payload bytes of a frame with this payload, at most a path MTU.
const fn frame_len(payload: usize) -> usize {
    frame::HEADER_LEN + payload.next_multiple_of(4) + ICRC_LEN
}

/// A UDP_SEGMENT send: datagrams of `segment` bytes, of which the last may be shorter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Burst {
    /// Bytes in all.
    pub len: usize,
    /// Bytes of each datagram but the last.
    pub segment: usize,
}

/// Bursts that are sent again and again: together they carry the payload of messages that follow each other at once.
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
    /// All datagrams of a burst have the same length, but the last may be shorter. Where all frames are equally long,
    /// a burst is full, whatever messages its frames belong to. A shorter last frame of a message ends a burst.
    pub fn of(message: usize) -> Cycle {
        let segment = frame_len(message.min(MTU));
        let most = (LARGEST / segment).min(SEGMENTS);
        let rest = message % MTU;
        if message < MTU || rest == 0 {
            return Cycle { bursts: vec![Burst { len: most * segment, segment }], payload: most * message.min(MTU) };
        }
        let full = message / MTU;
        // The last burst holds the shorter frame, too.
        let before = full / most;
        let mut bursts = vec![Burst { len: most * segment, segment }; before];
        bursts.push(Burst { len: (full - before * most) * segment + frame_len(rest), segment });
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

    /// A full frame: 40 bytes of header, the payload, the ICRC.
    const FULL: usize = 40 + 4096 + 4;

    #[test]
    fn full_frames_of_several_messages_fill_a_burst() {
        for message in [4096, 8192, 64 << 10, 1 << 20] {
            let cycle = Cycle::of(message);
            assert_eq!(cycle.bursts, [Burst { len: 15 * FULL, segment: FULL }], "{message}");
            assert_eq!(cycle.payload, 15 * 4096, "{message}");
        }
    }

    #[test]
    fn short_messages_fill_a_burst_up_to_the_kernels_limit() {
        assert_eq!(SMALL_WRITE, 52);
        assert_eq!(Cycle::of(8), Cycle { bursts: vec![Burst { len: 64 * 52, segment: 52 }], payload: 64 * 8 });
        assert_eq!(Cycle::of(5).bursts, Cycle::of(8).bursts, "payload is padded to a multiple of 4 bytes");
    }

    #[test]
    fn a_shorter_last_frame_ends_a_burst() {
        assert_eq!(Cycle::of(5000).bursts, [Burst { len: FULL + 40 + 904 + 4, segment: FULL }]);
        let bursts = Cycle::of(15 * 4096 + 1).bursts;
        assert_eq!(bursts, [Burst { len: 15 * FULL, segment: FULL }, Burst { len: 40 + 4 + 4, segment: FULL }]);
    }

    #[test]
    fn bursts_hold_all_bytes_of_the_frames() {
        for message in [1, 4095, 4096, 4097, 8192, 12288, 12289, 65535, 65536, 1 << 20, (1 << 20) + 1] {
            let cycle = Cycle::of(message);
            let frames: usize = cycle.bursts.iter().map(|b| b.len.div_ceil(b.segment)).sum();
            let payload = if message < MTU { frames * message.next_multiple_of(4) } else { cycle.payload };
            assert_eq!(cycle.wire(), payload.next_multiple_of(4) + frames * 44, "{message}");
            assert!(cycle.bursts.iter().all(|b| b.len <= LARGEST && b.len.div_ceil(b.segment) <= 64), "{message}");
        }
    }
}
