//! How much an endpoint may send to a peer: receives that are posted there, and bytes that match no receive yet.
//!
//! Each message takes a receive of the peer, which the peer posts again and returns as a credit, with its next message or
//! in one of its own. The last credit is for such a message only: so two sides that have used up all others can always
//! return what they hold. An endless exchange of returned credits is impossible: a receive that such a message took makes
//! another one necessary only if the peer could send nothing else otherwise.
//!
//! A connection begins with few receives. A peer that says that it had to wait for one gets twice as many, so that only
//! peers that send much at once take much pinned memory.
//!
//! A message that is sent eagerly may match no receive, and then takes memory at the peer. So a sender counts the bytes
//! that the peer has not matched yet, and announces messages instead when there are too many.

use crate::message::{MOST_CREDITS, Returned};

/// Bytes that each unexpected message counts beside its payload, so that empty messages are bounded, too.
const EACH: u32 = 64;

/// Fewest receives of a connection: with half of two, each returned credit would make another one necessary.
pub(crate) const SMALLEST_RECEIVES: u16 = 4;

/// What both sides of a connection may send.
#[derive(Clone, Copy, Debug)]
pub struct Flow {
    /// Receives of the peer that this side may use.
    credits: u16,
    /// Receives that this side has posted again, and not yet told.
    posted: u16,
    /// Of these, receives that were taken by messages that only returned credits.
    spent_on_credits: u16,
    /// Receives of this side that the peer may use, as far as it has been told.
    allowed: u16,
    /// Receives of this side. As soon as half of them have been taken and posted again, the peer must know.
    receives: u16,
    /// Something waits for a receive of the peer, which has not been told so.
    waits: bool,
    /// The peer waits for receives, and has not got more yet.
    peer_waits: bool,
    /// Bytes sent eagerly, modulo 2³².
    sent: u32,
    /// Of these, bytes that have matched at the peer, modulo 2³².
    matched: u32,
    /// Most bytes sent eagerly that may not have matched.
    window: u32,
    /// Bytes that came eagerly, modulo 2³².
    arrived: u32,
    /// Of these, and of messages from before the connection, bytes that have matched here, modulo 2³².
    consumed: u32,
    /// Most bytes of messages that may not have matched here.
    own_window: u32,
    /// The last value of `consumed` that the peer was told.
    told: u32,
    /// So many bytes must the peer know of at once.
    tell_consumed: u32,
}

/// What one side of a new connection has room for.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    /// Receives that it has posted.
    pub receives: u16,
    /// Bytes of messages that may not have matched there.
    pub window: u32,
}

impl Flow {
    /// A new connection, and what each side has said of itself. `consumed`: bytes of messages that waited when this side
    /// said so, and that have matched since.
    pub fn new(own: Room, peer: Room, consumed: u32) -> Flow {
        Flow {
            credits: peer.receives,
            posted: 0,
            spent_on_credits: 0,
            allowed: own.receives,
            receives: own.receives,
            waits: false,
            peer_waits: false,
            sent: 0,
            matched: 0,
            window: peer.window,
            arrived: 0,
            consumed,
            own_window: own.window,
            told: 0,
            tell_consumed: own.window / 2,
        }
    }

    /// Whether a message may leave that does not return credits that the peer waits for.
    pub fn may_send(&self) -> bool {
        self.credits > 1
    }

    /// Whether a message of so many bytes may leave eagerly, as far as memory for unexpected messages is concerned.
    pub fn may_be_unexpected(&self, bytes: u64) -> bool {
        fits(self.sent, self.matched, bytes, self.window)
    }

    /// A message of so many bytes leaves eagerly.
    pub fn sent_eagerly(&mut self, bytes: u32) {
        self.sent = self.sent.wrapping_add(bytes).wrapping_add(EACH);
    }

    /// An eager message of so many bytes arrives. False: the peer may not send it.
    #[must_use]
    pub fn arrives_eagerly(&mut self, bytes: u32) -> bool {
        let fits = fits(self.arrived, self.consumed, bytes.into(), self.own_window);
        self.arrived = self.arrived.wrapping_add(bytes).wrapping_add(EACH);
        fits
    }

    /// An eager message of so many bytes has matched a receive.
    pub fn matched(&mut self, bytes: u32) {
        self.consumed = self.consumed.wrapping_add(bytes).wrapping_add(EACH);
    }

    /// A message leaves: what it tells the peer. It returns at most so many credits.
    pub fn leaves(&mut self, most: u16) -> Returned {
        let credits = self.posted.min(most).min(MOST_CREDITS);
        self.credits = self.credits.saturating_sub(1);
        self.posted -= credits;
        self.spent_on_credits = self.spent_on_credits.min(self.posted);
        self.allowed = self.allowed.saturating_add(credits);
        self.told = self.consumed;
        Returned { credits, waited: std::mem::take(&mut self.waits), consumed: self.consumed }
    }

    /// A message or a WRITE with immediate data has taken a receive. False: the peer may not use it.
    #[must_use]
    pub fn arrives(&mut self) -> bool {
        let may = self.allowed > 0;
        self.allowed = self.allowed.saturating_sub(1);
        may
    }

    /// What an arriving message tells.
    pub fn returned(&mut self, returned: Returned) {
        self.credits = self.credits.saturating_add(returned.credits);
        self.matched = returned.consumed;
        self.peer_waits |= returned.waited;
    }

    /// A receive that was taken is posted again.
    pub fn posted_again(&mut self) {
        self.posted = self.posted.saturating_add(1);
    }

    /// A message has arrived that only returns credits. Its receive is about to be posted again.
    pub fn credits_arrive(&mut self) {
        self.spent_on_credits = self.spent_on_credits.saturating_add(1);
    }

    /// A message waits. If it waits for a receive, the peer is told so with the next message.
    pub fn has_to_wait(&mut self) {
        self.waits |= !self.may_send();
    }

    /// Receives that this side should post in addition because the peer waits for them. It has at most so many then.
    pub fn lacks(&mut self, most: u16) -> u16 {
        let waits = std::mem::take(&mut self.peer_waits);
        if waits { most.saturating_sub(self.receives).min(self.receives) } else { 0 }
    }

    /// A receive is posted in addition.
    pub fn posted_more(&mut self) {
        self.receives = self.receives.saturating_add(1);
        self.posted_again();
    }

    /// A WRITE with immediate data leaves: it takes a receive of the peer, and tells nothing.
    pub fn writes(&mut self) {
        self.credits = self.credits.saturating_sub(1);
    }

    /// Whether the peer waits for credits. The last credit is for a message that returns some.
    pub fn must_return(&self) -> bool {
        let many = self.posted - self.spent_on_credits.min(self.posted) >= self.receives.div_ceil(2);
        let peer_is_stuck = self.allowed <= 1 && self.posted > 0;
        self.credits > 0 && (many || peer_is_stuck)
    }

    /// Whether the peer must be told something soon, and can be: its sender may wait for it.
    pub fn must_tell(&self) -> bool {
        let consumed = self.consumed.wrapping_sub(self.told);
        self.must_return() || (self.credits > 1 && consumed >= self.tell_consumed.max(1))
    }
}

#[cfg(any(test, feature = "testing"))]
impl Flow {
    /// Credits that this side has, and receives that it has posted again and not told of.
    pub fn credits(&self) -> (u16, u16) {
        (self.credits, self.posted)
    }

    /// Receives of this side.
    pub fn receives(&self) -> u16 {
        self.receives
    }
}

/// Bytes that messages of a peer count that have not matched.
pub(crate) fn counted(bytes: u64) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX).saturating_add(EACH)
}

/// Whether another message fits. More than was sent may have matched: messages from before the connection.
fn fits(sent: u32, matched: u32, bytes: u64, window: u32) -> bool {
    let open = i64::from(sent.wrapping_sub(matched) as i32);
    bytes <= u64::from(u32::MAX) && open + bytes as i64 + i64::from(EACH) <= i64::from(window)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(receives: u16, window: u32) -> Flow {
        let room = Room { receives, window };
        Flow::new(room, room, 0)
    }

    fn arrive(flow: &mut Flow, returned: Returned) {
        assert!(flow.arrives());
        flow.returned(returned);
        flow.posted_again();
    }

    /// Both sides use up what they may send, and then only return credits.
    #[test]
    fn two_sides_without_credits_get_them_back() {
        for receives in SMALLEST_RECEIVES..40 {
            let mut sides = [flow(receives, 4096); 2];
            for round in 0..50 {
                let mut wire: [Vec<Returned>; 2] = [Vec::new(), Vec::new()];
                for (side, wire) in sides.iter_mut().zip(&mut wire) {
                    while side.may_send() {
                        wire.push(side.leaves(u16::MAX));
                    }
                }
                assert!(round == 0 || wire.iter().any(|sent| !sent.is_empty()), "stuck with {receives} receives");
                let mut told = 0;
                while wire.iter().any(|sent| !sent.is_empty()) {
                    for from in [0, 1] {
                        for returned in std::mem::take(&mut wire[from]) {
                            arrive(&mut sides[1 - from], returned);
                        }
                        if sides[1 - from].must_tell() {
                            wire[1 - from].push(sides[1 - from].leaves(u16::MAX));
                            told += 1;
                        }
                    }
                    assert!(told < 100, "credits travel to and fro for ever with {receives} receives");
                }
            }
        }
    }

    /// Two sides that send by turns tell their credits with their messages, even if a credit has been told alone before.
    #[test]
    fn messages_to_and_fro_need_no_messages_for_credits() {
        for receives in SMALLEST_RECEIVES..10 {
            let mut sides = [flow(receives, 4096); 2];
            let credits = sides[0].leaves(u16::MAX);
            sides[1].credits_arrive();
            arrive(&mut sides[1], credits);
            for turn in 0..100 {
                let [from, to] = [turn % 2, 1 - turn % 2];
                assert!(sides[from].may_send());
                let message = sides[from].leaves(u16::MAX);
                arrive(&mut sides[to], message);
                assert!(!sides[to].must_tell(), "turn {turn} with {receives} receives");
            }
        }
    }

    #[test]
    fn unexpected_bytes_are_bounded_and_come_back() {
        let mut sender = flow(8, 1000);
        let mut receiver = flow(8, 1000);
        assert!(sender.may_be_unexpected(900) && !sender.may_be_unexpected(937));
        sender.sent_eagerly(900);
        assert!(!sender.may_be_unexpected(0));
        arrive(&mut receiver, sender.leaves(u16::MAX));
        assert!(!receiver.must_tell());
        receiver.matched(900);
        assert!(receiver.must_tell());
        arrive(&mut sender, receiver.leaves(u16::MAX));
        assert!(sender.may_be_unexpected(936) && !receiver.must_tell());
    }

    /// Both sides have one credit left, and all their messages are on the way. Then messages match on both sides.
    #[test]
    fn the_last_credit_is_not_spent_on_matched_bytes() {
        let mut sides = [flow(4, 1000); 2];
        let mut wire: [Vec<Returned>; 2] = [Vec::new(), Vec::new()];
        for (side, wire) in sides.iter_mut().zip(&mut wire) {
            while side.may_send() {
                wire.push(side.leaves(u16::MAX));
            }
            side.matched(900);
            if side.must_tell() {
                wire.push(side.leaves(u16::MAX));
            }
        }
        for from in [0, 1] {
            std::mem::take(&mut wire[from]).into_iter().for_each(|returned| arrive(&mut sides[1 - from], returned));
        }
        assert!(sides.iter().any(Flow::must_tell), "{sides:?}");
    }

    /// A peer that sends few messages at once keeps the receives that it began with; one that had to wait gets more.
    #[test]
    fn receives_grow_when_the_peer_waits() {
        for (most, more) in [(32, 4), (6, 2), (4, 0)] {
            let (mut sender, mut receiver) = (flow(4, 4096), flow(4, 4096));
            for _ in 0..20 {
                sender.has_to_wait();
                arrive(&mut receiver, sender.leaves(u16::MAX));
                assert_eq!(receiver.lacks(most), 0);
                arrive(&mut sender, receiver.leaves(u16::MAX));
            }
            while sender.may_send() {
                arrive(&mut receiver, sender.leaves(u16::MAX));
            }
            sender.has_to_wait();
            arrive(&mut sender, receiver.leaves(u16::MAX));
            arrive(&mut receiver, sender.leaves(u16::MAX));
            assert_eq!((receiver.lacks(most), receiver.lacks(most)), (more, 0));
            (0..more).for_each(|_| receiver.posted_more());
            sender.returned(receiver.leaves(u16::MAX));
            assert_eq!(sender.credits().0, 4 + more);
        }
    }

    #[test]
    fn a_peer_may_send_no_more_than_it_was_told() {
        let mut flow = flow(4, 1000);
        assert!((0..4).all(|_| flow.arrives()) && !flow.arrives());
        assert!(flow.arrives_eagerly(936) && !flow.arrives_eagerly(0));
        assert!(!flow.arrives_eagerly(u32::MAX));
        flow.matched(u32::MAX);
    }

    /// Messages that waited before the connection was established count until they match.
    #[test]
    fn messages_from_before_the_connection_count() {
        let (own, peer) = (Room { receives: 4, window: 300 }, Room { receives: 4, window: 1000 });
        let mut receiver = Flow::new(own, peer, 200);
        let mut sender = Flow::new(peer, own, 0);
        assert!(sender.may_be_unexpected(236) && !sender.may_be_unexpected(237));
        sender.returned(receiver.leaves(u16::MAX));
        assert!(sender.may_be_unexpected(436) && !sender.may_be_unexpected(437));
        assert!(receiver.arrives_eagerly(436) && !receiver.arrives_eagerly(0));
    }
}
