//! What Weir's libibverbs counts of this process, and what it shows of the provider (`weir stat`).
//!
//! Both functions are Weir's own. Other libraries have none, and then there is nothing to read and nowhere to publish.

use crate::loaded;
use std::collections::HashMap;
use std::ffi::{CString, c_char, c_int};
use std::sync::{Mutex, OnceLock};
use weir_msg::{Counters, Scheme};

type Read = unsafe extern "C" fn(*mut [c_char; NAME], *mut u64, usize) -> usize;
type Publish = unsafe extern "C" fn(*const c_char, usize, *const *const c_char, *const u64) -> c_int;

/// Bytes of a name that Weir returns.
const NAME: usize = 32;
/// More counters than Weir has.
const ROOM: usize = 64;

/// Counters of the process by name; none, if the library is not Weir's.
pub fn read() -> Vec<(String, u64)> {
    let name = |name: &[c_char; NAME]| {
        let bytes: Vec<u8> = name.iter().map(|&byte| byte as u8).take_while(|&byte| byte != 0).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    };
    let counters = raw();
    counters
        .iter()
        .flat_map(|(names, values)| names.iter().map(name).zip(values.iter().copied()))
        .filter(|(name, _)| !name.is_empty())
        .collect()
}

/// How often the adapter has lost pages of this process.
pub fn invalidations() -> Option<u64> {
    static AT: OnceLock<Option<usize>> = OnceLock::new();
    let at = (*AT.get_or_init(|| read().iter().position(|(name, _)| name == "page_invalidations")))?;
    raw()?.1.get(at).copied()
}

/// Names and values as Weir returns them; places behind the last counter have no name.
fn raw() -> Option<([[c_char; NAME]; ROOM], [u64; ROOM])> {
    let (mut names, mut values) = ([[0; NAME]; ROOM], [0; ROOM]);
    // SAFETY: places for as many names and values as is said.
    unsafe { functions().0?(names.as_mut_ptr(), values.as_mut_ptr(), ROOM) };
    Some((names, values))
}

/// Shows what an endpoint has done, with the other endpoints of the process. `closed`: it keeps nothing any more.
pub fn publish(endpoint: usize, scheme: Scheme, counters: &Counters, closed: bool) {
    static ALL: Mutex<Option<HashMap<usize, Counters>>> = Mutex::new(None);
    let Some(publish) = functions().1 else { return };
    let Ok(mut all) = ALL.lock() else { return };
    let all = all.get_or_insert_default();
    let kept = if closed { Counters { pinned_bytes: 0, unexpected_bytes: 0, ..*counters } } else { *counters };
    all.insert(endpoint, kept);
    let mut sums: Vec<(&'static str, u64)> = Counters::default().iter().collect();
    for counters in all.values() {
        sums.iter_mut().zip(counters.iter()).for_each(|(sum, (_, value))| sum.1 += value);
    }
    let group = CString::new(format!("weir-odp {scheme}")).unwrap_or_default();
    let names: Vec<CString> = sums.iter().map(|(name, _)| CString::new(*name).unwrap_or_default()).collect();
    let pointers: Vec<*const c_char> = names.iter().map(|name| name.as_ptr()).collect();
    let values: Vec<u64> = sums.iter().map(|&(_, value)| value).collect();
    // SAFETY: strings and lists of this function, as long as is said. An error means that there is no room to show them.
    unsafe { publish(group.as_ptr(), names.len(), pointers.as_ptr(), values.as_ptr()) };
}

fn functions() -> &'static (Option<Read>, Option<Publish>) {
    static FUNCTIONS: OnceLock<(Option<Read>, Option<Publish>)> = OnceLock::new();
    FUNCTIONS.get_or_init(|| {
        let library = loaded::library(c"libibverbs.so.1");
        // SAFETY: Weir's functions of these names have these types.
        unsafe { (loaded::function(library, c"weir_counters", None), loaded::function(library, c"weir_publish", None)) }
    })
}
