//! What the handles of objects and the engine share. Nothing here refers to a handle, to a context or to the adapter:
//! a handle keeps these alive, and the engine refers to them only.

pub mod cq;
pub mod qp;
pub mod srq;
