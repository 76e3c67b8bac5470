//! Duplicate requests: they get their response again, and are not executed again (IBTA 9.7.4.1.1).

use super::opcode_order::{self, Request};
use super::{Responder, Waits};
use crate::Instant;
use crate::config::Config;
use std::time::Duration;
use weir_wire::{Packet, Reth, Syndrome};

impl Responder {
    /// A duplicate request: gets its response again, but is not executed again. A SEND or WRITE gets an ACK
    /// (IBTA C9-105), a READ its data (IBTA 9.4.4), an atomic its first result (IBTA 9.4.5).
    pub(super) fn repeat(&mut self, now: Instant, packet: &Packet<'_>, config: &Config) {
        let bth = &packet.headers.bth;
        let position = self.expected.nearest(bth.psn);
        match bth.opcode.operation().and_then(opcode_order::lookup) {
            Some((Request::Send | Request::Write, _)) if bth.ack_req || bth.opcode.ends_message() => {
                self.owed.repeat();
            }
            Some((Request::Send | Request::Write, _)) => {}
            Some((Request::Read, _)) => {
                if let Some(reth) = packet.headers.get::<Reth>() {
                    // Where duplicates are replayed slowly, a READ that still waits for its page is answered first.
                    // Without damming it is tried again at once, so that no request behind it is lost.
                    let slow = !config.profile.repeated_read.high.is_zero();
                    let later = slow && (config.profile.damming || self.waits != Waits::Response);
                    let waited = later && self.waits == Waits::Response && self.resources.waits_again(position);
                    let known = self.resources.repeat_read(position, &reth, config.mtu, later);
                    if waited && config.answers_faults_with_naks() {
                        // The peer has repeated the READ once more, after its ACK timeout (T fig 6.2: not at once).
                        self.owed.nak_after(now, Duration::ZERO, Syndrome::RnrNak(config.attr.min_rnr_timer));
                    }
                    if later {
                        self.begin_replay(now, config);
                    } else {
                        self.duplicate_requested(known, config);
                    }
                }
            }
            Some((Request::Atomic | Request::AtomicWrite | Request::Flush, _)) => {
                let known = self.resources.repeat_atomic(position);
                self.duplicate_requested(known, config);
            }
            None => {}
        }
    }

    /// Duplicate READs are replayed one after the other, and each takes its time: new READs took 3 to 7 µs in all traces
    /// of the thesis, duplicates 74 to 93 (T fig 4.2, 5.3). Responses leave in PSN order, so later responses are delayed
    /// too.
    #[cold]
    pub(super) fn begin_replay(&mut self, now: Instant, config: &Config) {
        if self.resources.begin_replay() {
            self.late = Some(now + config.profile.repeated_read.at(self.chance.share()));
        }
    }
}
