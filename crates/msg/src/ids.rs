//! Numbers of peers, operations and messages.

/// An endpoint that another endpoint knows by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerId(pub u32);

/// An operation of an endpoint; also its number on the wire.
pub(crate) type OpId = u32;

/// A message that no receive has matched.
pub(crate) type UnexpectedId = u32;
