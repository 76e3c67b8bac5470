//! What a connection answers to its caller.
//!
//! [`posted_dummy`]: crate::Connection::posted_dummy
//! [`cannot_start_again`]: crate::Connection::cannot_start_again

use crate::request::{Kind, Remote};

/// What the caller should do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Post a READ or WRITE of no bytes, and enter it with [`posted_dummy`]. To no bytes no check of address and key
    /// applies (IBTA C9-88), and the program's own requests show that the peer permits the kind. `signaled`: with a
    /// completion, which tells that the program's requests before it are over; otherwise it needs none.
    Dummy { kind: Kind, remote: Remote, signaled: bool },
    /// Start the QP again, as the description of the crate says; or call [`cannot_start_again`].
    StartAgain,
}

/// The request of a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completed {
    /// It is not tracked: the program gets the completion.
    Unknown,
    /// The program gets the completion.
    Theirs,
    /// It is a dummy: the program must not see the completion. If the dummy has failed and was not flushed, its status is that
    /// of the program's next request, which is flushed: without the dummy that request would have failed.
    Dummy,
}

/// The request of a completion after the caller has taken the QP to ERROR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flushed {
    /// It will be posted again: the program must not see the completion.
    Kept,
    /// It is not tracked: the program gets the completion.
    Unknown,
}
