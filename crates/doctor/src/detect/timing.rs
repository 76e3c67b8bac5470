//! Times of real adapters by which stalls are told apart.

use crate::verbs;

/// A page fault takes at least this time, ns (250 to 1000 µs: T fig 5.7).
pub const PENDING: u64 = 200_000;
/// No adapter times out earlier, whatever its attributes say, ns: adaptive retransmission begins with 8 to 16 ms, the
/// least timeout of a ConnectX-5 is 30 ms (T fig 4.5).
pub const SHORTEST_TIMEOUT: u64 = 7_000_000;
/// The least T_tr of most adapters (ConnectX-3, -4 and -6), ns: C_ACK 16 (T fig 4.5).
const FLOOR: u64 = 4096 << 16;
/// RNR waits are longer than the delay that the peer asked for, up to this many times (T fig 4.2 to 4.4, 5.3, 6.2).
const RNR_FACTOR: u64 = 6;
/// And at least twice as long.
const LEAST_RNR_FACTOR: u64 = 2;

/// Soft-RoCE counts a timeout in ticks of the kernel, mostly of 4 ms. It comes up to two of them before T_tr, ns.
const TICKS: u64 = 8_000_000;

/// The least time of a timeout with this ACK timeout, ns: T_tr, or a little less. Without a timeout there is none.
pub fn shortest_timeout(code: u8) -> u64 {
    verbs::ack_timeout(code).map_or(u64::MAX, |time| time - TICKS.min(time / 4))
}

/// Whether a time is that of one timeout with this ACK timeout, or of two in a row, for an adapter that adds nothing.
pub fn is_timeout(code: u8, ns: u64) -> bool {
    let Some(time) = verbs::ack_timeout(code) else { return false };
    (1..=2).any(|count| (count * shortest_timeout(code)..=count * (time + time / 8)).contains(&ns))
}

/// The least time of a timeout on adapters with the common floor, ns: 1.5 T_tr at least (T fig 4.5, 5.3, 6.2), of which
/// a program that polls rarely misses a little.
pub fn usual_timeout(code: u8) -> u64 {
    shortest_timeout(code).clamp(FLOOR, u64::MAX / 8) / 5 * 7
}

/// The longest time of one timeout, ns: four times T_tr (IBTA C9-139), on adapters with the common floor.
pub fn longest_timeout(code: u8) -> u64 {
    4 * shortest_timeout(code).clamp(FLOOR, u64::MAX / 4)
}

/// The shortest wait after an RNR NAK of the peer on an adapter that has been measured, ns.
pub fn shortest_rnr_wait(rnr_timer: u8) -> u64 {
    LEAST_RNR_FACTOR * verbs::rnr_delay(rnr_timer)
}

/// Whether a time can be a timeout of an adapter with the common floor.
pub fn is_floor(ns: u64) -> bool {
    ns >= FLOOR
}

/// How long a request can wait for a page, ns, if both ends have the same RNR timer: a page fault and an RNR delay, or
/// some page faults in a row. Longer than that is a timeout.
pub fn longest_pending(rnr_timer: u8) -> u64 {
    ((RNR_FACTOR * verbs::rnr_delay(rnr_timer)).max(10_000_000) + 2_000_000).min(FLOOR)
}
