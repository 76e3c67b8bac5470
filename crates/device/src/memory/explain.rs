//! Finds out why an access was refused. It looks again, after the refusal: nothing is noted on the way to memory.

use crate::memory::keys::{Entry, Regions};
use crate::memory::refusal::Why;
use crate::memory::region::{Kind, Region};
use crate::memory::window::User;
use weir_transport::Access;

impl Regions {
    /// Why `len` bytes at `va` were refused to a QP. `pd`: the PD that counts for an rkey; `None`: `key` is an lkey.
    #[cold]
    pub fn explain(&self, user: User, key: u32, pd: Option<u32>, (va, len): (u64, u64), access: Access) -> Why {
        let region = match self.read().entries.get(&(key >> 8)) {
            Some(Entry::Region { region, .. }) => *region,
            Some(Entry::Window(window)) => match window.opened() {
                Some(region) => region,
                None => return Why::Unbound,
            },
            None => return Why::Unknown,
        };
        if region.key != key {
            return match region.kind {
                Kind::Window { .. } => Why::OtherTag { now: region.key },
                _ => Why::Unknown,
            };
        }
        match (region.kind, pd) {
            (Kind::Window { .. }, None) => return Why::WindowAsLkey,
            (Kind::Null, Some(_)) => return Why::Null,
            (Kind::Window { qp: Some(qp) }, Some(_)) if qp != user.qp => return Why::OtherQp { qp },
            _ => {}
        }
        explain_range(&region, pd.unwrap_or(user.pd), va, len, access)
    }
}

fn explain_range(region: &Region, pd: u32, va: u64, len: u64, access: Access) -> Why {
    let missing = access.difference(region.access);
    if region.pd != pd {
        Why::OtherDomain
    } else if !region.holds(va, len) {
        Why::Outside { from: region.iova, len: region.len }
    } else if !missing.is_empty() {
        Why::Rights { missing }
    } else {
        Why::Changed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::keys::Cached;

    #[test]
    fn each_refusal_has_its_reason() {
        let regions = Regions::default();
        let region = |kind| Region {
            key: 0,
            pd: 1,
            addr: 0x1000,
            iova: 0x1000,
            len: 100,
            access: Access::REMOTE_READ,
            kind,
            paged: None,
        };
        let key = regions.insert(region(Kind::Memory)).unwrap();
        let user = User { pd: 1, qp: 9 };
        let why = |key, pd, va, len, access| regions.explain(user, key, pd, (va, len), access);
        let (read, write) = (Access::REMOTE_READ, Access::REMOTE_WRITE);
        assert_eq!(why(key ^ 0x100, Some(1), 0x1000, 8, read), Why::Unknown);
        assert_eq!(why(key ^ 1, Some(1), 0x1000, 8, read), Why::Unknown);
        assert_eq!(why(key, Some(2), 0x1000, 8, read), Why::OtherDomain);
        assert_eq!(why(key, Some(1), 0x1000, 101, read), Why::Outside { from: 0x1000, len: 100 });
        assert_eq!(why(key, Some(1), 0x1000, 8, write), Why::Rights { missing: write });
        assert_eq!(why(key, None, 0x1000, 8, Access::LOCAL_WRITE), Why::Rights { missing: Access::LOCAL_WRITE });
        assert_eq!(why(key, Some(1), 0x1000, 8, read), Why::Changed);
        let null = regions.insert(region(Kind::Null)).unwrap();
        assert_eq!(why(null, Some(1), 0x1000, 8, read), Why::Null);
        let window = regions.insert(region(Kind::Window { qp: Some(4) })).unwrap();
        assert_eq!(why(window, Some(1), 0x1000, 8, read), Why::OtherQp { qp: 4 });
        assert_eq!(why(window, None, 0x1000, 8, read), Why::WindowAsLkey);
        assert_eq!(why(window ^ 3, Some(1), 0x1000, 8, read), Why::OtherTag { now: window });
        // What is refused has a reason, and what is not refused has none.
        assert!(regions.find(key, &mut Cached::default()).is_ok());
        regions.remove(key).unwrap();
        assert_eq!(why(key, Some(1), 0x1000, 8, read), Why::Unknown);
    }
}
