//! Flaws of real adapters, one file each: the mechanism, and the observations that led to it.
//!
//! The [`crate::Profile`] enables each flaw and holds its parameters. Where the profile disables a flaw, it costs at
//! most a branch. References are to T. Fukuoka's thesis "Finding and Analyzing
//! Performance Pitfalls of On-Demand Paging of InfiniBand", as T with section or figure.
//!
//! | flaw | where |
//! | --- | --- |
//! | random timeouts and waits | `chance` |
//! | packet damming | `damming`; `responder::duplicates`: `begin_replay` |
//! | packet flood | `flood`; `requester::page_fault`: `take_fault_event`, `count_fault`, `completer`: `scatter`, `acknowledge` |
//! | RNR NAKs that leave late (T fig 4.2 to 4.4) | `responder::page_fault`: `page_resolved`, `response_waits` |
//! | duplicate READs get a late response (T fig 4.2, 5.3) | `responder::duplicates`: `begin_replay` |
//! | dropped responses, READs retransmitted at intervals (T 4.2) | `requester::page_fault`, `completer`: `fault_in_buffer` |

mod chance;
mod damming;
mod flood;

pub use chance::Chance;
#[cfg(feature = "testing")]
pub(crate) use chance::split_mix;
pub use flood::FaultEvents;
