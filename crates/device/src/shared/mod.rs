//! What the handles of objects and the engine share. Nothing here refers to a handle, to a context or to the engine:
//! handles keep these alive, and the engine refers to nothing else of the objects.

pub mod addresses;
pub mod allowed_hosts;
pub mod arrival_errors;
pub mod condition;
pub mod cq;
#[cfg(test)]
mod cq_tests;
pub mod doorbells;
pub mod drop_log;
pub mod gathering;
pub mod handover;
#[cfg(test)]
mod handover_tests;
pub mod moderation;
pub mod note_log;
pub mod qp;
pub mod route;
pub mod send_errors;
pub mod srq;
pub mod state;
pub mod tagging;
pub mod tags;
