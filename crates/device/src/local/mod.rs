//! Packets through shared memory, between two processes of one network namespace and user.
//!
//! A pair of rings ([`endpoint`]) is in a sealed segment ([`segment`]) that one side makes and hands over by a unix
//! socket, after both sides have shown over that socket that they are the processes that proved their QPs
//! ([`handshake`]). The engine writes and reads the rings (`engine/local`), its thread makes and ends them
//! (`adapter/local_links.rs`).

pub mod arming;
pub mod endpoint;
pub mod handshake;
pub mod listener;
pub mod ring;
pub mod segment;
