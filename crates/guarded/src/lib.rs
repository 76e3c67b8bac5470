//! Copies of application memory that may not be mapped: a fault is an error, and the program keeps its signal handlers.
//!
//! | file | |
//! | --- | --- |
//! | `copy` | the copy and the atomics that survive a fault |
//! | `handlers` | SIGSEGV and SIGBUS: the copy first, then the program's action |
//! | `mask` | both signals are unblocked during a copy |
//! | `per_process`, `generation` | state that a forked child creates anew |

pub mod copy;
pub mod generation;
pub mod handlers;
pub mod mask;
pub mod per_process;
