//! Receives that wait for messages, and messages that wait for receives.
//!
//! Both are in the order in which they came. A message takes the first receive that it matches, and a receive the first
//! message: so messages of one peer that match the same receives are received in the order in which they were sent
//! (FI_ORDER_SAS).

use crate::ids::PeerId;
use std::collections::VecDeque;

/// What a receive takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pattern {
    pub tag: u64,
    /// Bits of the tag that do not matter.
    pub ignore: u64,
    /// `None`: from any peer.
    pub from: Option<PeerId>,
}

impl Pattern {
    /// Whether it takes a message with this tag from this peer.
    pub fn takes(&self, tag: u64, from: PeerId) -> bool {
        (tag ^ self.tag) & !self.ignore == 0 && self.from.is_none_or(|only| only == from)
    }
}

/// The tag and the sender of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Label {
    pub tag: u64,
    pub from: PeerId,
}

/// Receives and messages of one kind, with tags or without. `R` stands for a receive, `M` for a message.
#[derive(Debug)]
pub struct Matching<R, M> {
    receives: VecDeque<(Pattern, R)>,
    messages: VecDeque<(Label, M)>,
}

impl<R, M> Default for Matching<R, M> {
    fn default() -> Self {
        Matching { receives: VecDeque::new(), messages: VecDeque::new() }
    }
}

impl<R: Copy + PartialEq, M: Copy + PartialEq> Matching<R, M> {
    /// A message has come: the receive that takes it. `None`: [`Self::wait`] is next.
    pub fn receive_for(&self, label: Label) -> Option<R> {
        self.receives.iter().find(|(pattern, _)| pattern.takes(label.tag, label.from)).map(|&(_, receive)| receive)
    }

    /// A message waits for a receive.
    pub fn wait(&mut self, label: Label, message: M) {
        self.messages.push_back((label, message));
    }

    /// Posts a receive that no message matches.
    pub fn post(&mut self, pattern: Pattern, receive: R) {
        self.receives.push_back((pattern, receive));
    }

    /// The first message that a pattern takes.
    pub fn message_for(&self, pattern: &Pattern) -> Option<(Label, M)> {
        self.messages.iter().find(|(label, _)| pattern.takes(label.tag, label.from)).copied()
    }

    /// Removes a receive. False: it is not posted.
    pub fn remove_receive(&mut self, receive: R) -> bool {
        let found = self.receives.iter().position(|&(_, posted)| posted == receive);
        found.map(|at| self.receives.remove(at)).is_some()
    }

    /// Removes a message. False: it does not wait.
    pub fn remove_message(&mut self, message: M) -> bool {
        let found = self.messages.iter().position(|&(_, waiting)| waiting == message);
        found.map(|at| self.messages.remove(at)).is_some()
    }

    /// Removes the receives that only take messages from one peer, and returns them.
    pub fn remove_receives_from(&mut self, peer: PeerId) -> Vec<R> {
        let (gone, kept) = std::mem::take(&mut self.receives).into_iter().partition(|(p, _)| p.from == Some(peer));
        self.receives = kept;
        let gone: VecDeque<(Pattern, R)> = gone;
        gone.into_iter().map(|(_, receive)| receive).collect()
    }

    /// The peers from which receives only take messages.
    pub fn senders(&self) -> impl Iterator<Item = PeerId> + '_ {
        self.receives.iter().filter_map(|(pattern, _)| pattern.from)
    }

    /// All receives, in order.
    pub fn receives(&self) -> impl Iterator<Item = R> + '_ {
        self.receives.iter().map(|&(_, receive)| receive)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: PeerId = PeerId(1);
    const B: PeerId = PeerId(2);

    fn pattern(tag: u64, ignore: u64, from: Option<PeerId>) -> Pattern {
        Pattern { tag, ignore, from }
    }

    #[test]
    fn a_message_takes_the_first_receive_that_it_matches() {
        let mut matching: Matching<u32, u32> = Matching::default();
        matching.post(pattern(1, 0, Some(A)), 10);
        matching.post(pattern(0, u64::MAX, None), 11);
        matching.post(pattern(1, 0, None), 12);
        assert_eq!(matching.receive_for(Label { tag: 1, from: B }), Some(11));
        assert!(matching.remove_receive(11) && !matching.remove_receive(11));
        assert_eq!(matching.receive_for(Label { tag: 1, from: B }), Some(12));
        assert_eq!(matching.receive_for(Label { tag: 1, from: A }), Some(10));
        assert_eq!(matching.receive_for(Label { tag: 2, from: A }), None);
        assert_eq!(matching.remove_receives_from(A), [10]);
    }

    #[test]
    fn a_receive_takes_the_first_message_that_it_matches() {
        let mut matching: Matching<u32, u32> = Matching::default();
        matching.wait(Label { tag: 0x10, from: A }, 1);
        matching.wait(Label { tag: 0x11, from: B }, 2);
        matching.wait(Label { tag: 0x10, from: A }, 3);
        let first = |pattern| matching.message_for(&pattern).map(|(_, message)| message);
        assert_eq!(first(pattern(0x11, 0xf, None)), Some(1));
        assert_eq!(first(pattern(0x11, 0xf, Some(B))), Some(2));
        assert_eq!(first(pattern(0x12, 0, None)), None);
        assert!(matching.remove_message(1));
        assert_eq!(matching.message_for(&pattern(0x10, 0, None)), Some((Label { tag: 0x10, from: A }, 3)));
    }
}
