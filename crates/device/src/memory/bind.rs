//! Windows of the adapter: created, bound, invalidated, closed.

use crate::Errno;
use crate::memory::keys::{Entry, Regions, Table};
use crate::memory::region::{Kind, Region};
use crate::memory::window::{Open, TAG, User, Window, WindowType};
use crate::memory::window_refusal::WindowWhy;
use weir_transport::Bind;

impl Regions {
    /// Inserts an unbound window and returns its key. ENOMEM beyond `max_mw`.
    pub fn insert_window(&self, pd: u32, window_type: WindowType) -> Result<u32, Errno> {
        self.enter(|key| Entry::Window(Window { key, pd, window_type, open: None }))
    }

    /// Removes a window, bound or unbound. `key` is any key that it has had.
    pub fn remove_window(&self, key: u32) {
        self.leave(key);
    }

    /// Binds a window for a QP. Binding zero bytes closes a window of type 1.
    pub fn bind(&self, user: User, bind: &Bind) -> Result<(), WindowWhy> {
        let mut table = self.write();
        let window = *table.window(bind.window_rkey)?;
        window.check_bind(user, bind)?;
        let open = if bind.len == 0 {
            None
        } else {
            let mr = table.region(bind.mr_lkey)?;
            let view = window.view(user, bind, mr)?;
            Some(Open { view, mr: mr.key })
        };
        table.unbound(&window);
        if let Some(open) = &open
            && let Some(Entry::Region { windows, .. }) = table.entries.get_mut(&(open.mr >> 8))
        {
            *windows += 1;
        }
        let key = (window.key & !TAG) | (bind.new_rkey & TAG);
        table.entries.insert(key >> 8, Entry::Window(Window { key, open, ..window }));
        Ok(())
    }

    /// Closes a window of type 2 by its key, for the QP that it is bound to: by a work request of the QP or of its
    /// peer (IBTA 10.6.7.2.5). Keys of regions cannot be invalidated this way.
    pub fn invalidate(&self, user: User, key: u32) -> Result<(), WindowWhy> {
        let mut table = self.write();
        let window = *table.window(key)?;
        window.check_invalidate(user, key)?;
        table.unbound(&window);
        table.entries.insert(key >> 8, Entry::Window(Window { open: None, ..window }));
        Ok(())
    }

    /// Closes the windows of a destroyed QP, because another QP may get its number.
    pub fn close_windows_of(&self, qp: u32) {
        let of_it = |entry: &Entry| match entry {
            Entry::Window(window) if window.opened().is_some_and(|view| view.kind == Kind::Window { qp: Some(qp) }) => {
                Some(*window)
            }
            _ => None,
        };
        // A few at a time, because nothing may be allocated under the lock.
        const AT_ONCE: usize = 64;
        let mut found = [None; AT_ONCE];
        loop {
            let mut count = 0;
            let table = self.read();
            let windows = table.entries.values().filter_map(of_it).take(if table.windows == 0 { 0 } else { AT_ONCE });
            for (entry, window) in found.iter_mut().zip(windows) {
                *entry = Some(window);
                count += 1;
            }
            drop(table);
            if count == 0 {
                return;
            }
            let mut table = self.write();
            for window in found[..count].iter().flatten() {
                table.unbound(window);
                table.entries.insert(window.key >> 8, Entry::Window(Window { open: None, ..*window }));
            }
        }
    }
}

impl Table {
    fn window(&self, key: u32) -> Result<&Window, WindowWhy> {
        match self.entries.get(&(key >> 8)) {
            Some(Entry::Window(window)) => Ok(window),
            _ => Err(WindowWhy::Unknown),
        }
    }

    fn region(&self, key: u32) -> Result<&Region, WindowWhy> {
        match self.entries.get(&(key >> 8)) {
            Some(Entry::Region { region, .. }) if region.key == key => Ok(region),
            _ => Err(WindowWhy::NoRegion),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::keys::Cached;
    use weir_transport::{Access, Denied};

    const BASE: u64 = 0x10_0000;
    const OURS: User = User { pd: 1, qp: 7 };
    const OTHER_QP: User = User { pd: 1, qp: 8 };
    const OTHER_PD: User = User { pd: 2, qp: 7 };

    struct Bed {
        regions: Regions,
        mr: u32,
    }

    fn bed(access: Access) -> Bed {
        let regions = Regions::default();
        let region =
            Region { key: 0, pd: 1, addr: 0x7000, iova: BASE, len: 4096, access, kind: Kind::Memory, paged: None };
        let mr = regions.insert(region).unwrap();
        Bed { regions, mr }
    }

    impl Bed {
        fn bind(&self, key: u32, tag: u32) -> Bind {
            let new_rkey = (key & !TAG) | tag;
            let access = Access::REMOTE_WRITE;
            Bind { window_rkey: key, new_rkey, mr_lkey: self.mr, addr: BASE + 100, len: 200, access }
        }

        fn write(&self, by: User, key: u32, va: u64, len: u64) -> Result<u64, Denied> {
            let region = self.regions.find(key, &mut Cached::default())?;
            region.remote(by.pd, by.qp, va, len, Access::REMOTE_WRITE)
        }
    }

    const FULL: Access = Access::LOCAL_WRITE.union(Access::MW_BIND);

    #[test]
    fn a_window_grants_access_to_its_part_only() {
        let bed = bed(FULL);
        let key = bed.regions.insert_window(1, WindowType::One).unwrap();
        assert!(bed.write(OURS, key, BASE + 100, 1).is_err(), "not bound yet");
        let bind = bed.bind(key, (key + 1) & TAG);
        bed.regions.bind(OURS, &bind).unwrap();
        let new = bind.new_rkey;
        assert_eq!(bed.write(OURS, new, BASE + 100, 200), Ok(0x7000 + 100));
        assert_eq!(bed.write(OTHER_QP, new, BASE + 299, 1), Ok(0x7000 + 299), "type 1 is for all QPs of the PD");
        for (by, key, va, len) in [
            (OURS, key, BASE + 100, 1),
            (OURS, new, BASE + 99, 1),
            (OURS, new, BASE + 299, 2),
            (OTHER_PD, new, BASE + 100, 1),
            (OURS, bed.mr, BASE + 100, 1),
        ] {
            assert_eq!(bed.write(by, key, va, len), Err(Denied::Protection), "{by:?} {key:#x} {va:#x} {len}");
        }
        let region = bed.regions.find(new, &mut Cached::default()).unwrap();
        assert!(region.remote(1, 7, BASE + 100, 1, Access::REMOTE_READ).is_err(), "not granted");
        assert!(region.local(1, BASE + 100, 1, Access::empty()).is_err(), "not an lkey");
    }

    #[test]
    fn a_type_1_window_is_moved_and_closed_by_binding() {
        let bed = bed(FULL);
        let key = bed.regions.insert_window(1, WindowType::One).unwrap();
        let first = bed.bind(key, 1);
        bed.regions.bind(OURS, &first).unwrap();
        let now = first.new_rkey;
        assert_eq!(bed.regions.bind(OURS, &first), Err(WindowWhy::OtherTag { now }), "the key has changed");
        let second = Bind { addr: BASE, len: 50, ..bed.bind(first.new_rkey, 2) };
        bed.regions.bind(OTHER_QP, &second).unwrap();
        assert!(bed.write(OURS, first.new_rkey, BASE + 100, 1).is_err());
        assert_eq!(bed.write(OURS, second.new_rkey, BASE, 50), Ok(0x7000));
        assert_eq!(bed.regions.invalidate(OURS, second.new_rkey), Err(WindowWhy::TypeOne));
        assert_eq!(bed.regions.remove(bed.mr), Err(Errno(libc::EBUSY)), "a single window, bound twice");
        let region = bed.regions.find(bed.mr, &mut Cached::default()).unwrap();
        assert_eq!(bed.regions.replace(bed.mr, region), Err(Errno(libc::EBUSY)));
        assert_eq!(bed.regions.remove(second.new_rkey), Err(Errno(libc::EINVAL)), "a window's key is not a region's");
        let close = Bind { mr_lkey: 0, addr: 0, len: 0, ..bed.bind(second.new_rkey, 3) };
        bed.regions.bind(OURS, &close).unwrap();
        assert!(bed.write(OURS, close.new_rkey, BASE, 1).is_err());
        assert_eq!(bed.regions.remove(bed.mr), Ok(()));
    }

    #[test]
    fn a_type_2_window_belongs_to_its_qp_until_it_is_invalidated() {
        let bed = bed(FULL);
        let key = bed.regions.insert_window(1, WindowType::Two).unwrap();
        let bind = bed.bind(key, 0x55);
        assert_eq!(bed.regions.bind(OURS, &Bind { len: 0, ..bind }), Err(WindowWhy::NoBytes));
        assert_eq!(bed.regions.invalidate(OURS, key), Err(WindowWhy::Unbound));
        bed.regions.bind(OURS, &bind).unwrap();
        assert_eq!(bed.write(OURS, bind.new_rkey, BASE + 100, 200), Ok(0x7000 + 100));
        assert_eq!(bed.write(OTHER_QP, bind.new_rkey, BASE + 100, 1), Err(Denied::Protection));
        assert_eq!(bed.regions.bind(OURS, &bed.bind(bind.new_rkey, 9)), Err(WindowWhy::Bound), "not free");
        for (by, why) in [(OTHER_QP, WindowWhy::OtherQp { qp: OURS.qp }), (OTHER_PD, WindowWhy::OtherDomain)] {
            assert_eq!(bed.regions.invalidate(by, bind.new_rkey), Err(why), "{by:?}");
        }
        let now = bind.new_rkey;
        assert_eq!(bed.regions.invalidate(OURS, now ^ 1), Err(WindowWhy::OtherTag { now }), "another key");
        assert_eq!(bed.regions.invalidate(OURS, bed.mr), Err(WindowWhy::Unknown), "a region");
        bed.regions.invalidate(OURS, bind.new_rkey).unwrap();
        assert_eq!(bed.regions.invalidate(OURS, bind.new_rkey), Err(WindowWhy::Unbound), "once");
        assert!(bed.write(OURS, bind.new_rkey, BASE + 100, 1).is_err());
        bed.regions.bind(OTHER_QP, &bed.bind(key, 9)).unwrap();
    }

    #[test]
    fn a_bind_needs_the_permissions_and_bounds_of_the_region() {
        let try_bind = |access, change: fn(Bind) -> Bind| {
            let bed = bed(access);
            let key = bed.regions.insert_window(1, WindowType::Two).unwrap();
            bed.regions.bind(OURS, &change(bed.bind(key, 1)))
        };
        let same: fn(Bind) -> Bind = |bind| bind;
        assert!(try_bind(FULL, same).is_ok());
        let lacks = |missing| Err(WindowWhy::RegionLacks { missing });
        assert_eq!(try_bind(Access::LOCAL_WRITE, same), lacks(Access::MW_BIND));
        assert_eq!(try_bind(Access::MW_BIND, same), lacks(Access::LOCAL_WRITE), "a window for writing");
        let atomic: fn(Bind) -> Bind = |bind| Bind { access: Access::REMOTE_ATOMIC, ..bind };
        assert_eq!(try_bind(Access::MW_BIND, atomic), lacks(Access::LOCAL_WRITE));
        assert!(try_bind(Access::MW_BIND, |bind| Bind { access: Access::REMOTE_READ, ..bind }).is_ok());
        let outside = Err(WindowWhy::OutsideRegion { from: BASE, len: 4096 });
        assert_eq!(try_bind(FULL, |bind| Bind { addr: BASE - 1, ..bind }), outside);
        assert_eq!(try_bind(FULL, |bind| Bind { addr: BASE, len: 4097, ..bind }), outside);
        assert!(try_bind(FULL, |bind| Bind { addr: BASE, len: 4096, ..bind }).is_ok());
        assert_eq!(try_bind(FULL, |bind| Bind { addr: u64::MAX, len: 2, ..bind }), outside);
        let none = Err(WindowWhy::NoRegion);
        assert_eq!(try_bind(FULL, |bind| Bind { mr_lkey: bind.mr_lkey ^ 1, ..bind }), none);
        assert_eq!(try_bind(FULL, |bind| Bind { mr_lkey: bind.window_rkey, ..bind }), none, "a window bound to itself");
        assert_eq!(try_bind(FULL | Access::ZERO_BASED, same), Err(WindowWhy::RegionZeroBased));
    }

    #[test]
    fn a_zero_based_window_is_addressed_from_zero() {
        let bed = bed(FULL);
        let key = bed.regions.insert_window(1, WindowType::Two).unwrap();
        let bind = Bind { access: Access::REMOTE_WRITE | Access::ZERO_BASED, ..bed.bind(key, 1) };
        bed.regions.bind(OURS, &bind).unwrap();
        assert_eq!(bed.write(OURS, bind.new_rkey, 0, 200), Ok(0x7000 + 100));
        assert_eq!(bed.write(OURS, bind.new_rkey, 1, 200), Err(Denied::Protection));
    }

    #[test]
    fn closed_and_removed_windows_no_longer_hold_their_region() {
        let bed = bed(FULL);
        let [a, b] = [(); 2].map(|()| bed.regions.insert_window(1, WindowType::Two).unwrap());
        bed.regions.bind(OURS, &bed.bind(a, 1)).unwrap();
        bed.regions.bind(OTHER_QP, &bed.bind(b, 1)).unwrap();
        bed.regions.close_windows_of(7);
        assert!(bed.write(OURS, (a & !TAG) | 1, BASE + 100, 1).is_err());
        assert!(bed.write(OTHER_QP, (b & !TAG) | 1, BASE + 100, 1).is_ok(), "the window of the other QP stays open");
        assert_eq!(bed.regions.remove(bed.mr), Err(Errno(libc::EBUSY)));
        bed.regions.remove_window(b);
        assert_eq!(bed.regions.remove(bed.mr), Ok(()));
        bed.regions.bind(OURS, &bed.bind(a, 1)).unwrap_err();
    }
}
