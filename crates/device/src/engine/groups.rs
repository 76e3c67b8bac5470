//! The multicast groups of an adapter.

use std::net::IpAddr;
use std::os::fd::RawFd;

/// The groups that QPs are attached to.
#[derive(Default)]
pub struct Groups(pub Vec<Group>);

/// A multicast group, by its address.
pub struct Group {
    pub address: IpAddr,
    /// The socket that has joined it.
    pub membership: RawFd,
    /// Indices of QPs, each once.
    pub members: Vec<u16>,
}

impl Groups {
    /// A group by its address.
    pub fn find(&mut self, address: IpAddr) -> Option<&mut Group> {
        self.0.iter_mut().find(|group| group.address == address)
    }

    /// The index of the `position`-th QP of a group.
    pub fn member(&self, address: IpAddr, position: usize) -> Option<u16> {
        self.0.iter().find(|group| group.address == address)?.members.get(position).copied()
    }

    /// Returns whether a QP is attached to any group.
    pub fn has_member(&self, index: u16) -> bool {
        self.0.iter().any(|group| group.members.contains(&index))
    }
}
