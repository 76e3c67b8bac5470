//! Counters, for libraries that use Weir in the same process: they read Weir's, and publish their own beside them. No
//! header declares these functions: a library finds them by dlsym, and is without them over another libibverbs.

use crate::ffi::{EINVAL, guard, status};
use std::ffi::{CStr, c_char, c_int};
use weir_device::paging::counters;
use weir_device::stat::published::{self, COUNTERS};

/// The size of a name, with the zero at its end.
const NAME: usize = 32;

/// Publishes a group of counters of a library in this process, in place of what it published under this name before:
/// `weir stat` shows them. The values are copied, so the library calls again when it has new ones. A `count` of 0 ends
/// the group. Of more than 32 counters, the first 32 are published; names are cut, the group's to 63 bytes, those of
/// counters to 31. Any thread may call it, not a signal handler. It waits for no other thread, except for another one in
/// this call, and does not allocate.
///
/// Returns 0, or an errno value: EINVAL for NULL and for empty names; ENODEV if this process has not opened a device, as
/// in a forked child; ENOSPC if there are four other groups.
///
/// # Safety
/// Names are NULL or C strings; `names` and `values` are NULL or have `count` elements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_publish(
    group: *const c_char,
    count: usize,
    names: *const *const c_char,
    values: *const u64,
) -> c_int {
    status(|| {
        if group.is_null() || (count > 0 && (names.is_null() || values.is_null())) {
            return Err(EINVAL);
        }
        let mut table: [(&[u8], u64); COUNTERS] = [(&[], 0); COUNTERS];
        let count = count.min(COUNTERS);
        for (n, entry) in table[..count].iter_mut().enumerate() {
            // SAFETY: the arrays have more than `n` elements.
            let (name, value) = unsafe { (*names.add(n), *values.add(n)) };
            if name.is_null() {
                return Err(EINVAL);
            }
            // SAFETY: a C string of the caller's.
            *entry = (unsafe { CStr::from_ptr(name) }.to_bytes(), value);
        }
        // SAFETY: as above.
        published::publish(unsafe { CStr::from_ptr(group) }.to_bytes(), &table[..count])
    })
}

/// Reads Weir's counters of this process, summed over all devices: those of paging, pinned memory and registrations, with
/// the names of `weir stat --json`, but times in nanoseconds (`_ns`). Writes at most `room` names and values, and returns
/// how many there are. Both arrays may be NULL. A forked child begins with zeros. Any thread may call it, not a signal
/// handler.
///
/// # Safety
/// `names` and `values` are NULL or have `room` elements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_counters(names: *mut [c_char; NAME], values: *mut u64, room: usize) -> usize {
    guard(0, || {
        let (paging, memory) = (counters::process(), weir_device::memory_totals());
        let mut count = 0;
        for (name, value) in paging.iter().chain(memory.iter()) {
            if count < room && !names.is_null() {
                // SAFETY: the array has more than `count` elements.
                unsafe { names.add(count).write(padded(name)) };
            }
            if count < room && !values.is_null() {
                // SAFETY: as above.
                unsafe { values.add(count).write(value) };
            }
            count += 1;
        }
        count
    })
}

/// A name with zeros up to its size, at least one.
fn padded(name: &str) -> [c_char; NAME] {
    let mut padded = [0; NAME];
    for (to, from) in padded[..NAME - 1].iter_mut().zip(name.bytes()) {
        *to = from as c_char;
    }
    padded
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ptr::{null, null_mut};

    #[test]
    fn the_counters_of_the_process_have_names_and_fit_into_the_room_that_there_is() {
        let mut names = [[1; NAME]; 64];
        let mut values = [u64::MAX; 64];
        // SAFETY: arrays of that many elements.
        let count = unsafe { weir_counters(names.as_mut_ptr(), values.as_mut_ptr(), 64) };
        let text = |name: &[c_char; NAME]| {
            // SAFETY: a C string in the array.
            unsafe { CStr::from_ptr(name.as_ptr()) }.to_str().unwrap().to_owned()
        };
        let found: Vec<String> = names[..count].iter().map(text).collect();
        for name in ["page_faults", "page_fault_pages", "page_prefetch_pages", "page_invalidations", "pinned_peak"] {
            assert!(found.iter().any(|known| known == name), "{name}: {found:?}");
        }
        assert_eq!(found.last().map(String::as_str), Some("registrations_on_demand"));
        assert!(values[..count].iter().all(|value| *value != u64::MAX) && values[count] == u64::MAX);
        // SAFETY: as above; no array, and one element of each.
        unsafe {
            assert_eq!(weir_counters(null_mut(), null_mut(), 0), count);
            (names[1], values[1]) = ([1; NAME], 7);
            assert_eq!(weir_counters(names.as_mut_ptr(), values.as_mut_ptr(), 1), count);
        }
        assert_eq!((text(&names[0]), names[1], values[1]), ("page_faults".to_owned(), [1; NAME], 7));
    }

    #[test]
    fn nothing_is_published_without_names_or_without_a_device() {
        let (names, values) = ([c"one".as_ptr(), null()], [1, 2]);
        // SAFETY: C strings, and arrays of that many elements.
        unsafe {
            assert_eq!(weir_publish(null(), 1, names.as_ptr(), values.as_ptr()), libc::EINVAL);
            assert_eq!(weir_publish(c"group".as_ptr(), 2, names.as_ptr(), values.as_ptr()), libc::EINVAL);
            assert_eq!(weir_publish(c"group".as_ptr(), 1, null(), values.as_ptr()), libc::EINVAL);
            assert_eq!(weir_publish(c"".as_ptr(), 1, names.as_ptr(), values.as_ptr()), libc::EINVAL);
            assert_eq!(weir_publish(c"group".as_ptr(), 1, names.as_ptr(), values.as_ptr()), libc::ENODEV);
        }
    }
}
