//! Completion queues.

use crate::guard::guarded;
use crate::objects::{self, Object, table};
use crate::progress::{Endpoints, Progress, deadline, left_until, wait_any};
use crate::unsupported::no3;
use crate::wake::Wake;
use std::collections::VecDeque;
use std::ffi::{c_char, c_int, c_void};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use weir_fabric_abi::*;

/// Errors have had these bytes before version 1.20 of the interface, and a source address since.
const ERROR_BEFORE_1_20: usize = 80;
const ERROR_SINCE_1_20: usize = 88;

/// A completion.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    pub entry: fi_cq_tagged_entry,
    /// The peer, of receives.
    pub source: fi_addr_t,
    /// The error, or 0; and the bytes of the message that did not fit.
    pub error: c_int,
    pub olen: usize,
}

impl Entry {
    /// An operation that has failed, of which there is nothing else to say.
    pub fn failed(context: u64, flags: u64, error: c_int) -> Entry {
        let op_context = std::ptr::with_exposed_provenance_mut(context as usize);
        let entry = fi_cq_tagged_entry { op_context, flags, ..Default::default() };
        Entry { entry, source: FI_ADDR_NOTAVAIL, error, olen: 0 }
    }
}

/// A completion queue.
#[repr(C)]
pub struct Queue {
    header: fid_cq,
    format: fi_cq_format,
    wait: fi_wait_obj,
    api_version: u32,
    entries: Mutex<VecDeque<Entry>>,
    endpoints: Endpoints,
    /// Readable if there is something to do for an endpoint, or `wake` is: what the program waits for.
    epoll: Option<OwnedFd>,
    /// Readable if a completion has come while the program was about to block: calls of another thread make some, too.
    wake: Option<Wake>,
    /// The program is about to block, or has.
    blocks: AtomicBool,
    signalled: AtomicBool,
}

// SAFETY: the header is the first member.
unsafe impl Object for Queue {
    type Header = fid_cq;
    const CLASS: usize = FI_CLASS_CQ;
}
// SAFETY: the header's pointers lead to static tables.
unsafe impl Send for Queue {}
// SAFETY: as above; the rest is locked.
unsafe impl Sync for Queue {}

impl Queue {
    /// Adds a completion.
    pub fn push(&self, entry: Entry) {
        if let Ok(mut entries) = self.entries.lock() {
            entries.push_back(entry);
        }
        if self.blocks.load(Ordering::Acquire) && self.blocks.swap(false, Ordering::AcqRel) {
            self.wake.iter().for_each(Wake::set);
        }
    }

    /// An endpoint reports to this queue.
    pub fn bind(&self, endpoint: &Arc<dyn Progress>) {
        if !self.endpoints.add(endpoint) {
            return;
        }
        let Some(epoll) = &self.epoll else { return };
        for fd in endpoint.descriptors() {
            add_to(epoll, fd);
        }
    }

    /// Whether the program may block on the queue's descriptor.
    pub fn may_block(&self) -> bool {
        let none = |queue: &Queue| queue.entries.lock().is_ok_and(|entries| entries.is_empty());
        self.wake.iter().for_each(Wake::clear);
        self.blocks.store(true, Ordering::Release);
        // Descriptors are asked for first: what comes between the two looks is seen by one of them.
        none(self) && self.endpoints.may_block() && {
            self.endpoints.progress();
            none(self)
        }
    }

    /// Takes up to `count` completions, as the program's format has them.
    ///
    /// # Safety
    /// `buf` has room for them, and `sources`, if it is not null.
    unsafe fn take(&self, buf: *mut c_void, count: usize, sources: *mut fi_addr_t) -> isize {
        let Ok(mut entries) = self.entries.lock() else { return -FI_EOTHER as isize };
        let size = match self.format {
            FI_CQ_FORMAT_MSG => size_of::<fi_cq_msg_entry>(),
            FI_CQ_FORMAT_DATA => size_of::<fi_cq_data_entry>(),
            FI_CQ_FORMAT_TAGGED => size_of::<fi_cq_tagged_entry>(),
            _ => size_of::<fi_cq_entry>(),
        };
        let mut taken = 0;
        while taken < count {
            match entries.front() {
                Some(first) if first.error == 0 => {
                    // Each format begins as the one before it.
                    // SAFETY: the caller's buffers.
                    unsafe {
                        let out = buf.cast::<u8>().add(taken * size);
                        std::ptr::copy_nonoverlapping((&raw const first.entry).cast::<u8>(), out, size);
                        if !sources.is_null() {
                            *sources.add(taken) = first.source;
                        }
                    }
                    entries.pop_front();
                    taken += 1;
                }
                Some(_) if taken == 0 => return -FI_EAVAIL as isize,
                None if taken == 0 => return -FI_EAGAIN as isize,
                _ => break,
            }
        }
        taken as isize
    }
}

/// Blocks until a descriptor is readable, at most so long; `None`: without limit.
pub fn wait_readable(fd: RawFd, most: Option<Duration>) {
    wait_any(&[fd], most.unwrap_or(Duration::from_millis(i32::MAX as u64)));
}

/// Opens a completion queue.
pub unsafe extern "C" fn open(
    domain: *mut fid_domain,
    attr: *mut fi_cq_attr,
    cq: *mut *mut fid_cq,
    context: *mut c_void,
) -> c_int {
    guarded(|| {
        // SAFETY: the program's attributes, or none.
        let attr = unsafe { attr.as_ref() }.copied().unwrap_or_default();
        if !matches!(attr.wait_obj, FI_WAIT_NONE | FI_WAIT_UNSPEC | FI_WAIT_FD | FI_WAIT_YIELD) {
            return -FI_ENOSYS;
        }
        let format = match attr.format {
            FI_CQ_FORMAT_UNSPEC => FI_CQ_FORMAT_CONTEXT,
            format if format <= FI_CQ_FORMAT_TAGGED => format,
            _ => return -FI_ENOSYS,
        };
        let epoll = if matches!(attr.wait_obj, FI_WAIT_UNSPEC | FI_WAIT_FD) {
            // SAFETY: makes a descriptor.
            let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
            if fd < 0 {
                return -FI_EMFILE;
            }
            // SAFETY: the descriptor is new.
            Some(unsafe { OwnedFd::from_raw_fd(fd) })
        } else {
            None
        };
        let wake = match epoll.as_ref().map(wake_in) {
            Some(None) => return -FI_EMFILE,
            wake => wake.flatten(),
        };
        // SAFETY: the program's domain.
        let api_version = unsafe { objects::borrow::<crate::domain::Domain>(domain).api_version };
        let queue = Queue {
            header: fid_cq { fid: objects::fid(FI_CLASS_CQ, context, &FID), ops: table(&OPS) },
            format,
            wait: attr.wait_obj,
            api_version,
            entries: Mutex::default(),
            endpoints: Endpoints::default(),
            epoll,
            wake,
            blocks: AtomicBool::new(false),
            signalled: AtomicBool::new(false),
        };
        // SAFETY: the program's place for the result.
        unsafe { *cq = objects::into_raw(Arc::new(queue)) };
        0
    })
}

/// A descriptor that makes an epoll descriptor readable.
fn wake_in(epoll: &OwnedFd) -> Option<Wake> {
    let wake = Wake::new()?;
    add_to(epoll, wake.fd()).then_some(wake)
}

/// Adds a descriptor to an epoll descriptor. The kernel forgets it when it is closed.
fn add_to(epoll: &OwnedFd, fd: RawFd) -> bool {
    let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: fd as u64 };
    // SAFETY: both descriptors are open.
    unsafe { libc::epoll_ctl(epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &mut event) == 0 }
}

static FID: fi_ops = objects::calls(objects::closed::<Queue>, no3, control);

static OPS: fi_ops_cq = fi_ops_cq {
    size: size_of::<fi_ops_cq>(),
    read: Some(read),
    readfrom: Some(readfrom),
    readerr: Some(readerr),
    sread: Some(sread),
    sreadfrom: Some(sreadfrom),
    signal: Some(signal),
    strerror: Some(strerror),
};

unsafe extern "C" fn control(fid: *mut fid, command: c_int, argument: *mut c_void) -> c_int {
    // SAFETY: the program's queue.
    let Some(queue) = (unsafe { objects::borrow_fid::<Queue>(fid) }) else { return -FI_EINVAL };
    match (command, &queue.epoll) {
        (FI_GETWAIT, Some(epoll)) => {
            // SAFETY: the program's place for a descriptor.
            unsafe { *argument.cast::<c_int>() = epoll.as_raw_fd() };
            0
        }
        (FI_GETWAITOBJ, _) => {
            // SAFETY: the program's place for the value.
            unsafe { *argument.cast::<fi_wait_obj>() = queue.wait };
            0
        }
        _ => -FI_ENOSYS,
    }
}

unsafe extern "C" fn read(cq: *mut fid_cq, buf: *mut c_void, count: usize) -> isize {
    // SAFETY: the program's own call.
    unsafe { readfrom(cq, buf, count, std::ptr::null_mut()) }
}

unsafe extern "C" fn readfrom(cq: *mut fid_cq, buf: *mut c_void, count: usize, sources: *mut fi_addr_t) -> isize {
    guarded(|| {
        // SAFETY: the program's queue.
        let queue = unsafe { objects::borrow::<Queue>(cq) };
        queue.endpoints.progress();
        // SAFETY: the program's buffers.
        unsafe { queue.take(buf, count, sources) }
    })
}

unsafe extern "C" fn readerr(cq: *mut fid_cq, buf: *mut fi_cq_err_entry, _: u64) -> isize {
    guarded(|| {
        // SAFETY: the program's queue.
        let queue = unsafe { objects::borrow::<Queue>(cq) };
        let Ok(mut entries) = queue.entries.lock() else { return -FI_EOTHER as isize };
        let Some(first) = entries.front().filter(|entry| entry.error != 0).copied() else {
            return -FI_EAGAIN as isize;
        };
        entries.pop_front();
        let fi_cq_tagged_entry { op_context, flags, len, buf: at, data, tag } = first.entry;
        let since_1_20 = queue.api_version >= FI_VERSION(1, 20);
        // SAFETY: the program's entry, which is as long as its version of the interface says.
        unsafe {
            let bytes = if since_1_20 { ERROR_SINCE_1_20 } else { ERROR_BEFORE_1_20 };
            let err_data = (*buf).err_data;
            std::ptr::write_bytes(buf.cast::<u8>(), 0, bytes);
            *buf = fi_cq_err_entry {
                op_context,
                flags,
                len,
                buf: at,
                data,
                tag,
                olen: first.olen,
                err: first.error,
                prov_errno: first.error,
                err_data,
                err_data_size: 0,
            };
        }
        1
    })
}

unsafe extern "C" fn sread(
    cq: *mut fid_cq,
    buf: *mut c_void,
    count: usize,
    cond: *const c_void,
    timeout: c_int,
) -> isize {
    // SAFETY: the program's own call.
    unsafe { sreadfrom(cq, buf, count, std::ptr::null_mut(), cond, timeout) }
}

unsafe extern "C" fn sreadfrom(
    cq: *mut fid_cq,
    buf: *mut c_void,
    count: usize,
    sources: *mut fi_addr_t,
    _: *const c_void,
    timeout: c_int,
) -> isize {
    guarded(|| {
        // SAFETY: the program's queue.
        let queue = unsafe { objects::borrow::<Queue>(cq) };
        if queue.wait == FI_WAIT_NONE {
            return -FI_ENOSYS as isize;
        }
        let limit = deadline(timeout);
        loop {
            queue.endpoints.progress();
            // SAFETY: the program's buffers.
            let taken = unsafe { queue.take(buf, count, sources) };
            let left = left_until(limit);
            if taken != -FI_EAGAIN as isize
                || left.is_some_and(|left| left.is_zero())
                || queue.signalled.swap(false, Ordering::AcqRel)
            {
                return taken;
            }
            if queue.may_block() {
                queue.endpoints.wait(queue.wake.as_ref().map(Wake::fd), left);
            }
        }
    })
}

unsafe extern "C" fn signal(cq: *mut fid_cq) -> c_int {
    // SAFETY: the program's queue.
    let queue = unsafe { objects::borrow::<Queue>(cq) };
    queue.signalled.store(true, Ordering::Release);
    queue.wake.iter().for_each(Wake::set);
    0
}

unsafe extern "C" fn strerror(
    _: *mut fid_cq,
    error: c_int,
    _: *const c_void,
    buf: *mut c_char,
    len: usize,
) -> *const c_char {
    let text = match error {
        FI_ETRUNC => c"the message was longer than the buffer",
        FI_ECANCELED => c"cancelled",
        FI_EACCES => c"the peer's memory does not permit the operation",
        FI_ECONNRESET => c"the connection to the peer has ended",
        FI_EHOSTUNREACH => c"the peer cannot be reached",
        FI_ENOMSG => c"no message matches",
        _ => c"the operation has failed",
    };
    if !buf.is_null() && len > 0 {
        let mut room = len;
        // SAFETY: the program's buffer.
        unsafe {
            objects::write_bytes(text.to_bytes_with_nul(), buf.cast(), &mut room);
            *buf.add(len - 1) = 0;
        }
    }
    text.as_ptr()
}
