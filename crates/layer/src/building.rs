//! The requests between `wr_start` and `wr_complete`.

use crate::guard::work::Work;
use weir_doctor::queue::Posted;
use weir_guard::{Kind, Request};

/// Requests that a program builds call by call.
#[derive(Default)]
pub struct Building {
    pub count: u64,
    /// The last of them.
    pub last: Posted,
    /// For the guards: kinds of the requests, their bytes, and whether they have a completion; and, from the first READ of
    /// the QP on, the requests.
    pub kinds: Vec<(Kind, u64, bool)>,
    pub batch: Vec<Request<Work>>,
}
