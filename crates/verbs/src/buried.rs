//! Memory of destroyed objects, which is freed later: the header's inline functions read an object before they call
//! Weir, so that the second call for an object must find what it needs.

use std::alloc::{Layout, dealloc};
use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use weir_device::PerProcess;

/// Drops an object, but frees its memory when many others have followed.
///
/// # Safety
/// `object` is from `Box::into_raw` and not used again, except by inline functions of the header.
pub unsafe fn bury<T>(object: *mut T) {
    let layout = Layout::new::<T>();
    // SAFETY: guaranteed by the caller.
    unsafe { std::ptr::drop_in_place(object) };
    let oldest = {
        let mut buried = BURIED.get().0.lock().unwrap_or_else(PoisonError::into_inner);
        let oldest = if buried.len() == BURIALS { buried.pop_front() } else { None };
        buried.push_back((object as usize, layout));
        oldest
    };
    if let Some((address, layout)) = oldest {
        // SAFETY: from `Box::into_raw`, with this layout; its value is dropped.
        unsafe { dealloc(address as *mut u8, layout) };
    }
}

/// So many objects keep their memory.
const BURIALS: usize = 1024;

struct Buried(Mutex<VecDeque<(usize, Layout)>>);

impl Default for Buried {
    fn default() -> Self {
        Buried(Mutex::new(VecDeque::with_capacity(BURIALS)))
    }
}

static BURIED: PerProcess<Buried> = PerProcess::new();
