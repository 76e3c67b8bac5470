//! Address vectors: the peers that a program has numbered.

use crate::guard::guarded;
use crate::info::{name_of, parse_name};
use crate::objects::{self, Object, table};
use crate::unsupported::{no3, no4};
use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::net::ToSocketAddrs;
use std::sync::{Arc, RwLock};
use weir_fabric_abi::*;
use weir_msg::Name;

/// An address vector. A `fi_addr_t` is an index, in vectors of type FI_AV_MAP, too.
#[repr(C)]
pub struct AddressVector {
    header: fid_av,
    entries: RwLock<Entries>,
}

#[derive(Default)]
struct Entries {
    names: Vec<Option<Name>>,
    /// The first index of each name.
    numbers: HashMap<Name, fi_addr_t>,
}

// SAFETY: the header is the first member.
unsafe impl Object for AddressVector {
    type Header = fid_av;
    const CLASS: usize = FI_CLASS_AV;
}
// SAFETY: the header's pointers lead to static tables.
unsafe impl Send for AddressVector {}
// SAFETY: as above; the rest is locked.
unsafe impl Sync for AddressVector {}

impl AddressVector {
    /// The name of an address.
    pub fn name(&self, addr: fi_addr_t) -> Option<Name> {
        let entries = self.entries.read().ok()?;
        *entries.names.get(usize::try_from(addr).ok()?)?
    }

    /// The address of a name.
    pub fn number(&self, name: &Name) -> Option<fi_addr_t> {
        self.entries.read().ok()?.numbers.get(name).copied()
    }

    fn insert(&self, name: Option<Name>) -> fi_addr_t {
        let (Some(name), Ok(mut entries)) = (name, self.entries.write()) else { return FI_ADDR_NOTAVAIL };
        let number = entries.names.len() as fi_addr_t;
        entries.names.push(Some(name));
        entries.numbers.entry(name).or_insert(number);
        number
    }
}

/// Opens an address vector. Shared ones, which have a name, do not exist.
pub unsafe extern "C" fn open(
    _: *mut fid_domain,
    attr: *mut fi_av_attr,
    av: *mut *mut fid_av,
    context: *mut c_void,
) -> c_int {
    guarded(|| {
        // SAFETY: the program's attributes.
        if unsafe { attr.as_ref() }.is_some_and(|attr| !attr.name.is_null() || attr.rx_ctx_bits != 0) {
            return -FI_ENOSYS;
        }
        let header = fid_av { fid: objects::fid(FI_CLASS_AV, context, &FID), ops: table(&OPS) };
        let vector = AddressVector { header, entries: RwLock::default() };
        // SAFETY: the program's place for the result.
        unsafe { *av = objects::into_raw(Arc::new(vector)) };
        0
    })
}

static FID: fi_ops = objects::calls(objects::closed::<AddressVector>, bind, no3);

static OPS: fi_ops_av = fi_ops_av {
    size: size_of::<fi_ops_av>(),
    insert: Some(insert),
    insertsvc: Some(insertsvc),
    insertsym: Some(insertsym),
    remove: Some(remove),
    lookup: Some(lookup),
    straddr: Some(straddr),
    av_set: Some(no4),
};

/// Insertions end at once, so that an event queue gets nothing.
unsafe extern "C" fn bind(_: *mut fid, other: *mut fid, _: u64) -> c_int {
    // SAFETY: the program's object.
    if unsafe { (*other).fclass } == FI_CLASS_EQ { -FI_ENOSYS } else { -FI_EINVAL }
}

unsafe extern "C" fn insert(
    av: *mut fid_av,
    addr: *const c_void,
    count: usize,
    fi_addr: *mut fi_addr_t,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    guarded(|| {
        if flags & !(FI_MORE | FI_SYNC_ERR) != 0 {
            return -FI_EBADFLAGS;
        }
        // SAFETY: the program's vector.
        let vector = unsafe { objects::borrow::<AddressVector>(av) };
        let mut at = addr.cast::<u8>();
        let mut inserted = 0;
        for index in 0..count {
            // SAFETY: addresses follow each other, each as long as its family's structure.
            let (name, len) = unsafe { read_name(at) };
            let number = vector.insert(name);
            let failed = number == FI_ADDR_NOTAVAIL;
            inserted += c_int::from(!failed);
            // SAFETY: the program's lists, where it has given them.
            unsafe {
                if !fi_addr.is_null() {
                    *fi_addr.add(index) = number;
                }
                if flags & FI_SYNC_ERR != 0 && !context.is_null() {
                    *context.cast::<c_int>().add(index) = if failed { FI_EINVAL } else { 0 };
                }
                at = at.add(len);
            }
        }
        inserted
    })
}

/// # Safety
/// There is a socket address.
unsafe fn read_name(at: *const u8) -> (Option<Name>, usize) {
    // SAFETY: the caller's address begins with its family.
    let family = unsafe { at.cast::<u16>().read_unaligned() };
    let len = if i32::from(family) == libc::AF_INET6 { 28 } else { 16 };
    // SAFETY: the caller's address is as long as its family's structure.
    let bytes = unsafe { std::slice::from_raw_parts(at, len) };
    // What does not matter of an address, such as padding, must not make two names of it.
    (parse_name(bytes).map(name_of), len)
}

unsafe extern "C" fn insertsvc(
    av: *mut fid_av,
    node: *const c_char,
    service: *const c_char,
    fi_addr: *mut fi_addr_t,
    _: u64,
    _: *mut c_void,
) -> c_int {
    guarded(|| {
        if node.is_null() || service.is_null() {
            return -FI_EINVAL;
        }
        // SAFETY: the program's strings.
        let (node, service) = unsafe { (CStr::from_ptr(node), CStr::from_ptr(service)) };
        let Ok(port) = service.to_string_lossy().parse::<u16>() else { return -FI_EINVAL };
        let Ok(mut found) = (&*node.to_string_lossy(), port).to_socket_addrs() else { return -FI_EINVAL };
        // SAFETY: the program's vector.
        let vector = unsafe { objects::borrow::<AddressVector>(av) };
        let number = vector.insert(found.next().map(name_of));
        if !fi_addr.is_null() {
            // SAFETY: the program's place for the result.
            unsafe { *fi_addr = number };
        }
        c_int::from(number != FI_ADDR_NOTAVAIL)
    })
}

#[allow(clippy::too_many_arguments)] // The header's.
unsafe extern "C" fn insertsym(
    _: *mut fid_av,
    _: *const c_char,
    _: usize,
    _: *const c_char,
    _: usize,
    _: *mut fi_addr_t,
    _: u64,
    _: *mut c_void,
) -> c_int {
    -FI_ENOSYS
}

unsafe extern "C" fn remove(av: *mut fid_av, fi_addr: *mut fi_addr_t, count: usize, flags: u64) -> c_int {
    guarded(|| {
        if flags != 0 {
            return -FI_EBADFLAGS;
        }
        // SAFETY: the program's vector.
        let vector = unsafe { objects::borrow::<AddressVector>(av) };
        let Ok(mut entries) = vector.entries.write() else { return -FI_EOTHER };
        for at in 0..count {
            // SAFETY: the program's list.
            let number = unsafe { *fi_addr.add(at) };
            let removed = usize::try_from(number).ok().and_then(|number| entries.names.get_mut(number)?.take());
            if let Some(name) = removed
                && entries.numbers.get(&name) == Some(&number)
            {
                entries.numbers.remove(&name);
                let other = entries.names.iter().position(|known| *known == Some(name));
                if let Some(other) = other {
                    entries.numbers.insert(name, other as fi_addr_t);
                }
            }
        }
        0
    })
}

unsafe extern "C" fn lookup(av: *mut fid_av, fi_addr: fi_addr_t, addr: *mut c_void, addrlen: *mut usize) -> c_int {
    guarded(|| {
        // SAFETY: the program's vector.
        let vector = unsafe { objects::borrow::<AddressVector>(av) };
        let Some(name) = vector.name(fi_addr) else { return -FI_EINVAL };
        // SAFETY: the program's buffer, of which `addrlen` is the length.
        unsafe { objects::write_bytes(name.as_bytes(), addr, addrlen) };
        0
    })
}

unsafe extern "C" fn straddr(_: *mut fid_av, addr: *const c_void, buf: *mut c_char, len: *mut usize) -> *const c_char {
    // SAFETY: the program's address.
    let (name, _) = unsafe { read_name(addr.cast()) };
    let text = match name.and_then(|name| parse_name(name.as_bytes())) {
        Some(address) if address.is_ipv4() => format!("fi_sockaddr_in://{address}\0"),
        Some(address) => format!("fi_sockaddr_in6://{address}\0"),
        None => "unknown\0".to_owned(),
    };
    // SAFETY: the program's buffer, of which `len` is the length.
    unsafe {
        let room = *len;
        objects::write_bytes(text.as_bytes(), buf.cast(), len);
        if room > 0 && room < text.len() {
            *buf.add(room - 1) = 0;
        }
    }
    buf
}
