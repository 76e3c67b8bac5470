//! Checks of endpoints when nothing happens any more: nothing leaks, and all credits have come back.

use super::mesh::{Mesh, name};
use super::node::Node;
use crate::ids::PeerId;
use crate::peer::State;

/// Checks all nodes of a mesh that is settled.
///
/// # Panics
/// If something is lost.
pub fn audit(mesh: &mut Mesh) {
    let alive: Vec<usize> = (0..mesh.nodes.len()).filter(|&node| mesh.nodes[node].endpoint.is_some()).collect();
    for &node in &alive {
        mesh.with(node, |endpoint, port, _| endpoint.flush(port));
    }
    mesh.settle();
    for &node in &alive {
        resources(node, &mesh.nodes[node]);
        for &other in &alive {
            credits(mesh, node, other);
        }
    }
}

/// Closes all endpoints, after which nothing may be in use but the program's windows.
///
/// # Panics
/// If something is in use.
pub fn close(mesh: &mut Mesh) {
    for node in 0..mesh.nodes.len() {
        if mesh.nodes[node].endpoint.is_none() {
            continue;
        }
        mesh.with(node, |endpoint, port, _| endpoint.close(port));
        let Node { port, endpoint, windows, .. } = &mesh.nodes[node];
        let pinned = endpoint.as_ref().map(|endpoint| endpoint.counters().pinned_bytes);
        let left = (port.slots_in_use(), port.connections(), port.memory.regions(), pinned);
        assert_eq!(left, (0, 0, *windows, Some(0)), "bounce buffers, connections, registrations, pinned bytes");
    }
}

fn resources(number: usize, node: &Node) {
    let (endpoint, port) = (node.endpoint(), &node.port);
    assert!(endpoint.is_drained(), "node {number} has something to do");
    let queued = |state: &State| match state {
        State::Connected(connected) => connected.queue.slots() as usize,
        _ => 0,
    };
    let sending = endpoint.free_slots.len() + endpoint.peers.iter().map(|peer| queued(&peer.state)).sum::<usize>();
    let receiving: usize = endpoint.peers.iter().map(|peer| peer.receives.len()).sum();
    assert_eq!(sending, endpoint.send_slots as usize, "bounce buffers for sending of node {number}");
    assert!(endpoint.send_slots <= endpoint.settings.send_slots);
    assert_eq!(sending + receiving, port.slots_in_use(), "bounce buffers of node {number}");
    let pinned = (sending + receiving) as u64 * u64::from(endpoint.settings.slot) + port.memory.pinned();
    assert_eq!(endpoint.counters.pinned_bytes, pinned, "pinned bytes of node {number}");
    assert_eq!(endpoint.connections.len(), port.connections());
    assert!(endpoint.broken.is_empty());
    let counted: u64 = endpoint.unexpected.iter().map(|(_, waiting)| here(waiting)).sum();
    assert_eq!(endpoint.counters.unexpected_bytes, counted, "bytes that wait at node {number}");
}

fn here(waiting: &crate::ops::Unexpected) -> u64 {
    match waiting.content {
        crate::ops::Content::Here(_) => waiting.len,
        crate::ops::Content::Announced { .. } => 0,
    }
}

/// All receives of `to` are credits of `from`, or known to be told later.
fn credits(mesh: &Mesh, from: usize, to: usize) {
    let side = |node: usize, peer: usize| {
        let endpoint = mesh.nodes[node].endpoint();
        let id: PeerId = *endpoint.names.get(&name(peer))?;
        let peer = &endpoint.peers[id.0 as usize];
        match &peer.state {
            State::Connected(connected) => Some((connected.flow, peer)),
            _ => None,
        }
    };
    let (Some((sends, sender)), Some((receives, receiver))) = (side(from, to), side(to, from)) else {
        return;
    };
    assert_eq!(usize::from(receives.receives()), receiver.receives.len(), "receives of {to} for {from}");
    assert_eq!(sends.credits().0 + receives.credits().1, receives.receives(), "credits of {from} for {to}");
    assert_eq!(sender.announcing, receiver.announced, "announcements of {from} for {to}");
}
