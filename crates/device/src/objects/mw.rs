//! Memory windows of the verbs: allocated and deallocated here, bound by work requests.

use crate::Errno;
use crate::memory::window::WindowType;
use crate::objects::pd::Pd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A memory window.
pub struct Mw {
    pd: Arc<Pd>,
    key: u32,
    ended: AtomicBool,
}

impl Pd {
    /// Allocates a window that is not bound. ENOMEM beyond `max_mw`.
    pub fn alloc_mw(self: &Arc<Self>, window_type: WindowType) -> Result<Arc<Mw>, Errno> {
        let adapter = &self.context.adapter;
        adapter.check()?;
        let key = adapter.regions.insert_window(self.number, window_type)?;
        self.attach();
        Ok(Arc::new(Mw { pd: self.clone(), key, ended: AtomicBool::new(false) }))
    }
}

impl Mw {
    /// The first rkey of the window; binding changes the low byte.
    pub fn rkey(&self) -> u32 {
        self.key
    }

    /// Deallocates the window, bound or not. When it returns, no peer can access memory through it. Does nothing in a
    /// forked child.
    pub fn dealloc(&self) -> Result<(), Errno> {
        let adapter = &self.pd.context.adapter;
        if adapter.is_ours() && !self.ended.swap(true, Ordering::AcqRel) {
            adapter.regions.remove_window(self.key);
            adapter.quiesce();
            self.pd.detach();
        }
        Ok(())
    }
}

impl Drop for Mw {
    fn drop(&mut self) {
        let _ = self.dealloc();
    }
}
