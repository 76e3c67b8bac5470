//! What the engine's thread is asked to do besides packets.

/// Work that the engine's thread does outside of the engine, because it may wait, allocate, or take long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadTasks(pub(super) u16);

impl ThreadTasks {
    /// No work.
    pub const NONE: ThreadTasks = ThreadTasks(0);
    /// Write the log of send errors and of arrivals, which may wait for a terminal.
    pub const LOG: ThreadTasks = ThreadTasks(1);
    /// Allocate room for peers.
    pub const PEER_ROOM: ThreadTasks = ThreadTasks(2);
    /// Read from the kernel which users have port 4791.
    pub const PORT_OWNERS: ThreadTasks = ThreadTasks(4);
    /// Open port 4791, or give it up.
    pub const LISTEN: ThreadTasks = ThreadTasks(8);
    /// Free the QPs that the engine has removed.
    pub const REMOVED_QPS: ThreadTasks = ThreadTasks(16);
    /// Take a turn for a thread that must not take it.
    pub const TURN: ThreadTasks = ThreadTasks(32);
    /// Make or free shared memory, or read messages about it.
    pub const LOCAL: ThreadTasks = ThreadTasks(64);
    /// Allocate buffers for packets that wait.
    pub const HELD_BUFFERS: ThreadTasks = ThreadTasks(128);

    /// Open a socket for the destination of most packets.
    pub const SOCKET: ThreadTasks = ThreadTasks(256);

    /// Make or free the tap of a watcher.
    pub const TAP: ThreadTasks = ThreadTasks(512);

    /// Returns whether any work of `tasks` is in this set.
    pub fn contains(self, tasks: ThreadTasks) -> bool {
        self.0 & tasks.0 != 0
    }
}
