//! Hands packets over from the holder of port 4791 to the processes that they are for.
//!
//! One process of a network namespace holds the port, to which foreign adapters send all their packets. The holder
//! connects to the sequenced-packet socket of each slot that gets packets, and sends [`message`]s of many packets
//! each. What is under way is limited by the holder's own send buffer, rather than by `net.unix.max_dgram_qlen`:
//! usually ten datagrams, which a burst exceeds at once. What does not fit waits in the holder's [`message_buffers`].

mod connection;
pub mod held_requests;
pub mod holder;
pub mod holder_names;
pub mod incoming;
pub mod message;
mod message_buffers;
pub mod port_authority;
pub mod receiver;
pub mod request_routes;
