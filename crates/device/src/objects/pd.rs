//! Protection domains.

use crate::Errno;
use crate::objects::context::Context;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// A protection domain.
pub struct Pd {
    pub(crate) context: Arc<Context>,
    pub(crate) number: u32,
    /// Objects created in this domain; a domain and its imports share one count.
    users: Arc<AtomicU32>,
    /// The domain that a parent domain is based on.
    base: Option<Arc<Pd>>,
}

impl Context {
    /// Allocates a protection domain.
    pub fn alloc_pd(self: &Arc<Self>) -> Result<Arc<Pd>, Errno> {
        let number = self.adapter.new_pd();
        Ok(Arc::new(Pd { context: self.clone(), number, users: Arc::default(), base: None }))
    }
}

impl Pd {
    /// Logs why a control call is refused, with the device's name, and returns its error.
    #[cold]
    pub fn refuse(&self, errno: i32, why: fmt::Arguments<'_>) -> Errno {
        self.context.refuse(errno, why)
    }

    /// Creates a parent domain: the same domain, with its own count of objects.
    pub fn parent_domain(self: &Arc<Self>) -> Arc<Pd> {
        self.attach();
        let (context, number) = (self.context.clone(), self.number);
        Arc::new(Pd { context, number, users: Arc::default(), base: Some(self.clone()) })
    }

    /// Imports the domain into another context of the device; EINVAL for a context of another device.
    pub fn import(&self, context: &Arc<Context>) -> Result<Arc<Pd>, Errno> {
        if !Arc::ptr_eq(&self.context.adapter, &context.adapter) {
            return Err(Errno(libc::EINVAL));
        }
        let (number, users) = (self.number, self.users.clone());
        Ok(Arc::new(Pd { context: context.clone(), number, users, base: None }))
    }

    /// Deallocates the domain. EBUSY while an object of it exists. Call it once only.
    pub fn dealloc(&self) -> Result<(), Errno> {
        let users = self.users.load(Ordering::Acquire);
        if users > 0 {
            let why = format_args!("PD: deallocate: {users} QPs, regions and others belong to it: destroy them first");
            return Err(self.refuse(libc::EBUSY, why));
        }
        if let Some(base) = &self.base {
            base.detach();
        }
        Ok(())
    }

    /// An object belongs to the domain: deallocating it fails with EBUSY until [`detach`](Self::detach).
    pub(crate) fn attach(&self) {
        self.users.fetch_add(1, Ordering::AcqRel);
    }

    /// The object of an [`attach`](Self::attach) no longer uses the domain.
    pub(crate) fn detach(&self) {
        self.users.fetch_sub(1, Ordering::AcqRel);
    }
}
