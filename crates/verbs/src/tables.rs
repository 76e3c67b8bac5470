//! What QPs and the device's attributes know of indirection tables.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use weir_device::steering::spread::HashFields;

/// Queues of a table at most, as a power of two.
pub const MAX_LOG_TABLE: u32 = 10;
/// What the hash can consist of.
pub const HASH_FIELDS: u64 = HashFields::all().bits();

/// A QP's use of a table.
pub struct TableUser(Arc<AtomicU32>);

impl TableUser {
    /// Counts a user until it is dropped.
    pub fn new(users: &Arc<AtomicU32>) -> TableUser {
        users.fetch_add(1, Ordering::AcqRel);
        TableUser(users.clone())
    }
}

impl Drop for TableUser {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}
