//! Which memory of this process a peer may use.

use crate::error::Error;
use bitflags::bitflags;

bitflags! {
    /// What the peer may do.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct Access: u32 {
        const READ = 1 << 0;
        const WRITE = 1 << 1;
        /// Its pages are kept in memory (mlock(2)).
        const PIN = 1 << 2;
    }
}

/// What a peer may use from the beginning of a connection. Ranges may be registered later too.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Allow {
    pub(crate) whole: bool,
    pub(crate) ranges: Vec<(u64, u64, Access)>,
}

impl Allow {
    /// Nothing: the default.
    pub fn nothing() -> Allow {
        Allow::default()
    }

    /// Each address of this process, to read and to write: the peer can then do what this process can (SECURITY.md).
    ///
    /// # Safety
    /// The peer can change all memory, also that which the compiler takes to be unchanged. The caller trusts the peer to
    /// change only what may be changed.
    pub unsafe fn whole_process() -> Allow {
        Allow { whole: true, ranges: vec![] }
    }

    /// These too.
    ///
    /// # Safety
    /// As [`crate::Connection::register`].
    pub unsafe fn and(mut self, address: *const u8, bytes: usize, access: Access) -> Allow {
        self.ranges.push((address.expose_provenance() as u64, bytes as u64, access));
        self
    }
}

/// The number of a range that was registered.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RangeId(pub u64);

/// What a peer may use now.
#[derive(Debug, Default)]
pub struct Allowed {
    whole: bool,
    ranges: Vec<Range>,
    next: u64,
    /// Where the latest access was.
    latest: usize,
}

#[derive(Clone, Copy, Debug)]
struct Range {
    id: u64,
    start: u64,
    end: u64,
    access: Access,
}

impl Allowed {
    /// What a connection begins with.
    pub fn new(allow: &Allow) -> Result<Allowed, Error> {
        let mut allowed = Allowed::default();
        allowed.whole = allow.whole;
        for (start, bytes, access) in &allow.ranges {
            allowed.add(*start, *bytes, *access)?;
        }
        Ok(allowed)
    }

    /// Allows a range.
    pub fn add(&mut self, start: u64, bytes: u64, access: Access) -> Result<RangeId, Error> {
        let end = start.checked_add(bytes);
        let end = end.ok_or_else(|| Error::Invalid(format!("{bytes} bytes at {start:#x} end beyond all addresses")))?;
        if !access.intersects(Access::READ | Access::WRITE) {
            return Err(Error::Invalid(
                "a range that may be neither read nor written: give READ, WRITE or both".into(),
            ));
        }
        if access.contains(Access::PIN) {
            // SAFETY: mlock(2) changes no contents, and fails if pages are missing.
            let result = unsafe { libc::mlock(std::ptr::with_exposed_provenance(start as usize), bytes as usize) };
            if result < 0 {
                let error = std::io::Error::last_os_error();
                return Err(Error::system("the range cannot be pinned; `ulimit -l` may be too low", &error));
            }
        }
        let id = self.next;
        self.next += 1;
        self.ranges.push(Range { id, start, end, access });
        Ok(RangeId(id))
    }

    /// Allows a range no longer.
    pub fn remove(&mut self, id: RangeId) -> Result<(), Error> {
        let at = self.ranges.iter().position(|range| range.id == id.0);
        let at = at.ok_or_else(|| Error::Invalid("no such range is registered".into()))?;
        let range = self.ranges.swap_remove(at);
        range.unpin();
        Ok(())
    }

    /// Whether the peer may do this with these bytes. One range must have them all.
    pub fn permits(&mut self, start: u64, bytes: u64, access: Access) -> bool {
        if self.whole {
            return true;
        }
        let Some(end) = start.checked_add(bytes) else { return false };
        let has = |range: &Range| range.start <= start && end <= range.end && range.access.contains(access);
        if self.ranges.get(self.latest).is_some_and(has) {
            return true;
        }
        let found = self.ranges.iter().position(has);
        self.latest = found.unwrap_or(self.latest);
        found.is_some()
    }
}

impl Range {
    fn unpin(&self) {
        if self.access.contains(Access::PIN) {
            let (start, bytes) = (self.start as usize, (self.end - self.start) as usize);
            // SAFETY: munlock(2) changes no contents, and fails if pages are missing.
            unsafe { libc::munlock(std::ptr::with_exposed_provenance(start), bytes) };
        }
    }
}

impl Drop for Allowed {
    fn drop(&mut self) {
        self.ranges.iter().for_each(Range::unpin);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_permits_what_it_says_and_no_more() {
        let mut allowed = Allowed::default();
        let both = Access::READ | Access::WRITE;
        let first = allowed.add(1000, 100, both).unwrap();
        allowed.add(1100, 100, Access::READ).unwrap();
        for (start, bytes, access, expected) in [
            (1000, 100, both, true),
            (1099, 1, Access::WRITE, true),
            (999, 2, Access::READ, false),
            (1099, 2, Access::READ, false),
            (1100, 100, Access::READ, true),
            (1100, 1, Access::WRITE, false),
            (1200, 1, Access::READ, false),
            (u64::MAX, 2, Access::READ, false),
        ] {
            assert_eq!(allowed.permits(start, bytes, access), expected, "{start} {bytes} {access:?}");
        }
        allowed.remove(first).unwrap();
        assert!(!allowed.permits(1000, 1, Access::READ) && allowed.permits(1100, 1, Access::READ));
        assert!(allowed.remove(first).is_err());
        assert!(allowed.add(u64::MAX, 2, both).is_err() && allowed.add(0, 1, Access::PIN).is_err());
    }

    #[test]
    fn the_whole_process_is_every_address() {
        // SAFETY: no peer exists.
        let mut allowed = Allowed::new(&unsafe { Allow::whole_process() }).unwrap();
        assert!(allowed.permits(0, u64::MAX, Access::WRITE));
        assert!(!Allowed::new(&Allow::nothing()).unwrap().permits(4096, 1, Access::READ));
    }
}
