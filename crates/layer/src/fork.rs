//! A fork of the program. The lock of the control calls is taken before, so that a child finds it free.

use crate::contexts::CONTROL;
use crate::cq::{CQS, Cq};
use crate::guard::{pinned, watch};
use crate::locked::Raw;
use crate::{biased, file, objects};

/// Before a fork: no other thread changes the objects meanwhile.
pub extern "C" fn before_fork() {
    CONTROL.lock();
    pinned::SLABS.raw().lock();
}

/// After a fork, in the parent.
pub extern "C" fn after_fork() {
    pinned::SLABS.raw().unlock();
    CONTROL.unlock();
}

/// After a fork, in the child: it has no use of its parent's QPs and CQs, and its calls only pass through.
pub extern "C" fn in_child() {
    biased::prepare();
    file::leave();
    watch::forget();
    pinned::SLABS.raw().unlock();
    pinned::forget();
    objects::inherit_all();
    CQS.each(Cq::inherit);
    CONTROL.unlock();
}
