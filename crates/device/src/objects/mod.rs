//! The objects of the verbs: what programs create, use and destroy.

pub mod address;
mod advise;
pub mod channel;
pub mod context;
pub mod cq;
pub mod dm;
pub mod flow;
pub mod mads;
pub mod mr;
pub mod mw;
pub mod pd;
pub mod qp;
mod qp_caps;
pub mod srq;
mod xrc_target;
pub mod xrcd;
