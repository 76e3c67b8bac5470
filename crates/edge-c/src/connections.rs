//! Functions on connections.

use crate::failure::guarded;
use crate::nodes::{closed, object};
use crate::types::{EdgeEvent, access, timeout};
use std::ffi::{c_int, c_uint, c_void};
use weir_edge::{Connection, Error, Event, Handle, Kind, OperationFlags, RangeId};

/// Ends a connection.
///
/// # Safety
/// `connection` is NULL or open, and is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn edge_disconnect(connection: *mut Connection) {
    // SAFETY: as the caller says.
    unsafe { closed(connection) }
}

/// Begins an operation.
///
/// # Safety
/// `connection` is NULL or open; `local` is used as `Connection::operation` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn edge_rdma_operation(
    connection: *mut Connection,
    remote: u64,
    local: *mut c_void,
    size: usize,
    operation: c_int,
    flags: c_uint,
) -> i64 {
    guarded(-1, || {
        let kind = match operation {
            0 => Kind::Write,
            1 => Kind::Read,
            _ => return Err(Error::Invalid(format!("operation {operation}: give EDGE_WRITE or EDGE_READ"))),
        };
        // SAFETY: as the caller says.
        let handle = unsafe { object(connection)?.operation(kind, remote, local.cast(), size, bits(flags)?) };
        handle.map(i64::from)
    })
}

/// Whether there is an event.
///
/// # Safety
/// `connection` is NULL or open; `event` is NULL or valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn edge_query_event(connection: *mut Connection, handle: i64, event: *mut EdgeEvent) -> c_int {
    guarded(-1, || {
        // SAFETY: as the caller says.
        let connection = unsafe { object(connection)? };
        let found = match of(handle)? {
            None => connection.next_event()?,
            Some(handle) => connection.query(handle)?.map(|result| Event::Completed { handle, result }),
        };
        // SAFETY: as the caller says.
        Ok(unsafe { give(found, event) })
    })
}

/// Waits for an event.
///
/// # Safety
/// `connection` is NULL or open; `event` is NULL or valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn edge_wait_event(
    connection: *mut Connection,
    handle: i64,
    event: *mut EdgeEvent,
    timeout_ms: c_int,
) -> c_int {
    guarded(-1, || {
        // SAFETY: as the caller says.
        let connection = unsafe { object(connection)? };
        let found = match of(handle)? {
            None => match connection.wait_event(timeout(timeout_ms)) {
                Err(Error::Timeout) => None,
                found => Some(found?),
            },
            Some(handle) => {
                let end = connection.wait_end(handle, timeout(timeout_ms))?;
                end.map(|result| Event::Completed { handle, result })
            }
        };
        // SAFETY: as the caller says.
        Ok(unsafe { give(found, event) })
    })
}

/// The descriptor of events.
///
/// # Safety
/// `connection` is NULL or open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn edge_event_descriptor(connection: *mut Connection) -> c_int {
    // SAFETY: as the caller says.
    guarded(-1, || unsafe { object(connection)? }.descriptor())
}

/// Writes, and waits until that is complete.
///
/// # Safety
/// `connection` is NULL or open. `local` may be any address.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn edge_write(
    connection: *mut Connection,
    remote: u64,
    local: *const c_void,
    size: usize,
    flags: c_uint,
) -> c_int {
    // SAFETY: as the caller says.
    guarded(-1, || unsafe { complete(connection, Kind::Write, remote, local.cast_mut(), size, flags) })
}

/// Reads, and waits until that is complete.
///
/// # Safety
/// `connection` is NULL or open. `local` is memory that may be written, or not mapped.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn edge_read(
    connection: *mut Connection,
    remote: u64,
    local: *mut c_void,
    size: usize,
    flags: c_uint,
) -> c_int {
    // SAFETY: as the caller says.
    guarded(-1, || unsafe { complete(connection, Kind::Read, remote, local, size, flags) })
}

/// Tells the peer a number.
///
/// # Safety
/// `connection` is NULL or open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn edge_tell(connection: *mut Connection, number: u64) -> i64 {
    // SAFETY: as the caller says.
    guarded(-1, || unsafe { object(connection)? }.tell(number).map(i64::from))
}

/// Allows the peer to use a range.
///
/// # Safety
/// `connection` is NULL or open. The program uses the range as `Connection::register` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn edge_register(
    connection: *mut Connection,
    address: *mut c_void,
    size: usize,
    bits: c_uint,
) -> i64 {
    guarded(-1, || {
        // SAFETY: as the caller says.
        let range = unsafe { object(connection)?.register(address.cast(), size, access(bits)?) }?;
        Ok(range.0 as i64)
    })
}

/// Ends what `edge_register` has allowed.
///
/// # Safety
/// `connection` is NULL or open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn edge_deregister(connection: *mut Connection, range: i64) -> c_int {
    // SAFETY: as the caller says.
    guarded(-1, || unsafe { object(connection)? }.deregister(RangeId(range as u64)).map(|()| 0))
}

/// # Safety
/// As [`edge_rdma_operation`].
unsafe fn complete(
    connection: *mut Connection,
    kind: Kind,
    remote: u64,
    local: *mut c_void,
    size: usize,
    flags: c_uint,
) -> Result<c_int, Error> {
    // SAFETY: as the caller says; the operation is complete when this returns.
    let connection = unsafe { object(connection)? };
    // SAFETY: as above.
    unsafe { connection.perform(kind, remote, local.cast(), size, bits(flags)?) }.map(|()| 0)
}

/// The handle; -1: any.
fn of(handle: i64) -> Result<Option<Handle>, Error> {
    let wrong = |_| Error::Invalid(format!("{handle} is no handle"));
    if handle == -1 { Ok(None) } else { Handle::try_from(handle).map(Some).map_err(wrong) }
}

fn bits(flags: c_uint) -> Result<OperationFlags, Error> {
    OperationFlags::from_bits(flags).ok_or_else(|| Error::Invalid(format!("the flags {flags:#x} have unknown bits")))
}

/// # Safety
/// `event` is NULL or valid for writes.
unsafe fn give(found: Option<Event>, event: *mut EdgeEvent) -> c_int {
    let Some(found) = found else { return 0 };
    if let Event::Completed { result: Err(error), .. } = &found {
        crate::failure::note(error);
    }
    if !event.is_null() {
        // SAFETY: as the caller says.
        unsafe { event.write(found.into()) };
    }
    1
}
