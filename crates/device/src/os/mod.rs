//! The operating system and the process that an adapter is in.

pub mod cancel;
pub mod clock;
pub mod deaths;
pub mod descriptors;
pub mod device_info;
pub mod engine_hold;
pub mod epoll;
pub mod errno;
pub mod gid_table;
pub mod grow;
pub mod headroom;
pub mod interfaces;
pub mod joined;
pub mod locks;
pub mod name;
pub mod netlink;
pub mod notify;
pub mod panics;
pub mod process;
pub mod refused;
pub mod sealed;
pub mod seqpacket;
pub mod threads;
pub mod users;
pub mod watch;

pub use weir_guarded::{handlers, mask, per_process};
