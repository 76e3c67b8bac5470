//! Whoever comes after us under the same name.

use std::ffi::CStr;
use std::marker::PhantomData;
use std::mem::{size_of, transmute_copy};
use std::sync::atomic::{AtomicPtr, Ordering};

/// A function of type `F`, once it was looked for.
pub struct Next<F> {
    name: &'static CStr,
    found: AtomicPtr<libc::c_void>,
    function: PhantomData<fn() -> F>,
}

impl<F: Copy> Next<F> {
    pub const fn new(name: &'static CStr) -> Next<F> {
        Next { name, found: AtomicPtr::new(std::ptr::null_mut()), function: PhantomData }
    }

    /// Looks for it. The loader may allocate.
    pub fn look(&self) {
        // SAFETY: a name that ends with a zero.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        self.found.store(found, Ordering::Release);
    }

    /// It, if it was looked for and is there.
    #[inline]
    pub fn found(&self) -> Option<F> {
        const { assert!(size_of::<F>() == size_of::<*mut libc::c_void>()) };
        let found = self.found.load(Ordering::Relaxed);
        // SAFETY: the function of that name, whose type the statics of `hooks` give.
        (!found.is_null()).then(|| unsafe { transmute_copy(&found) })
    }

    /// It, looked for now if need be.
    pub fn found_or_look(&self) -> Option<F> {
        self.found().or_else(|| {
            self.look();
            self.found()
        })
    }
}
