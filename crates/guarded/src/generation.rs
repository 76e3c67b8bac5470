//! How many forks are between the first process and this one.

use std::sync::atomic::{AtomicU32, Ordering};

static GENERATION: AtomicU32 = AtomicU32::new(0);

/// Counts the forks between the first process and this process.
pub fn generation() -> u32 {
    GENERATION.load(Ordering::Relaxed)
}

/// This process is a new child. Called in the child of a fork, before any other thread exists.
pub fn count_fork() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}
