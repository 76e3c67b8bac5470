//! Open devices and their ODP regions.

use crate::file;
use crate::lock::Lock;
use crate::locked::Raw;
use crate::map::Map;
use std::ffi::CStr;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::*};
use weir_abi::*;

/// The lock of all calls that change the maps of this library.
pub static CONTROL: Lock = Lock::new();

pub static CONTEXTS: Map<Context> = Map::new();
/// ODP regions by context and lkey.
static ODP: Map<Odp> = Map::new();
static ODP_REGIONS: AtomicUsize = AtomicUsize::new(0);

/// The addresses of an ODP region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Odp {
    /// Those of the process.
    Plain,
    /// Others (`ibv_reg_mr_iova`, IBV_ACCESS_ZERO_BASED).
    Shifted,
}

/// An open device.
pub struct Context {
    /// From 1 on.
    index: u32,
    pub device: [u8; 32],
    pub real: Real,
    /// Posting to it, or polling, is no cancellation point.
    pub posts_uncancelled: bool,
    pub polls_uncancelled: bool,
    /// It cannot have ODP memory.
    pub no_odp: bool,
}

/// `ibv_poll_cq`, which may be a cancellation point: a cancelled thread unwinds through it.
pub type PollCq = unsafe extern "C-unwind" fn(*mut ibv_cq, i32, *mut ibv_wc) -> i32;

/// `ibv_post_send`.
pub type PostSend = unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> i32;

/// `ibv_post_recv`.
pub type PostRecv = unsafe extern "C" fn(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> i32;

/// The library's functions of a context.
#[derive(Clone, Copy)]
pub struct Real {
    pub poll_cq: Option<PollCq>,
    pub req_notify_cq: Option<unsafe extern "C" fn(*mut ibv_cq, i32) -> i32>,
    pub post_send: Option<PostSend>,
    pub post_recv: Option<PostRecv>,
    pub advise_mr: Option<unsafe extern "C" fn(*mut ibv_pd, i32, u32, *mut ibv_sge, u32) -> i32>,
    pub create_cq_ex: Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_cq_init_attr_ex) -> *mut ibv_cq_ex>,
    pub create_qp_ex: Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_qp_init_attr_ex) -> *mut ibv_qp>,
}

impl Context {
    /// Remembers a context. The caller holds CONTROL.
    pub fn enter(context: *mut ibv_context, real: Real, no_odp: bool) {
        static LAST: AtomicU32 = AtomicU32::new(0);
        let mut device = [0; 32];
        // SAFETY: an open context has a device with a NUL-terminated name.
        let name = unsafe { CStr::from_ptr((&raw const (*(*context).device).name).cast()) };
        file::fill(&mut device, name.to_bytes());
        // Weir defers a cancel by itself. mlx5 posts without a system call, and prints some errors that it polls; Soft-RoCE
        // writes to a file to post.
        let polls_uncancelled = device.starts_with(b"weir_");
        let posts_uncancelled = polls_uncancelled || device.starts_with(b"mlx5_");
        let index = LAST.fetch_add(1, Relaxed) + 1;
        let own = Context { index, device, real, posts_uncancelled, polls_uncancelled, no_odp };
        CONTEXTS.insert(context as u64, Box::leak(Box::new(own)));
    }

    /// A device without functions.
    #[cfg(test)]
    pub fn example() -> Context {
        let (poll_cq, req_notify_cq, post_send, post_recv) = (None, None, None, None);
        let (advise_mr, create_cq_ex, create_qp_ex) = (None, None, None);
        let real = Real { poll_cq, req_notify_cq, post_send, post_recv, advise_mr, create_cq_ex, create_qp_ex };
        Context { index: 1, device: [0; 32], real, posts_uncancelled: true, polls_uncancelled: true, no_odp: true }
    }

    /// The key of a QP's number or of an lkey.
    #[inline]
    pub fn key(&self, number: u32) -> u64 {
        u64::from(self.index) << 32 | u64::from(number)
    }
}

/// Whether an lkey of a context is that of an ODP region.
#[inline]
pub fn is_odp(context: &Context, lkey: u32) -> bool {
    odp(context, lkey).is_some()
}

/// The addresses of the ODP region with this lkey; `None`: there is none.
#[inline]
pub fn odp(context: &Context, lkey: u32) -> Option<Odp> {
    if any_odp() { ODP.get(context.key(lkey)).copied() } else { None }
}

/// Whether the process has an ODP region.
#[inline]
pub fn any_odp() -> bool {
    ODP_REGIONS.load(Relaxed) != 0
}

/// Enters an ODP region.
pub fn enter_odp(context: &Context, lkey: u32, addresses: Odp) {
    CONTROL.with(|| {
        let key = context.key(lkey);
        let region = match addresses {
            Odp::Plain => &Odp::Plain,
            Odp::Shifted => &Odp::Shifted,
        };
        if ODP.get(key).is_none() {
            ODP_REGIONS.fetch_add(1, Relaxed);
        }
        ODP.insert(key, region);
    });
}

/// Forgets an ODP region.
pub fn forget_odp(context: &Context, lkey: u32) {
    CONTROL.with(|| {
        if ODP.remove(context.key(lkey)).is_some() {
            ODP_REGIONS.fetch_sub(1, Relaxed);
        }
    });
}
