//! The MTU of the stage.

/// MTU of the veth pair: jumbo frames, as on any RDMA network.
pub const MTU: u32 = 9000;
