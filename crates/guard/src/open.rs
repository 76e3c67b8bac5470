//! A request in the list of a connection.

use crate::request::Request;

/// An open request, or one that is over and has others before it.
#[derive(Debug)]
pub(crate) struct Open<T> {
    /// `None`: it is over.
    pub request: Option<Request<T>>,
    pub at: u64,
    pub psn: u32,
    pub dummy: bool,
    /// How often it was posted again.
    pub again: u32,
    /// It shall not be the reason to start again.
    pub barred: bool,
}

impl<T> Open<T> {
    /// Whether it has no completion if it succeeds.
    pub fn is_silent(&self) -> bool {
        self.request.as_ref().is_some_and(|request| !request.signaled)
    }
}
