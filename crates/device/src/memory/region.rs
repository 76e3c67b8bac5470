//! What a key grants: an address, bounds and permissions.

use crate::paging::Paged;
use weir_transport::{Access, Denied};

/// The memory and the permissions that a key grants.
#[derive(Clone, Copy, Debug)]
pub struct Region {
    /// The complete key: lkey and rkey are equal.
    pub key: u32,
    /// Protection domain.
    pub pd: u32,
    /// Address of the first byte in this process.
    pub addr: u64,
    /// Address of the first byte as users of the key give it.
    pub iova: u64,
    /// Length in bytes.
    pub len: u64,
    /// Permitted accesses.
    pub access: Access,
    /// Type of the object that the key belongs to.
    pub kind: Kind,
    /// The page table of an ODP region; `None` for pinned memory.
    pub paged: Option<Paged>,
}

/// Type of the object that the key of a [`Region`] belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A memory region.
    Memory,
    /// A null region: reads return zeros, writes are discarded.
    Null,
    /// A bound window. `qp` is the only QP that may use it, or `None` for all QPs of its PD.
    Window { qp: Option<u32> },
}

/// Target of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessTarget {
    /// This address in the process.
    Memory(u64),
    /// No memory: a null region.
    Null,
}

impl Region {
    /// The target of `len` bytes at `va` for a work request of this process, if PD, bounds and permissions allow the
    /// access.
    pub fn local(&self, pd: u32, va: u64, len: u64, access: Access) -> Result<AccessTarget, Denied> {
        match self.kind {
            Kind::Memory => self.address_of(pd, va, len, access).map(AccessTarget::Memory),
            Kind::Null => self.address_of(pd, va, len, access).map(|_| AccessTarget::Null),
            Kind::Window { .. } => Err(Denied::Protection),
        }
    }

    /// The address of `len` bytes at `va` for the peer of QP `qp`, if PD, bounds and permissions allow the access.
    pub fn remote(&self, pd: u32, qp: u32, va: u64, len: u64, access: Access) -> Result<u64, Denied> {
        match self.kind {
            Kind::Null => Err(Denied::Protection),
            // IBTA 10.6.7.2.2: only the QP that a type 2B window is bound to may use it.
            Kind::Window { qp: Some(own) } if own != qp => Err(Denied::Protection),
            Kind::Memory | Kind::Window { .. } => self.address_of(pd, va, len, access),
        }
    }

    fn address_of(&self, pd: u32, va: u64, len: u64, access: Access) -> Result<u64, Denied> {
        if self.pd == pd && self.holds(va, len) && self.access.contains(access) {
            Ok(self.addr.wrapping_add(va - self.iova))
        } else {
            Err(Denied::Protection)
        }
    }

    /// Returns whether the `len` bytes at `va` are within the region.
    pub fn holds(&self, va: u64, len: u64) -> bool {
        va >= self.iova && len <= self.len && va - self.iova <= self.len - len
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A readable region of PD 1 at 0x1000.
    pub fn region(iova: u64, len: u64) -> Region {
        Region { key: 0, pd: 1, addr: 0x1000, iova, len, access: Access::REMOTE_READ, kind: Kind::Memory, paged: None }
    }

    #[test]
    fn bounds_hold_at_the_edges_of_the_address_space() {
        let r = region(u64::MAX - 99, 100);
        let read = |pd, va, len| r.remote(pd, 9, va, len, Access::REMOTE_READ);
        assert_eq!(read(1, u64::MAX - 99, 100), Ok(0x1000));
        assert_eq!(read(1, u64::MAX, 1), Ok(0x1000 + 99));
        for (va, len) in [(u64::MAX, 2), (u64::MAX - 100, 1), (0, 1), (u64::MAX - 99, 101), (5, u64::MAX)] {
            assert_eq!(read(1, va, len), Err(Denied::Protection), "{va:#x} {len}");
        }
        assert_eq!(read(2, u64::MAX, 1), Err(Denied::Protection));
        assert_eq!(r.remote(1, 9, u64::MAX, 1, Access::REMOTE_WRITE), Err(Denied::Protection));
    }

    #[test]
    fn a_null_region_denies_remote_access() {
        let null = Region { kind: Kind::Null, ..region(0, u64::MAX) };
        assert_eq!(null.local(1, 12345, 1 << 40, Access::REMOTE_READ), Ok(AccessTarget::Null));
        assert_eq!(null.local(2, 0, 1, Access::empty()), Err(Denied::Protection));
        assert_eq!(null.remote(1, 9, 0, 1, Access::REMOTE_READ), Err(Denied::Protection));
    }
}
