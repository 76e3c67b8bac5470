//! What the receive queue of a QP with a TM SRQ keeps of a message, and what its completions report.

use crate::{WcFlags, WcOpcode};
use weir_wire::tag::{Rvh, Tmh};

/// What the queue knows of the message that holds its work request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tags {
    /// The send queue has room for the requests of a rendezvous.
    pub room: bool,
    /// `None`: a WRITE with immediate data.
    pub message: Option<Message>,
    /// The rendezvous that begins with the present packet: its work request is still held.
    pub begins: Option<Rendezvous>,
}

/// The message that holds a work request. An unmatched one has a tag if its opcode is `TagRecv`: it counts as unexpected.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Message {
    Unmatched { opcode: WcOpcode, flags: WcFlags },
    Matched { tmh: Tmh, rendezvous: Option<Rvh> },
}

/// A matched rendezvous request: what the adapter does for the program.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rendezvous {
    /// Identifies the tag's buffer in completions.
    pub wr_id: u64,
    pub tmh: Tmh,
    pub rvh: Rvh,
    /// The request had the solicited bit.
    pub solicited: bool,
}

/// What a completion reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Report {
    /// The message; its work request is retired. `begun`: its match was reported before.
    Whole { begun: bool },
    /// The match only: more packets follow, or a rendezvous.
    Match,
    /// A rendezvous that the program has to do; its work request is retired.
    Incomplete,
}
