//! Where the end of the process is.

use weir_transport::Instant;

/// Where the end of the process is.
pub struct Ending {
    /// Disconnections that have left and are not answered.
    pub unanswered: usize,
    /// The next ids end as soon as all are answered, or then.
    pub goes_on: Instant,
}
