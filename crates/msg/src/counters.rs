//! What an endpoint has done so far.

/// Declares the counters once, for the structure and for their names.
macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters of an endpoint, and what it has of memory now.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counters {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Counters {
            /// Names and values, in the order of declaration.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name),)*].into_iter()
            }
        }
    };
}

counters! {
    /// Messages sent through bounce buffers.
    eager,
    /// Messages sent by rendezvous: READ or written by the adapter, out of and into the program's memory.
    rendezvous,
    /// Messages that stayed with the sender until they matched, and then went through bounce buffers.
    deferred,
    /// READs and WRITEs of the program.
    rma,
    /// Atomics of the program.
    atomics,
    /// Registrations of the program's memory for operations.
    registrations,
    /// Operations that found their memory registered.
    cache_hits,
    /// Registrations that ended because the cache was full, the adapter had no room, or the memory has gone.
    evictions,
    /// Ranges of memory that were prefetched. Pages that the adapter has not lost since the last time are left out.
    prefetches,
    /// Pages (of 4 KiB) in these ranges.
    prefetched_pages,
    /// Bytes that are pinned now: bounce buffers, and memory of the program in scheme `pin-down`.
    pinned_bytes,
    /// The most that they were.
    pinned_peak,
    /// Bytes of messages that match no receive now.
    unexpected_bytes,
    /// The most that they were.
    unexpected_peak,
}

impl Counters {
    pub(crate) fn pin(&mut self, bytes: u64) {
        self.pinned_bytes += bytes;
        self.pinned_peak = self.pinned_peak.max(self.pinned_bytes);
    }

    pub(crate) fn keep_unexpected(&mut self, bytes: u64) {
        self.unexpected_bytes += bytes;
        self.unexpected_peak = self.unexpected_peak.max(self.unexpected_bytes);
    }
}
