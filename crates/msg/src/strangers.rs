//! Peers that come by themselves. Each connection may bring another name, so those that the program has not named are
//! bounded, and forgotten when nothing is left of them.

use crate::endpoint::Endpoint;
use crate::hello::Name;
use crate::ids::PeerId;
use crate::ops::{Op, Receive, ReceiveState};
use crate::peer::{Peer, State};

impl Endpoint {
    /// The peer of this name, which asks for a connection. `None`: there are too many that the program has not named.
    pub(crate) fn introduced(&mut self, name: &Name) -> Option<PeerId> {
        if let Some(&known) = self.names.get(name) {
            return Some(known);
        }
        let stranger = Peer { stranger: true, ..Peer::new(*name) };
        if self.strangers < self.settings.strangers {
            self.strangers += 1;
            return Some(self.add_peer(stranger));
        }
        let id = self.forgettable()?;
        let gone = std::mem::replace(self.peer_mut(id), stranger);
        self.names.remove(&gone.name);
        self.names.insert(*name, id);
        Some(id)
    }

    /// The program names a peer.
    pub(crate) fn becomes_named(&mut self, id: PeerId) {
        if std::mem::take(&mut self.peer_mut(id).stranger) {
            self.strangers -= 1;
        }
    }

    /// A stranger of which nothing is left: no connection, no message, no operation, no event.
    fn forgettable(&self) -> Option<PeerId> {
        let mut idle: Vec<bool> = self.peers.iter().map(Peer::is_forgettable).collect();
        let from_ops = self.ops.iter().filter_map(|(_, op)| match op {
            Op::Receive(Receive { state: ReceiveState::Matched(matched), .. }) => Some(matched.from),
            op => op.peer(),
        });
        let from_messages = self.unexpected.iter().map(|(_, waiting)| waiting.from);
        let from_events = self.events.iter().filter_map(|event| event.from);
        from_ops.chain(from_messages).chain(from_events).for_each(|peer| idle[peer.0 as usize] = false);
        idle.iter().position(|&idle| idle).map(|at| PeerId(at as u32))
    }
}

impl Peer {
    fn is_forgettable(&self) -> bool {
        self.stranger && !self.busy && !self.has_work() && matches!(self.state, State::Idle)
    }
}
