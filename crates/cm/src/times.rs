//! Times as messages state them: 4.096 µs · 2^exponent.

use std::time::Duration;

/// The greatest exponent that a peer can set for repetitions and timewait: 69 s.
const MAX_TIMEOUT: u8 = 24;
/// The greatest exponent that a peer can set in an MRA: 9 minutes.
const MAX_SERVICE_TIMEOUT: u8 = 27;
/// Nothing is repeated sooner, as in Linux.
const MIN_INTERVAL: Duration = Duration::from_millis(1);
/// Bounds of the time for which a request waits for the caller's answer.
const PATIENCE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(300));

/// 4.096 µs · 2^exponent; an exponent has 5 bits.
pub(crate) fn time(exponent: u8) -> Duration {
    Duration::from_nanos(4096 << exponent.min(31))
}

/// How long to wait for an answer; the exponents are the caller's.
pub(crate) fn interval(response: u8, ack_timeout: u8) -> Duration {
    (time(response) + time(ack_timeout)).max(MIN_INTERVAL)
}

/// How long to wait for an answer; the exponent is the peer's.
pub(crate) fn peers_interval(response: u8) -> Duration {
    time(response.min(MAX_TIMEOUT)).max(MIN_INTERVAL)
}

/// How long a peer waits until it repeats a REQ with these exponents.
pub(crate) fn repetition(response: u8, ack_timeout: u8) -> Duration {
    interval(response.min(MAX_TIMEOUT), ack_timeout.min(MAX_TIMEOUT))
}

/// How long packets may be on their way (IBTA 12.9): twice the way of a packet, and the time that the remote QP
/// needs for its answer.
pub(crate) fn timewait(ack_timeout: u8, target_ack_delay: u8) -> Duration {
    time(ack_timeout.min(MAX_TIMEOUT)) + time(target_ack_delay.min(MAX_TIMEOUT))
}

/// How much longer the peer waits, or the process waits for the peer, after an MRA.
pub(crate) fn service_time(exponent: u8) -> Duration {
    time(exponent.min(MAX_SERVICE_TIMEOUT))
}

/// For how long a peer repeats its request, so that an answer makes sense.
pub(crate) fn patience(response: u8, ack_timeout: u8, max_retries: u8) -> Duration {
    (interval(response, ack_timeout) * (u32::from(max_retries) + 1)).clamp(PATIENCE.0, PATIENCE.1)
}
