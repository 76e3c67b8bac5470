//! The process that a node belongs to. A forked child must not use it: a lock may be held there for ever.

use crate::error::Error;
use weir_guarded::copy;
use weir_guarded::generation::{count_fork, generation};
use weir_guarded::per_process::OnceInherited;

/// The process that opened a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Owner(u32);

impl Owner {
    /// This process. Installs what survives faults, and what counts forks.
    pub fn current() -> Owner {
        static ONCE: OnceInherited = OnceInherited::new();
        ONCE.call_once(|| {
            copy::install_handler();
            // SAFETY: the handler uses an atomic only.
            unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        });
        Owner(generation())
    }

    /// `Forked` in a child of that process.
    pub fn check(self) -> Result<(), Error> {
        if self.is_inherited() { Err(Error::Forked) } else { Ok(()) }
    }

    /// Whether this process is a child of that process.
    pub fn is_inherited(self) -> bool {
        self.0 != generation()
    }
}

extern "C" fn in_child() {
    count_fork();
}
