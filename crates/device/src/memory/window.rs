//! Memory windows: keys to a part of a region, bound and invalidated by work requests (IBTA 10.6.7).
//!
//! A window of type 1 belongs to its PD. A window of type 2 is bound to the QP that bound it, and its PD is checked
//! too (the standard's type 2B). The table holds a [`Region`] for a bound window, so that an access by a window's key
//! costs as much as an access by a region's key.
//!
//! A window's state, and the rules for binding it. `bind.rs` changes the table.

use crate::memory::region::{Kind, Region};
use crate::memory::window_refusal::WindowWhy;
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

    /// Checks that a QP may bind it in its present state.
    pub(super) fn check_bind(&self, user: User, bind: &Bind) -> Result<(), WindowWhy> {
        // C10-72: the window, the region and the QP are in the same PD.
        if self.pd != user.pd {
            return Err(WindowWhy::OtherDomain);
        }
        match self.window_type {
            // The bind names the complete current key.
            WindowType::One if self.key != bind.window_rkey => Err(WindowWhy::OtherTag { now: self.key }),
            // o10-37.2.30, o10-37.2.40: it must be free, and binding zero bytes does not free it. The owner chooses
            // its tag.
            WindowType::Two if bind.len == 0 => Err(WindowWhy::NoBytes),
            WindowType::Two if self.open.is_some() => Err(WindowWhy::Bound),
            _ => Ok(()),
        }
    }

    /// Checks that a work request of a QP, or of its peer, may close it by a key.
    pub(super) fn check_invalidate(&self, user: User, key: u32) -> Result<(), WindowWhy> {
        if self.pd != user.pd {
            return Err(WindowWhy::OtherDomain);
        }
        if self.window_type == WindowType::One {
            return Err(WindowWhy::TypeOne);
        }
        let Some(view) = self.opened() else { return Err(WindowWhy::Unbound) };
        match view.kind {
            _ if view.key != key => Err(WindowWhy::OtherTag { now: view.key }),
            Kind::Window { qp: Some(qp) } if qp != user.qp => Err(WindowWhy::OtherQp { qp }),
            _ => Ok(()),
        }
    }

    /// The access that it grants when it is bound to a region.
    pub(super) fn view(&self, user: User, bind: &Bind, mr: &Region) -> Result<Region, WindowWhy> {
        let writes = bind.access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
        // C10-73, C10-74, C10-75.
        let needed = if writes { Access::MW_BIND | Access::LOCAL_WRITE } else { Access::MW_BIND };
        let missing = needed.difference(mr.access);
        if mr.kind != Kind::Memory {
            return Err(WindowWhy::NullRegion);
        } else if mr.pd != self.pd {
            return Err(WindowWhy::RegionInOtherDomain);
        } else if !missing.is_empty() {
            return Err(WindowWhy::RegionLacks { missing });
        } else if !mr.holds(bind.addr, bind.len) {
            return Err(WindowWhy::OutsideRegion { from: mr.iova, len: mr.len });
        } else if mr.access.contains(Access::ZERO_BASED) {
            // Adapters bind windows to regions with virtual addresses only.
            return Err(WindowWhy::RegionZeroBased);
        }
        let qp = (self.window_type == WindowType::Two).then_some(user.qp);
        Ok(Region {
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
