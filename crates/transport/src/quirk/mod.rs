//! Flaws of real adapters, one file each: what it does, and the observations that led to it.
//!
//! Each is switched and measured by the [`crate::Profile`]. Where the profile does without, none of them costs more than a
//! branch: they are asked for in cold paths only. References are to T. Fukuoka's thesis "Finding and Analyzing Performance
//! Pitfalls of On-Demand Paging of InfiniBand", as T with section or figure.
//!
//! | flaw | where |
//! | --- | --- |
//! | what is left to chance | `chance` |
//! | packet damming | `damming` |
//! | packet flood | `flood` |
//! | a limit to outstanding READs across QPs | `outstanding` |
//! | RNR NAKs that leave late (T fig 4.2 to 4.4) | `responder::ack`: `Owed::Later` |
//! | READs that come again are answered late (T fig 4.2, 5.3) | `responder`: `answer_late` |
//! | answers are dropped, and READs repeated at intervals (T 4.2) | `requester::page_fault`, `completer`: `touch` |

mod chance;
mod damming;
mod flood;
mod outstanding;

pub use chance::Chance;
#[cfg(feature = "testing")]
pub(crate) use chance::split_mix;
pub(crate) use damming::{Dam, Lost};
pub use flood::Announcer;
pub use outstanding::Outstanding;
