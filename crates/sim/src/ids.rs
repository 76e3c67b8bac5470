//! What identifies hosts, switches and queue pairs.

/// Identifies a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostId(pub u32);

/// Identifies a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SwitchId(pub u32);

/// An end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Node {
    Host(HostId),
    Switch(SwitchId),
}

/// Identifies a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QpId {
    pub host: HostId,
    /// QP number, 24 bits.
    pub num: u32,
}

impl From<HostId> for Node {
    fn from(host: HostId) -> Node {
        Node::Host(host)
    }
}

impl From<SwitchId> for Node {
    fn from(switch: SwitchId) -> Node {
        Node::Switch(switch)
    }
}
