//! When a process that does not answer hellos is asked again.

use std::time::Duration;

/// Waits before a process is asked again. After [`TRIES`] it counts as one without hellos; the others are for a process that
/// was stopped or very busy.
pub const ATTEMPTS: [Duration; 10] = [
    Duration::from_millis(1),
    Duration::from_millis(2),
    Duration::from_millis(4),
    Duration::from_millis(8),
    Duration::from_millis(16),
    Duration::from_millis(32),
    Duration::from_millis(100),
    Duration::from_millis(300),
    Duration::from_secs(1),
    Duration::from_secs(3),
];
/// A process that has not answered so many hellos has none.
pub const TRIES: u32 = 6;
