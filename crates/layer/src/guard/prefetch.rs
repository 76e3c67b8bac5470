//! The guard `prefetch`: ODP memory of a request becomes present before the request is posted.

use crate::contexts::{self, Context};
use crate::qp::Qp;
use std::cell::RefCell;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use weir_abi::*;
use weir_guard::Pages;

thread_local! {
    /// Pages that this thread takes to be present since that many late requests; without a lock.
    static PAGES: RefCell<(Pages, u32)> = RefCell::default();
}

/// Late requests of this process.
static LATE: AtomicU32 = AtomicU32::new(0);

/// Asks for the pages of a request in ODP memory, and waits for them.
pub fn prefetch(own: &Qp, opcode: i32, sges: &[ibv_sge]) {
    for sge in sges {
        if contexts::odp(own.context(), sge.lkey).is_some() && is_new(sge) {
            advise(own, own.context(), opcode, sge);
        }
    }
}

/// A request was late: what was taken to be present may be absent.
pub fn forget_pages() {
    LATE.fetch_add(1, Relaxed);
}

fn is_new(sge: &ibv_sge) -> bool {
    // While a thread ends, its variables are gone.
    let enter = |pages: &RefCell<(Pages, u32)>| {
        let (pages, since) = &mut *pages.borrow_mut();
        let late = LATE.load(Relaxed);
        if std::mem::replace(since, late) != late {
            pages.forget();
        }
        pages.enter(sge.lkey, sge.addr, sge.length.into())
    };
    PAGES.try_with(enter).unwrap_or(false)
}

#[cold]
fn advise(own: &Qp, context: &Context, opcode: i32, sge: &ibv_sge) {
    let Some(real) = context.real.advise_mr else { return };
    let writes = matches!(opcode, IBV_WR_RDMA_READ | IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD);
    let advice = if writes { IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE } else { IBV_ADVISE_MR_ADVICE_PREFETCH };
    let mut sge = *sge;
    // SAFETY: the PD of the program's QP, which exists as long as the QP; a list of one SGE. A failure changes nothing:
    // the request meets the page fault that it would have met.
    unsafe { real(own.pd(), advice, IBV_ADVISE_MR_FLAG_FLUSH, &mut sge, 1) };
}
