//! Memory windows: keys to a part of a region, bound and invalidated by work requests (IBTA 10.6.7).
//!
//! A window of type 1 belongs to its PD. A window of type 2 is bound to the QP that bound it, and its PD is checked
//! too (the standard's type 2B). The table holds a [`Region`] for a bound window, so that an access by a window's key
//! costs as much as an access by a region's key.
//!
//! A window's state, and the rules for binding it. `bind.rs` changes the table.

use crate::memory::region::{Kind, Region};
use weir_transport::{Access, Bind};

/// The two types of `ibv_mw_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowType {
    /// Bound by a verb, any number of times; closed by binding zero bytes.
    One,
    /// Bound by a work request while it is free; closed by invalidating it.
    Two,
}

/// A window in the table.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// Its current key.
    pub(super) key: u32,
    pub(super) pd: u32,
    pub(super) window_type: WindowType,
    pub(super) open: Option<Open>,
}

/// The binding of a window.
#[derive(Clone, Copy, Debug)]
pub(super) struct Open {
    /// The access that the window's key grants.
    pub(super) view: Region,
    /// Key of the region that the window is bound to.
    pub(super) mr: u32,
}

/// The user of a key: a QP and its PD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct User {
    pub pd: u32,
    pub qp: u32,
}

/// Remote accesses that a bind may permit.
const REMOTE: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE).union(Access::REMOTE_ATOMIC);
/// The part of a key that its owner chooses.
pub(super) const TAG: u32 = 0xff;

impl Window {
    /// The access that its key grants, if it is bound.
    pub fn opened(&self) -> Option<Region> {
        self.open.map(|open| open.view)
    }

    /// The key of the region that it is bound to.
    pub(super) fn bound_to(&self) -> Option<u32> {
        self.open.map(|open| open.mr)
    }

    /// Returns whether a QP may bind it in its present state.
    pub(super) fn may_bind(&self, user: User, bind: &Bind) -> bool {
        // C10-72: the window, the region and the QP are in the same PD.
        let same_pd = self.pd == user.pd;
        let in_state = match self.window_type {
            // The bind names the complete current key.
            WindowType::One => self.key == bind.window_rkey,
            // o10-37.2.30, o10-37.2.40: it must be free, and binding zero bytes does not free it. The owner chooses
            // its tag.
            WindowType::Two => self.open.is_none() && bind.len > 0,
        };
        same_pd && in_state
    }

    /// The access that it grants when it is bound to a region; `None` if the bind is not permitted.
    pub(super) fn view(&self, user: User, bind: &Bind, mr: &Region) -> Option<Region> {
        let writes = bind.access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
        let allowed = mr.kind == Kind::Memory
            && mr.pd == self.pd
            // C10-73, C10-74, C10-75.
            && mr.access.contains(Access::MW_BIND)
            && (!writes || mr.access.contains(Access::LOCAL_WRITE))
            && mr.holds(bind.addr, bind.len)
            // Adapters bind windows to regions with virtual addresses only.
            && !mr.access.contains(Access::ZERO_BASED);
        let qp = (self.window_type == WindowType::Two).then_some(user.qp);
        allowed.then(|| Region {
            key: (self.key & !TAG) | (bind.new_rkey & TAG),
            pd: self.pd,
            addr: mr.addr.wrapping_add(bind.addr - mr.iova),
            iova: if bind.access.contains(Access::ZERO_BASED) { 0 } else { bind.addr },
            len: bind.len,
            access: bind.access & REMOTE,
            kind: Kind::Window { qp },
            paged: mr.paged,
        })
    }
}
