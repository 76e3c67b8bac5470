//! What on-demand paging needs of an adapter.

use weir_transport::Side;

/// The adapter that a resolver works for.
pub(crate) trait Owner: Send + Sync {
    /// Returns when no access that began before is under way, or after a time limit: the invalidating thread may hold
    /// a lock that the access waits for.
    fn quiesce(&self);
    /// The faults of these QP sides are over: their pages are present, or cannot be populated.
    fn resolved(&self, sides: &[(u32, Side)]);
    /// Pages are deferred: `Resolver::take_due` must be called when they become due.
    fn pages_deferred(&self) {}
    /// A thread of the resolver has panicked: faults may never be resolved.
    fn panicked(&self) {}
}
