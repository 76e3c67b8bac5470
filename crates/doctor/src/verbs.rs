//! Numbers of verbs that the analysis needs: opcodes, statuses, and the times behind codes.

use weir_wire::RnrTimer;

pub const RC: u32 = 2;
pub const WRITE: u8 = 0;
pub const WRITE_IMM: u8 = 1;
pub const SEND: u8 = 2;
pub const SEND_IMM: u8 = 3;
pub const READ: u8 = 4;
pub const COMPARE_SWAP: u8 = 5;
pub const FETCH_ADD: u8 = 6;
pub const SEND_INV: u8 = 9;

pub const SUCCESS: u8 = 0;
pub const RETRY_EXCEEDED: u8 = 12;
pub const RNR_RETRY_EXCEEDED: u8 = 13;

/// Delay of an RNR timer, ns.
pub fn rnr_delay(code: u8) -> u64 {
    RnrTimer::new(code).delay().as_nanos() as u64
}

/// T_tr of an ACK timeout, ns; `None`: there is no timeout (IBTA 9.7.6.1.3).
pub fn ack_timeout(code: u8) -> Option<u64> {
    (code & 31 != 0).then(|| 4096 << (code & 31))
}

/// Whether a request consumes a receive of the peer.
pub fn takes_receive(opcode: u8) -> bool {
    matches!(opcode, SEND | SEND_IMM | SEND_INV | WRITE_IMM)
}

/// Whether a request has a response with data.
pub fn has_response(opcode: u8) -> bool {
    matches!(opcode, READ | COMPARE_SWAP | FETCH_ADD)
}

/// The name of an operation.
pub fn operation(opcode: u8) -> &'static str {
    match opcode {
        WRITE | WRITE_IMM => "WRITE",
        SEND | SEND_IMM | SEND_INV => "SEND",
        READ => "READ",
        COMPARE_SWAP | FETCH_ADD => "atomic",
        _ => "request",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_become_times() {
        assert_eq!([0, 1, 14, 31].map(rnr_delay), [655_360_000, 10_000, 1_280_000, 491_520_000]);
        assert_eq!([0, 1, 14].map(ack_timeout), [None, Some(8192), Some(67_108_864)]);
    }
}
