//! What a connection over several links can be set to.

use std::time::Duration;

/// When a connection acknowledges, sends again, and gives links up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Parameters {
    /// The most packets from the oldest that has not arrived to the newest; 1 to
    /// [`MAX_WINDOW`](weir_wire::edge::MAX_WINDOW).
    pub window: u32,
    /// So many packets that arrive are acknowledged together.
    pub ack_every: u32,
    /// After so many packets that arrive, a loss is reported.
    pub nack_every: u32,
    /// An acknowledgement, or the report of a loss, waits no longer than this.
    pub ack_delay: Duration,
    /// If the peer says nothing for so long, the last packet goes again.
    pub coarse_timeout: Duration,
    /// So many packets that were put on its link after it may arrive before a packet that is not lost.
    pub reordering: u32,
    /// The shortest time after which a link counts as silent, if the peer has answered on another.
    pub silence: Duration,
}

impl Parameters {
    /// Those of MultiEdge (thesis 2.1.2), which leaves the coarse timeout open and knows no silent links.
    pub const MULTIEDGE: Parameters = Parameters {
        window: 512,
        ack_every: 48,
        nack_every: 256,
        ack_delay: Duration::from_millis(5),
        coarse_timeout: Duration::from_millis(20),
        reordering: 0,
        silence: Duration::from_millis(20),
    };

    /// The default.
    pub const TUNED: Parameters = Parameters {
        window: 2048,
        ack_every: 64,
        nack_every: 1,
        ack_delay: Duration::from_millis(1),
        coarse_timeout: Duration::from_millis(10),
        reordering: 3,
        silence: Duration::from_millis(10),
    };
}
