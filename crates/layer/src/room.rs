//! What a QP can hold.

/// What a QP was created with.
#[derive(Clone, Copy)]
pub struct Room {
    /// Open requests.
    pub requests: u32,
    /// SGEs of a request.
    pub sges: u32,
    /// Bytes of inline data of a request.
    pub inline: u32,
    /// Each request has a completion.
    pub signal_all: bool,
    /// Places of the send queue for dummies, in addition to `requests`.
    pub spare: u32,
}
