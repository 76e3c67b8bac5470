//! One RDMA adapter in one process: tables of QP, CQ and MR, memory, and the engine that moves packets.
//!
//! Everything that the verbs layer needs: [`devices`] → [`Context`] → [`Pd`], [`Cq`], [`Mr`], [`Qp`].
//! Errors are [`Errno`], as the verbs report them. All objects are `Send + Sync`; any call from any thread.
//! Cookies are the caller's own numbers (a pointer, as a rule), handed back with events.

use std::net::IpAddr;
use std::os::fd::RawFd;
use std::sync::Arc;
use weir_transport::{
    Access, AttrMask, Completion, PostError, QpAttr, QpCaps, RecvWr, SendWr, Service,
};

/// An errno value, as verbs return them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub i32);

/// A device that could be opened.
#[derive(Clone, Debug)]
pub struct DeviceInfo {
    /// `weir_<interface>`.
    pub name: String,
    /// Interface.
    pub ifname: String,
    pub ifindex: u32,
    /// EUI-64, network order as `ibv_get_device_guid` wants it.
    pub guid: u64,
    /// MTU of the interface, bytes.
    pub if_mtu: u32,
    /// Whether the interface is up.
    pub up: bool,
    /// GID table: index → address; `None` is an empty slot.
    pub gids: Vec<Option<IpAddr>>,
    /// What is not available here, and why, for people.
    pub notes: Vec<String>,
}

/// The devices of this network namespace, `weir_lo` last. `WEIR_INTERFACE` narrows it to one.
pub fn devices() -> Vec<DeviceInfo> {
    todo!()
}

/// Limits of the adapter, as `ibv_device_attr` names them.
#[derive(Clone, Debug)]
pub struct DeviceLimits {
    pub max_mr_size: u64,
    pub max_qp: u32,
    pub max_qp_wr: u32,
    pub max_sge: u32,
    pub max_sge_rd: u32,
    pub max_inline: u32,
    pub max_cq: u32,
    pub max_cqe: u32,
    pub max_mr: u32,
    pub max_pd: u32,
    pub max_qp_rd_atom: u8,
    pub max_qp_init_rd_atom: u8,
}

/// State of the one port.
#[derive(Clone, Debug)]
pub struct PortInfo {
    pub active: bool,
    /// Largest and current path MTU.
    pub max_mtu: weir_transport::Mtu,
    pub active_mtu: weir_transport::Mtu,
    pub gid_table_len: u32,
    /// Of the interface, Mbit/s; 0 = unknown.
    pub speed_mbps: u32,
}

/// An opened device. Contexts of one device in one process share one engine.
pub struct Context {}

impl Context {
    /// Opens by device name.
    pub fn open(_name: &str) -> Result<Arc<Context>, Errno> {
        todo!()
    }
    pub fn limits(&self) -> DeviceLimits {
        todo!()
    }
    pub fn port(&self) -> PortInfo {
        todo!()
    }
    /// The current GID table.
    pub fn gids(&self) -> Vec<Option<IpAddr>> {
        todo!()
    }
    pub fn ifindex(&self) -> u32 {
        todo!()
    }
    /// Nanoseconds, for `ibv_query_rt_values_ex` and completion timestamps.
    pub fn clock(&self) -> u64 {
        todo!()
    }
    pub fn alloc_pd(self: &Arc<Self>) -> Result<Arc<Pd>, Errno> {
        todo!()
    }
    pub fn create_channel(self: &Arc<Self>) -> Result<Arc<CompChannel>, Errno> {
        todo!()
    }
    /// `cqe` ≥ 1; `cookie` comes back with completion events.
    pub fn create_cq(
        self: &Arc<Self>,
        _cqe: u32,
        _channel: Option<Arc<CompChannel>>,
        _cookie: u64,
    ) -> Result<Arc<Cq>, Errno> {
        todo!()
    }
    /// Readable when an asynchronous event waits.
    pub fn async_fd(&self) -> RawFd {
        todo!()
    }
    /// Blocks unless the fd is non-blocking (EAGAIN then).
    pub fn get_async_event(&self) -> Result<AsyncEvent, Errno> {
        todo!()
    }
}

/// An asynchronous event and the cookie of what it concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AsyncEvent {
    Qp { cookie: u64, event: weir_transport::QpEvent },
    /// Overflow.
    CqError { cookie: u64 },
    PortActive,
    PortError,
    GidChange,
    DeviceFatal,
}

/// A completion channel.
pub struct CompChannel {}

impl CompChannel {
    /// Readable when an event waits; applications may make it non-blocking and poll it.
    pub fn fd(&self) -> RawFd {
        todo!()
    }
    /// Takes one event: the cookie of its CQ. Blocks unless the fd is non-blocking (EAGAIN then; EINTR passes through).
    pub fn get_event(&self) -> Result<u64, Errno> {
        todo!()
    }
}

/// A completion queue.
pub struct Cq {}

impl Cq {
    /// Entries that it holds, at least what was asked for.
    pub fn cqe(&self) -> u32 {
        todo!()
    }
    /// Takes up to `max` completions, handing each to `each`; drives the engine. Err: the CQ has overflowed.
    pub fn poll(&self, _max: usize, _each: impl FnMut(&Completion)) -> Result<usize, Errno> {
        todo!()
    }
    /// One event for the next completion (or the next solicited one).
    pub fn arm(&self, _solicited_only: bool) {
        todo!()
    }
    pub fn resize(&self, _cqe: u32) -> Result<(), Errno> {
        todo!()
    }
    /// EBUSY while a QP uses it. Pending channel events of it are dropped.
    pub fn destroy(&self) -> Result<(), Errno> {
        todo!()
    }
}

/// A protection domain.
pub struct Pd {}

impl Pd {
    /// Registers `len` bytes at `addr`, known to peers as `iova`. EINVAL for bad flags, EFAULT for memory that is not
    /// there, ENOMEM beyond RLIMIT_MEMLOCK under `--memlock strict`. Flags that cannot be served: EOPNOTSUPP.
    pub fn reg_mr(self: &Arc<Self>, _addr: u64, _len: u64, _iova: u64, _access: Access) -> Result<Arc<Mr>, Errno> {
        todo!()
    }
    pub fn create_qp(
        self: &Arc<Self>,
        _init: &QpCreate,
        _send_cq: &Arc<Cq>,
        _recv_cq: &Arc<Cq>,
    ) -> Result<Arc<Qp>, Errno> {
        todo!()
    }
    /// EBUSY while something of it is alive.
    pub fn dealloc(&self) -> Result<(), Errno> {
        todo!()
    }
}

/// What a QP is made with.
#[derive(Clone, Copy, Debug)]
pub struct QpCreate {
    pub service: Service,
    /// Asked for; [`Qp::caps`] tells what was given (at least that). EINVAL beyond the limits.
    pub caps: QpCaps,
    pub sq_sig_all: bool,
    /// Comes back with events.
    pub cookie: u64,
}

/// A memory region.
pub struct Mr {}

impl Mr {
    pub fn lkey(&self) -> u32 {
        todo!()
    }
    pub fn rkey(&self) -> u32 {
        todo!()
    }
    /// When it returns, nothing is read or written there any more.
    pub fn dereg(&self) -> Result<(), Errno> {
        todo!()
    }
}

/// A queue pair.
pub struct Qp {}

impl Qp {
    pub fn num(&self) -> u32 {
        todo!()
    }
    pub fn caps(&self) -> QpCaps {
        todo!()
    }
    pub fn modify(&self, _attr: &QpAttr, _mask: AttrMask) -> Result<(), Errno> {
        todo!()
    }
    pub fn query(&self) -> QpAttr {
        todo!()
    }
    /// Queues one send; call [`Qp::doorbell`] after the last of a list.
    pub fn post_send(&self, _wr: &SendWr<'_>) -> Result<(), PostError> {
        todo!()
    }
    pub fn post_recv(&self, _wr: &RecvWr<'_>) -> Result<(), PostError> {
        todo!()
    }
    /// Lets the engine see what was posted.
    pub fn doorbell(&self) {
        todo!()
    }
    /// Ends it: purges its completions, flushes owed ACKs. No event of it comes after the return.
    pub fn destroy(&self) -> Result<(), Errno> {
        todo!()
    }
}

impl From<PostError> for Errno {
    fn from(error: PostError) -> Self {
        Errno(match error {
            PostError::QueueFull => 12, // ENOMEM
            _ => 22,                    // EINVAL
        })
    }
}
