//! The next definition of an interposed function.

use std::ffi::CStr;
use std::marker::PhantomData;
use std::mem::{size_of, transmute_copy};
use std::sync::atomic::{AtomicPtr, Ordering};

/// A function of type `F`, after it was looked up.
pub struct Next<F> {
    name: &'static CStr,
    found: AtomicPtr<libc::c_void>,
    function: PhantomData<fn() -> F>,
}

impl<F: Copy> Next<F> {
    /// A function that is not looked up yet; `name` is its symbol.
    pub const fn new(name: &'static CStr) -> Next<F> {
        Next { name, found: AtomicPtr::new(std::ptr::null_mut()), function: PhantomData }
    }

    /// Looks it up. The loader may allocate.
    pub fn look_up(&self) {
        // SAFETY: a NUL-terminated name.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        self.found.store(found, Ordering::Release);
    }

    /// The function, if it was looked up and exists.
    #[inline]
    pub fn found(&self) -> Option<F> {
        const { assert!(size_of::<F>() == size_of::<*mut libc::c_void>()) };
        let found = self.found.load(Ordering::Relaxed);
        // SAFETY: the function of that name; the statics of `hooks` declare its type.
        (!found.is_null()).then(|| unsafe { transmute_copy(&found) })
    }

    /// The function; looks it up now if that has not happened yet.
    pub fn found_or_look_up(&self) -> Option<F> {
        self.found().or_else(|| {
            self.look_up();
            self.found()
        })
    }
}
