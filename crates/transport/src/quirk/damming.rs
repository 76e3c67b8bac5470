//! Packet damming: while the responder replays a duplicate READ, it loses new requests of that QP (T 5.1).
//!
//! Observed: a READ is pending, because the responder was not ready or because its response was dropped for a missing
//! page. Meanwhile the application posts a second request. When the pending period ends, the sender's capture shows
//! both, the READ again and the second request 2 to 4 µs after it; but the responder answers only the READ. The
//! sender retransmits the second request after the ACK timeout, half a second later, and the responder then treats it
//! as new (T fig 5.3). If a third request follows later, the responder sends a sequence NAK, and the sender
//! retransmits both at once (T fig 5.6). The size of the requests, their pages, whether the second is a READ, a WRITE
//! or a SEND, and the activity of other QPs make no difference (T 5.1.3).
//!
//! Hypothesis: the responder takes 70 to 90 µs to replay a duplicate READ, where a new one takes 3 to 7. Meanwhile it
//! drops new requests of the QP without a NAK. T fig 6.2 decides between this and a loss at the requester: a SEND that
//! leaves 26 µs *after* the READ was answered is lost, and a second answer to the READ comes 0.83 ms later. It also
//! explains that only READs cause the flaw (T 5.1): a repeated SEND or WRITE is acknowledged at once.
//!
//! READs that arrive while an earlier READ waits for its page are accepted behind it (`responder::page_fault`),
//! so they are duplicates when the requester repeats them, and are not lost.

use crate::config::Config;
use crate::responder::Responder;

impl Responder {
    /// Whether the adapter loses a new request that arrives now.
    #[inline]
    pub(crate) fn dams(&self, config: &Config) -> bool {
        config.profile.damming && self.replays_read()
    }
}
