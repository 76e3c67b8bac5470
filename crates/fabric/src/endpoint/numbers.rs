//! Numbers of requests: what a completion belongs to.

use weir_msg::{ConnectionId, Slot};

/// A receive, in the number of a request.
const RECEIVE: u64 = 1 << 63;
/// Below this bit of a send's number is its number on the connection.
const CONNECTION_SHIFT: u32 = 40;

/// The number of a receive: the connection, and the bounce buffer.
pub fn receive_id(connection: ConnectionId, slot: Slot) -> u64 {
    RECEIVE | u64::from(connection.0) << 32 | u64::from(slot.0)
}

/// The number of a send: the connection, and its number there.
pub fn send_id(connection: ConnectionId, number: u64) -> u64 {
    u64::from(connection.0) << CONNECTION_SHIFT | number & ((1 << CONNECTION_SHIFT) - 1)
}

/// Which request has completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    Send(ConnectionId, u64),
    Receive(ConnectionId, Slot),
}

/// What the number of a request says.
pub fn request_of(id: u64) -> Request {
    if id & RECEIVE != 0 {
        Request::Receive(ConnectionId((id >> 32) as u32 & 0x7fff_ffff), Slot(id as u32))
    } else {
        Request::Send(ConnectionId((id >> CONNECTION_SHIFT) as u32), id & ((1 << CONNECTION_SHIFT) - 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_told_apart() {
        let (connection, slot) = (ConnectionId(0x7f_fffe), Slot(u32::MAX));
        assert_eq!(request_of(receive_id(connection, slot)), Request::Receive(connection, slot));
        let send = send_id(connection, 0xff_ffff_ffff);
        assert_eq!(request_of(send), Request::Send(connection, 0xff_ffff_ffff));
    }
}
