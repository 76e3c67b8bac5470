//! Guards: workarounds against packet damming and packet flood (thesis 7.1) in a layer above verbs.
//!
//! | guard | what it does | against |
//! | --- | --- | --- |
//! | `rnr` | the QP asks peers for the smallest RNR delay, if its process has ODP memory ([`rnr_timer`]) | damming |
//! | `dummy` | while a request is open longer than it should be, READs of no bytes follow it ([`Connection`]) | damming |
//! | `reissue` | a READ that is stuck at its own ODP memory starts again, into pinned memory ([`Connection`]) | flood |
//! | `prefetch` | ODP memory of a request becomes present before the request is posted ([`Pages`]) | both |
//!
//! A [`Connection`] knows the open requests of one QP, and decides what to do and when. Time is an argument, and the
//! caller posts: `libweir-layer.so` does with verbs, the laboratory does in the simulator.
//!
//! # Why a READ can start again without completing twice
//!
//! A second READ behind the first cannot complete before it, and a READ on another QP leaves the first one open: its
//! late response would overwrite what the program has in its buffer by then. So the QP itself starts again. The caller
//! takes it to ERROR, which ends every open request without a trace in the program's memory, and then through RESET back
//! to RTS, with the PSN of the first request that had not completed. It posts the same requests again. To the peer they
//! are retransmissions: it executes READs again, and acknowledges what it has executed before (IBTA 9.7.5.1.2, 9.9.2.2).
//! Now the READs go to pinned memory, where no page is missing, and the caller copies the data when they complete.
//! An adapter with damming may lose requests while it replays a READ: then a second start, or a dummy, makes up for it.
//!
//! That is possible only if nothing arrives on the QP by itself: no receive was ever posted to it, and no request of
//! the peer has arrived.
#![forbid(unsafe_code)]

mod answer;
mod connection;
#[cfg(test)]
mod connection_tests;
mod depth;
mod list;
mod open;
mod pages;
mod patience;
mod request;
mod rnr;

pub use answer::{Action, Completed, Flushed};
pub use connection::{Connection, SPARE};
pub use depth::Depth;
pub use list::{Guards, UnknownGuard};
pub use pages::Pages;
pub use request::{Kind, Remote, Request};
pub use rnr::{SMALLEST_DELAY, rnr_timer};
