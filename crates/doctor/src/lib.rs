//! What a program's work requests and completions tell about its stalls: no clock, no FFI, no system call.
//!
//! `libweir-layer.so` (crate `weir-layer`) sees what a program posts and polls, and enters it here: [`queue`] has the
//! open requests of a QP, [`expect`] decides which completed requests are kept, [`layout`] is the file in which they
//! are kept. After the end of the process [`trace`] reads the file, [`detect`] finds stalls and their causes,
//! [`report`] says so.
#![forbid(unsafe_code)]

mod advice;
pub mod detect;
pub mod expect;
pub mod finding;
pub mod layout;
pub mod queue;
pub mod report;
pub mod trace;
mod verbs;
