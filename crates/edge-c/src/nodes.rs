//! Functions on nodes.

use crate::failure::guarded;
use crate::types::{EdgeCounters, EdgeOptions, EdgeRange, allow, text, timeout};
use std::ffi::{c_char, c_int};
use std::net::ToSocketAddrs;
use std::ptr;
use std::time::Duration;
use weir_edge::{Connection, Error, Node, Options};

/// Sets options to their defaults.
///
/// # Safety
/// `options` is valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn edge_default_options(options: *mut EdgeOptions) {
    if !options.is_null() {
        // SAFETY: as the caller says.
        unsafe { options.write(EdgeOptions::default()) };
    }
}

/// Opens a node that listens.
///
/// # Safety
/// `options` is NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn edge_listen(options: *const EdgeOptions) -> *mut Node {
    // SAFETY: as the caller says.
    guarded(ptr::null_mut(), || Ok(boxed(Node::listen(unsafe { read(options) }?)?)))
}

/// Opens a node that requests connections.
///
/// # Safety
/// `options` is NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn edge_open(options: *const EdgeOptions) -> *mut Node {
    // SAFETY: as the caller says.
    guarded(ptr::null_mut(), || Ok(boxed(Node::open(unsafe { read(options) }?)?)))
}

/// The UDP port of a node.
///
/// # Safety
/// `node` is NULL or open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn edge_port(node: *mut Node) -> c_int {
    // SAFETY: as the caller says.
    guarded(-1, || Ok(unsafe { object(node) }?.port().into()))
}

/// Closes a node.
///
/// # Safety
/// `node` is NULL or open, and is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn edge_close(node: *mut Node) {
    // SAFETY: as the caller says.
    unsafe { closed(node) }
}

/// Waits for a connection.
///
/// # Safety
/// `node` is NULL or open; `allowed` are `count` ranges.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn edge_connection_wait(
    node: *mut Node,
    allowed: *const EdgeRange,
    count: c_int,
    timeout_ms: c_int,
) -> *mut Connection {
    guarded(ptr::null_mut(), || {
        // SAFETY: as the caller says.
        let (node, allow) = unsafe { (object(node)?, allow(allowed, count)?) };
        Ok(boxed(node.wait(&allow, timeout(timeout_ms))?))
    })
}

/// Requests a connection.
///
/// # Safety
/// `node` is NULL or open; `host` is NULL or terminated; `allowed` are `count` ranges.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn edge_request_connection(
    node: *mut Node,
    host: *const c_char,
    port: c_int,
    allowed: *const EdgeRange,
    count: c_int,
    timeout_ms: c_int,
) -> *mut Connection {
    guarded(ptr::null_mut(), || {
        // SAFETY: as the caller says.
        let (node, host, allow) = unsafe { (object(node)?, text(host)?, allow(allowed, count)?) };
        let port = u16::try_from(port).map_err(|_| Error::Invalid(format!("{port} is no UDP port")))?;
        let unknown = || Error::System { what: "the host is not known", errno: libc::EHOSTUNREACH };
        let remote = (host, port).to_socket_addrs().ok().and_then(|mut all| all.next()).ok_or_else(unknown)?;
        // About a century, which the sum with the present time bears.
        let timeout = timeout(timeout_ms).unwrap_or(Duration::from_secs(3_000_000_000));
        Ok(boxed(node.request(remote, &allow, timeout)?))
    })
}

/// What a node has counted.
///
/// # Safety
/// `node` is NULL or open; `counters` has room for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn edge_get_counters(node: *mut Node, counters: *mut EdgeCounters, size: usize) -> c_int {
    guarded(-1, || {
        // SAFETY: as the caller says.
        let node = unsafe { object(node)? };
        if counters.is_null() {
            return Err(Error::Invalid("counters is NULL".into()));
        }
        let all = EdgeCounters::new(&node.counters()?, &node.times()?);
        // A program that was built with another release has fewer, or more.
        let known = size.min(size_of::<EdgeCounters>());
        // SAFETY: there is room for `size` bytes.
        unsafe {
            ptr::write_bytes(counters.cast::<u8>(), 0, size);
            ptr::copy_nonoverlapping((&raw const all).cast::<u8>(), counters.cast(), known);
        }
        Ok(0)
    })
}

/// # Safety
/// `options` is NULL or valid.
unsafe fn read(options: *const EdgeOptions) -> Result<Options, Error> {
    // SAFETY: as the caller says.
    unsafe { options.as_ref().map_or_else(|| Ok(Options::default()), |options| options.read()) }
}

/// An object for the program, which gives it back.
fn boxed<T>(object: T) -> *mut T {
    Box::into_raw(Box::new(object))
}

/// Ends an object of the program.
///
/// # Safety
/// It is NULL, or `boxed` has made it, and is not used any more.
pub(crate) unsafe fn closed<T>(object: *mut T) {
    guarded((), || {
        if !object.is_null() {
            // SAFETY: as the caller says.
            drop(unsafe { Box::from_raw(object) });
        }
        Ok(())
    });
}

/// # Safety
/// It is NULL or open.
pub(crate) unsafe fn object<'a, T>(object: *mut T) -> Result<&'a T, Error> {
    // SAFETY: as the caller says.
    unsafe { object.as_ref() }.ok_or_else(|| Error::Invalid("the node or the connection is NULL".into()))
}
