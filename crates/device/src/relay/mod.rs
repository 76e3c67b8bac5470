//! From the holder of port 4791 to the process that a packet is for.
//!
//! One process of a network namespace holds the port, and foreign adapters send all their packets there. The holder
//! connects to the socket of each slot that packets come for, a sequenced-packet socket, and sends [`message`]s of many
//! packets. What is under way is bounded by the holder's own send buffer, and not by `net.unix.max_dgram_qlen`: ten
//! datagrams as a rule, which a burst exceeds at once. What does not fit waits in the holder's [`stock`].

pub mod holder;
pub mod incoming;
pub mod message;
mod stock;
mod sys;
