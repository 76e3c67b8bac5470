//! What the messages of connection management say: which QPs are connected, and their attributes.

use std::collections::HashMap;
use weir_capture::packet::Address;
use weir_wire::cm::{Message, Req};

/// The connections with a captured set-up.
#[derive(Debug, Default)]
pub struct Setups {
    /// REQs without a REP so far, by their sender and its communication ID.
    asked: HashMap<(Address, u32), Attributes>,
    /// By each end's address and QP number.
    known: HashMap<(Address, u32), Attributes>,
}

/// Attributes of a QP, from the REQ of its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    pub qpn: u32,
    /// C_ACK: the ACK timeout is 4.096 µs · 2^value.
    pub ack_timeout: u8,
    /// Retries after a timeout.
    pub retry_count: u8,
    /// Retries after an RNR NAK; 7: without end.
    pub rnr_retry_count: u8,
    /// READs and atomics in flight.
    pub initiator_depth: u8,
}

/// The most REQs that wait for their REP.
const ASKED: usize = 65_536;

/// A QP, and the address of its host.
pub type End = (Address, u32);

/// T_tr of a timeout attribute, ns (IBTA 9.7.6.1.3).
pub fn t_tr(exponent: u8) -> u64 {
    4096 << exponent.min(31)
}

impl Setups {
    /// Takes a management datagram. Returns the two ends of a connection when both are known.
    pub fn message(&mut self, from: Address, to: Address, datagram: &[u8]) -> Option<(End, End)> {
        match Message::parse(datagram).ok()?.1 {
            Message::Req(req) => {
                if self.asked.len() < ASKED {
                    self.asked.insert((from, req.local_comm_id), attributes(&req));
                }
                None
            }
            Message::Rep(rep) => {
                let attributes = self.asked.remove(&(to, rep.remote_comm_id))?;
                self.known.insert((to, attributes.qpn), attributes);
                self.known.insert((from, rep.qpn), Attributes { qpn: rep.qpn, ..attributes });
                Some(((to, attributes.qpn), (from, rep.qpn)))
            }
            _ => None,
        }
    }

    /// The attributes of a QP, if its set-up was captured.
    pub fn of(&self, end: End) -> Option<Attributes> {
        self.known.get(&end).copied()
    }
}

fn attributes(req: &Req) -> Attributes {
    Attributes {
        qpn: req.qpn,
        ack_timeout: req.primary.ack_timeout,
        retry_count: req.retry_count,
        rnr_retry_count: req.rnr_retry_count,
        initiator_depth: req.initiator_depth,
    }
}
