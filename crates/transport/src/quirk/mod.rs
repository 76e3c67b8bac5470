//! Flaws of real adapters, one file each: the mechanism, and the observations that led to it.
//!
//! The [`crate::Profile`] enables each flaw and holds its parameters. Where the profile disables a flaw, it costs at
//! most a branch: only cold paths check for it. References are to T. Fukuoka's thesis "Finding and Analyzing
//! Performance Pitfalls of On-Demand Paging of InfiniBand", as T with section or figure.
//!
//! | flaw | where |
//! | --- | --- |
//! | random timeouts and waits | `chance` |
//! | packet damming | `damming`; `requester::retry`: `go_back`, `go_back_after`, `requester::poll`: `poll` |
//! | packet flood | `flood`; `requester::page_fault`: `unnotified_reads`, `completer`: `scatter` |
//! | a limit to outstanding READs across QPs | `outstanding`; `requester::read_credits` |
//! | RNR NAKs that leave late (T fig 4.2 to 4.4) | `responder::ack`: `Owed::Later` |
//! | duplicate READs get a late response (T fig 4.2, 5.3) | `responder`: `delay_response` |
//! | dropped responses, READs retransmitted at intervals (T 4.2) | `requester::page_fault`, `completer`: `touch` |

mod chance;
mod damming;
mod flood;
mod outstanding;

pub use chance::Chance;
#[cfg(feature = "testing")]
pub(crate) use chance::split_mix;
pub(crate) use damming::{Damming, Lost, Part};
pub use flood::FaultNotifier;
pub use outstanding::Outstanding;
