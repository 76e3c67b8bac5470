//! Counters that another library in the process publishes, beside those of Weir: a group of names and values, which
//! `weir stat` shows. The library calls again whenever it has new values.
//!
//! A value is one store, so that readers see each value as it was published at some time. Names change seldom: readers
//! that see them change try again.

use crate::Errno;
use crate::os::locks::LeafMutex;
use crate::os::per_process::PerProcess;
use crate::stat::sheet::{PUBLISHED, Published};

pub use crate::stat::sheet::COUNTERS;

/// The groups of this process's sheet, once there is a sheet. A forked child has none until it opens a device.
static SHOWN: PerProcess<LeafMutex<Option<&'static [Published; PUBLISHED]>>> = PerProcess::new();

/// Other processes see the groups of this process here from now on.
pub(crate) fn show(groups: &'static [Published; PUBLISHED]) {
    *SHOWN.get().lock() = Some(groups);
}

/// Publishes a group of counters, in place of what was published under its name before; without counters, the group
/// ends. Names that are too long are cut: 63 bytes of the group's, 31 of a counter's. EINVAL for an empty name; ENODEV if
/// this process has not opened a device; ENOSPC if there are four other groups.
pub fn publish(group: &[u8], counters: &[(&[u8], u64)]) -> Result<(), Errno> {
    if group.is_empty() || counters.iter().any(|(name, _)| name.is_empty()) {
        return Err(Errno(libc::EINVAL));
    }
    let shown = SHOWN.existing().ok_or(Errno(libc::ENODEV))?.lock();
    enter(shown.ok_or(Errno(libc::ENODEV))?, group, counters)
}

/// Callers exclude each other.
fn enter(groups: &[Published; PUBLISHED], group: &[u8], counters: &[(&[u8], u64)]) -> Result<(), Errno> {
    let counters = &counters[..counters.len().min(COUNTERS)];
    let known = groups.iter().find(|entry| entry.name.holds(group));
    if counters.is_empty() {
        if let Some(entry) = known {
            entry.change(|| entry.name.set(""));
        }
        return Ok(());
    }
    let entry = known.or_else(|| groups.iter().find(|entry| entry.name.holds(b"")));
    let entry = entry.ok_or(Errno(libc::ENOSPC))?;
    let same_names = entry.names.iter().zip(counters).all(|(shown, (name, _))| shown.holds(name));
    if known.is_some() && entry.count.get() == counters.len() as u64 && same_names {
        entry.store_values(counters);
    } else {
        entry.change(|| {
            entry.name.set_bytes(group);
            entry.count.set(counters.len() as u64);
            for (shown, (name, _)) in entry.names.iter().zip(counters) {
                shown.set_bytes(name);
            }
            entry.store_values(counters);
        });
    }
    Ok(())
}

impl Published {
    fn store_values(&self, counters: &[(&[u8], u64)]) {
        for (shown, (_, value)) in self.values.iter().zip(counters) {
            shown.set(*value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stat::publish::private_sheet;

    fn shown(groups: &[Published; PUBLISHED]) -> Vec<(String, Vec<(String, u64)>)> {
        groups.iter().filter_map(Published::counters).collect()
    }

    fn named(name: &str, counters: &[(&str, u64)]) -> (String, Vec<(String, u64)>) {
        (name.into(), counters.iter().map(|(name, value)| ((*name).into(), *value)).collect())
    }

    #[test]
    fn a_group_is_replaced_and_ends() {
        let groups = &private_sheet().published;
        enter(groups, b"msg", &[(b"eager", 3), (b"rendezvous", 1)]).unwrap();
        enter(groups, b"other", &[(b"calls", 9)]).unwrap();
        let sequence = groups[0].sequence.get();
        enter(groups, b"msg", &[(b"eager", 5), (b"rendezvous", 1)]).unwrap();
        assert_eq!(groups[0].sequence.get(), sequence, "readers of other values need not try again");
        let other = named("other", &[("calls", 9)]);
        assert_eq!(shown(groups), [named("msg", &[("eager", 5), ("rendezvous", 1)]), other.clone()]);
        enter(groups, b"msg", &[(b"eager", 6)]).unwrap();
        assert_eq!(shown(groups), [named("msg", &[("eager", 6)]), other.clone()]);
        assert_ne!(groups[0].sequence.get(), sequence);
        enter(groups, b"msg", &[]).unwrap();
        enter(groups, b"unknown", &[]).unwrap();
        assert_eq!(shown(groups), [other]);
    }

    #[test]
    fn the_number_of_groups_and_counters_and_the_length_of_names_have_bounds() {
        let groups = &private_sheet().published;
        let long = "n".repeat(100);
        let many: Vec<(&[u8], u64)> = (0..100).map(|n| (long.as_bytes(), n)).collect();
        enter(groups, long.as_bytes(), &many).unwrap();
        let found = shown(groups).remove(0);
        assert_eq!((found.0.as_str(), found.1.len()), (&long[..63], COUNTERS));
        assert_eq!(found.1[31], (long[..31].to_owned(), 31));
        enter(groups, long.as_bytes(), &many).unwrap();
        for name in ["2", "3", "4"] {
            enter(groups, name.as_bytes(), &[(b"one", 1)]).unwrap();
        }
        assert_eq!(enter(groups, b"5", &[(b"one", 1)]), Err(Errno(libc::ENOSPC)));
        enter(groups, b"3", &[]).unwrap();
        enter(groups, b"5", &[(b"one", 1)]).unwrap();
        assert_eq!(shown(groups)[2], named("5", &[("one", 1)]));
    }

    #[test]
    fn names_are_not_empty() {
        assert_eq!(publish(b"", &[(b"one", 1)]), Err(Errno(libc::EINVAL)));
        assert_eq!(publish(b"group", &[(b"", 1)]), Err(Errno(libc::EINVAL)));
    }
}
