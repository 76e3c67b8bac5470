//! The C functions of weir-edge: `include/weir/edge.h`.
//!
//! | file | |
//! | --- | --- |
//! | `types` | the structures of the header |
//! | `failure` | errno, and the text of the latest failure |
//! | `nodes`, `connections` | the functions |

mod connections;
mod failure;
mod nodes;
mod types;

pub use connections::*;
pub use failure::edge_error;
pub use nodes::*;
pub use types::{EdgeCounters, EdgeEvent, EdgeOptions, EdgeRange};
