//! The QPs of the program that the layer knows, by address and by number.
//!
//! An object lives as long as the process, because another thread may be about to use it; it is used again for later
//! objects of the program. All changes happen under one lock, which a fork takes, so that a child finds it free.

use crate::contexts::Context;
use crate::map::Map;
use crate::qp::Qp;
use crate::room::Room;
use crate::{file, guard};
use std::sync::{Mutex, PoisonError};
use weir_abi::ibv_qp;

pub static QPS: Map<Qp> = Map::new();
/// QPs by context and number.
pub static NUMBERS: Map<Qp> = Map::new();
/// The QPs of a series of completions, of which many have the same QP.
#[derive(Default)]
pub struct Series(Option<(u32, Option<&'static Qp>)>);

impl Series {
    /// The QP with the number of the next completion.
    #[inline]
    pub fn qp(&mut self, context: &Context, number: u32) -> Option<&'static Qp> {
        match self.0 {
            Some((last, qp)) if last == number => qp,
            _ => self.0.insert((number, NUMBERS.get(context.key(number)))).1,
        }
    }
}

/// Those that no longer belong to a QP of the program.
static SPARE_QPS: Mutex<Vec<&'static Qp>> = Mutex::new(Vec::new());

/// Remembers a QP, if the file has room for it, or guards are on. The caller holds CONTROL.
pub fn enter_qp(qp: *mut ibv_qp, context: &'static Context, room: &Room) -> Option<&'static Qp> {
    let entry = match file::take_qp() {
        Some(entry) => entry,
        None if guard::list().any() => std::ptr::null_mut(),
        None => return None,
    };
    let capacity = room.requests.clamp(16, 1 << 16);
    let mut spare = SPARE_QPS.lock().unwrap_or_else(PoisonError::into_inner);
    let fits = |own: &&'static Qp| (capacity..=4 * capacity).contains(&(own.queue.capacity() as u32));
    let own = match spare.iter().position(fits) {
        Some(at) => spare.swap_remove(at),
        None => Box::leak(Box::new(Qp::new(capacity))),
    };
    // SAFETY: an existing QP.
    unsafe { own.open(context, entry, qp, room) };
    NUMBERS.insert(own.key(), own);
    QPS.insert(qp as u64, own);
    Some(own)
}

/// Forgets a QP. The caller holds CONTROL.
pub fn forget_qp(qp: *mut ibv_qp) {
    let Some(own) = QPS.remove(qp as u64) else { return };
    if own.is_inherited() {
        return;
    }
    // The adapter may have given the number to another QP meanwhile.
    if NUMBERS.get(own.key()).is_some_and(|now| std::ptr::eq(now, own)) {
        NUMBERS.remove(own.key());
    }
    own.close();
    // After `wr_start` without an end, or in a call of another thread, it stays locked for ever.
    if own.posting.is_free() {
        SPARE_QPS.lock().unwrap_or_else(PoisonError::into_inner).push(own);
    }
}

/// In a forked child: all QPs are the parent's.
pub fn inherit_all() {
    QPS.each(Qp::inherit);
    NUMBERS.clear();
    // Another thread of the parent may have held a lock of theirs.
    SPARE_QPS.lock().unwrap_or_else(PoisonError::into_inner).clear();
}
