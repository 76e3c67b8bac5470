//! Connections to processes of this host that were killed. The kernel would end their connections in their place.

use super::Manager;
use std::collections::{HashMap, HashSet};
use std::time::Duration;

/// Time between two looks for such processes, while there are connections to processes of this host.
pub(super) const LOOK: Duration = Duration::from_millis(500);
/// Time between two looks while all peers seem to be on other hosts: an address of this host may be missing for a moment,
/// as while its interface is down.
pub(super) const LOOK_SELDOM: Duration = Duration::from_secs(5);
/// Time until the next look after one that misses a process: its last messages may be on their way.
pub(super) const LOOK_AGAIN: Duration = Duration::from_millis(200);

impl Manager {
    /// There may be a connection to a process of this host now.
    pub(super) fn watch_peers(&mut self) {
        let soon = self.now + LOOK;
        self.peers_at = Some(self.peers_at.map_or(soon, |at| at.min(soon)));
    }

    /// Ends the connections to processes of this host that have ended without a message.
    pub(super) fn look_for_peers(&mut self) {
        if self.peers_at.is_none_or(|at| self.now < at) {
            return;
        }
        let mut known = HashMap::new();
        let (mut here, mut elsewhere, mut missing, mut vanished) = (false, false, HashSet::new(), Vec::new());
        for (connection, route, id) in self.cm.peers() {
            let process = id >> self.id_bits;
            match *known.entry((*route, process)).or_insert_with(|| self.host.lives(route, process)) {
                None => elsewhere = true,
                Some(true) => here = true,
                Some(false) if self.missing.contains(&connection) => vanished.push(connection),
                Some(false) => _ = missing.insert(connection),
            }
        }
        self.missing = missing;
        let pause = match (self.missing.is_empty(), here, elsewhere) {
            (false, _, _) => Some(LOOK_AGAIN),
            (true, true, _) => Some(LOOK),
            (true, false, true) => Some(LOOK_SELDOM),
            (true, false, false) => None,
        };
        self.peers_at = pause.map(|pause| self.now + pause);
        for connection in vanished {
            self.cm.peer_vanished(self.now, connection);
        }
    }
}
