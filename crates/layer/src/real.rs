//! The functions behind this library: `dlsym` and `dlvsym` of the C library, and the next definition of a function.
//!
//! This library defines `dlsym` and `dlvsym` itself (`dl`), so it cannot ask for the next ones by name. It reads the
//! symbol tables of the libraries that were loaded after it.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::marker::PhantomData;
use std::sync::atomic::{AtomicPtr, Ordering::*};

/// The next `dlsym` and `dlvsym`, which `dl` jumps to.
pub static DLSYM: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
pub static DLVSYM: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;
type Dlvsym = unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char) -> *mut c_void;

/// Finds `dlsym` and `dlvsym`, if that has not happened.
#[inline]
pub fn look_up() {
    if DLVSYM.load(Acquire).is_null() {
        DLSYM.store(next_definition(c"dlsym").unwrap_or(no_dlsym as *mut c_void), Release);
        DLVSYM.store(next_definition(c"dlvsym").unwrap_or(no_dlsym as *mut c_void), Release);
    }
}

/// dlsym(3) of the C library. As its caller is this library, RTLD_NEXT means the libraries after this one.
///
/// # Safety
/// As dlsym(3).
pub unsafe fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    look_up();
    // SAFETY: the function of that name.
    unsafe { std::mem::transmute::<*mut c_void, Dlsym>(DLSYM.load(Acquire))(handle, name) }
}

/// dlvsym(3) of the C library.
///
/// # Safety
/// As dlvsym(3).
pub unsafe fn dlvsym(handle: *mut c_void, name: *const c_char, version: *const c_char) -> *mut c_void {
    look_up();
    // SAFETY: the function of that name.
    unsafe { std::mem::transmute::<*mut c_void, Dlvsym>(DLVSYM.load(Acquire))(handle, name, version) }
}

/// The next definition of an interposed function of type `F`.
pub struct Next<F> {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
    function: PhantomData<fn() -> F>,
}

impl<F: Copy> Next<F> {
    pub const fn new(name: &'static CStr) -> Next<F> {
        Next { name, found: AtomicPtr::new(std::ptr::null_mut()), function: PhantomData }
    }

    /// The function; `None` if no library that is loaded has it.
    pub fn get(&self) -> Option<F> {
        const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
        let mut found = self.found.load(Acquire);
        if found.is_null() {
            found = find(self.name);
            self.found.store(found, Release);
        }
        // SAFETY: the function of that name; the static declares its type.
        (!found.is_null()).then(|| unsafe { std::mem::transmute_copy(&found) })
    }

    /// The program has looked up the function by itself. True: it is the one that this library calls.
    pub fn agrees(&self, found: *mut c_void) -> bool {
        let _ = self.found.compare_exchange(std::ptr::null_mut(), found, AcqRel, Acquire);
        self.found.load(Acquire) == found
    }
}

/// In the libraries that the program was started with, else in a libibverbs that was opened later without RTLD_GLOBAL.
fn find(name: &CStr) -> *mut c_void {
    // SAFETY: NUL-terminated names. The handle of a library that is loaded is returned to the loader's count at once,
    // which leaves it as it was.
    unsafe {
        let next = dlsym(libc::RTLD_NEXT, name.as_ptr());
        if !next.is_null() {
            return next;
        }
        let library = libc::dlopen(c"libibverbs.so.1".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
        if library.is_null() {
            return library;
        }
        let found = dlsym(library, name.as_ptr());
        libc::dlclose(library);
        found
    }
}

unsafe extern "C" fn no_dlsym(_: *mut c_void, _: *const c_char, _: *const c_char) -> *mut c_void {
    std::ptr::null_mut()
}

/// The beginning of `struct link_map` in <link.h>.
#[repr(C)]
struct LinkMap {
    base: usize,
    name: *const c_char,
    dynamic: *const Dynamic,
    next: *const LinkMap,
}

/// `Elf64_Dyn` of <elf.h>.
#[repr(C)]
struct Dynamic {
    tag: i64,
    value: usize,
}

/// `Elf64_Sym` of <elf.h>.
#[repr(C)]
struct Symbol {
    name: u32,
    info: u8,
    other: u8,
    section: u16,
    value: usize,
    size: usize,
}

/// The first definition in a library that was loaded after this one.
fn next_definition(name: &CStr) -> Option<*mut c_void> {
    const RTLD_DL_LINKMAP: c_int = 2;
    unsafe extern "C" {
        fn dladdr1(address: *const c_void, info: *mut libc::Dl_info, extra: *mut *mut c_void, flags: c_int) -> c_int;
    }
    let mut info = libc::Dl_info {
        dli_fname: std::ptr::null(),
        dli_fbase: std::ptr::null_mut(),
        dli_sname: std::ptr::null(),
        dli_saddr: std::ptr::null_mut(),
    };
    let mut map: *mut c_void = std::ptr::null_mut();
    // SAFETY: the C library fills both variables; its list of libraries has the public beginning declared above. The
    // libraries after this one, up to the C library, were loaded with the program and stay.
    unsafe {
        if dladdr1(next_definition as *const c_void, &mut info, &mut map, RTLD_DL_LINKMAP) == 0 || map.is_null() {
            return None;
        }
        let mut map = (*map.cast::<LinkMap>()).next;
        while let Some(library) = map.as_ref() {
            if let Some(found) = definition(library, name) {
                return Some(found);
            }
            map = library.next;
        }
    }
    None
}

/// A library's definition of a function, found by its GNU hash table.
///
/// # Safety
/// The library is loaded.
unsafe fn definition(library: &LinkMap, name: &CStr) -> Option<*mut c_void> {
    const DT_STRTAB: i64 = 5;
    const DT_SYMTAB: i64 = 6;
    const DT_GNU_HASH: i64 = 0x6fff_fef5;
    let (mut strings, mut symbols, mut hashes) = (0, 0, 0);
    let mut at = library.dynamic;
    // SAFETY: a loaded library's dynamic section ends with a null tag, and its tables are mapped.
    unsafe {
        while !at.is_null() && (*at).tag != 0 {
            // The loader has relocated these addresses, except in the kernel's own library.
            let value = (*at).value;
            let address = if value < library.base { value.wrapping_add(library.base) } else { value };
            match (*at).tag {
                DT_STRTAB => strings = address,
                DT_SYMTAB => symbols = address,
                DT_GNU_HASH => hashes = address,
                _ => {}
            }
            at = at.add(1);
        }
        if strings == 0 || symbols == 0 || hashes == 0 {
            return None;
        }
        let table = hashes as *const u32;
        let (buckets, first, filters) = (*table, *table.add(1), *table.add(2));
        if buckets == 0 {
            return None;
        }
        let hash = name.to_bytes().iter().fold(5381u32, |hash, &byte| hash.wrapping_mul(33).wrapping_add(byte.into()));
        let bucket = table.add(4 + 2 * filters as usize);
        let chain = bucket.add(buckets as usize);
        let mut index = *bucket.add((hash % buckets) as usize);
        while index >= first && index != 0 {
            let found = *chain.add((index - first) as usize);
            let symbol = &*(symbols as *const Symbol).add(index as usize);
            let is_function = symbol.section != 0 && symbol.info & 15 == 2;
            if found | 1 == hash | 1 && is_function && CStr::from_ptr((strings + symbol.name as usize) as _) == name {
                return Some(library.base.wrapping_add(symbol.value) as *mut c_void);
            }
            if found & 1 != 0 {
                break;
            }
            index += 1;
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_symbol_tables_lead_to_the_c_librarys_functions() {
        // The test program is linked with the C library; the loader finds its functions too.
        for name in [c"dlvsym", c"getpid", c"pthread_create"] {
            let found = next_definition(name).unwrap();
            // SAFETY: a structure of pointers.
            let mut info = unsafe { std::mem::zeroed::<libc::Dl_info>() };
            // SAFETY: fills a local variable.
            assert_ne!(unsafe { libc::dladdr(found, &mut info) }, 0);
            // SAFETY: the loader's name of the symbol, of which a function can have several.
            let symbol = unsafe { CStr::from_ptr(info.dli_sname) };
            assert!(symbol.to_string_lossy().ends_with(name.to_str().unwrap()), "{symbol:?} {name:?}");
        }
        assert!(next_definition(c"no_such_function_anywhere").is_none());
    }
}
