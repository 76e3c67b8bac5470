//! Where the payload of a packet belongs.

/// Where the payload of a packet belongs. It follows from the packet alone, not from earlier ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    /// What the message is placed in.
    pub destination: Destination,
    /// Offset of the payload in its message, bytes.
    pub offset: u32,
    /// Length of the message, bytes.
    pub length: u32,
}

/// What a message is placed in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// WRITE: memory of the responder. `address` is that of the payload's first byte.
    Memory { address: u64, rkey: u32 },
    /// SEND and READ response: what the receiver of the packet has for message `number`. The number counts the
    /// requester's messages before this one, modulo 2^24; a READ request is a message.
    Message { number: u32 },
}
