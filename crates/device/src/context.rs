//! Opened devices and protection domains.

use crate::adapter::Adapter;
use crate::cq::{CompChannel, Cq, CqCreate};
use crate::interfaces::{self, DeviceInfo};
use crate::memory::pin::{self, Pinned};
use crate::memory::region::Region;
use crate::notify::Notify;
use crate::qp::{Qp, QpCreate};
use crate::{AsyncEvent, Errno, clock};
use std::net::IpAddr;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use weir_transport::{Access, Mtu};

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

/// What every Weir adapter can do.
pub(crate) const LIMITS: DeviceLimits = DeviceLimits {
    max_mr_size: u64::MAX,
    max_qp: (1 << crate::slot::INDEX_BITS) - 2,
    max_qp_wr: 32768,
    max_sge: 32,
    max_sge_rd: 32,
    max_inline: 1024,
    max_cq: 65536,
    max_cqe: 4_194_303,
    max_mr: 1 << 20,
    max_pd: 1 << 16,
    max_qp_rd_atom: 16,
    max_qp_init_rd_atom: 16,
};

/// State of the one port.
#[derive(Clone, Debug)]
pub struct PortInfo {
    pub active: bool,
    /// Largest path MTU that there is.
    pub max_mtu: Mtu,
    /// Largest path MTU that the interface carries.
    pub active_mtu: Mtu,
    pub gid_table_len: u32,
    /// Of the interface, Mbit/s; 0 where it does not tell.
    pub speed_mbps: u32,
}

/// An opened device. Contexts of one device in one process share one engine.
pub struct Context {
    pub(crate) adapter: Arc<Adapter>,
    pub(crate) events: Arc<Notify<AsyncEvent>>,
}

impl Context {
    /// Opens by device name. ENODEV if there is no such device, EINVAL if a `WEIR_*` variable makes no sense.
    pub fn open(name: &str) -> Result<Arc<Context>, Errno> {
        Ok(Arc::new(Context { adapter: Adapter::open(name)?, events: Arc::new(Notify::new()?) }))
    }

    /// What the adapter can do.
    pub fn limits(&self) -> DeviceLimits {
        LIMITS
    }

    /// The port as the interface is now.
    pub fn port(&self) -> PortInfo {
        let device = self.device();
        PortInfo {
            active: device.as_ref().is_some_and(|device| device.up),
            max_mtu: Mtu::M4096,
            active_mtu: device.as_ref().map_or(Mtu::M256, DeviceInfo::mtu),
            gid_table_len: device.as_ref().map_or(1, |device| device.gids.len() as u32),
            speed_mbps: device.map_or(0, |device| device.speed_mbps()),
        }
    }

    /// The current GID table.
    pub fn gids(&self) -> Vec<Option<IpAddr>> {
        self.device().map_or_else(Vec::new, |device| device.gids)
    }

    /// Index of the interface.
    pub fn ifindex(&self) -> u32 {
        self.adapter.device.ifindex
    }

    /// The adapter's clock, nanoseconds.
    pub fn clock(&self) -> u64 {
        clock::now().0
    }

    fn device(&self) -> Option<DeviceInfo> {
        interfaces::device(&self.adapter.device.name)
    }

    /// A protection domain.
    pub fn alloc_pd(self: &Arc<Self>) -> Result<Arc<Pd>, Errno> {
        let number = self.adapter.new_pd();
        Ok(Arc::new(Pd { context: self.clone(), number, users: AtomicU32::new(0) }))
    }

    /// A completion channel.
    pub fn create_channel(self: &Arc<Self>) -> Result<Arc<CompChannel>, Errno> {
        CompChannel::new().map(Arc::new)
    }

    /// A completion queue of `cqe` ≥ 1 entries; `cookie` comes back with completion events.
    pub fn create_cq(
        self: &Arc<Self>,
        cqe: u32,
        channel: Option<Arc<CompChannel>>,
        cookie: u64,
    ) -> Result<Arc<Cq>, Errno> {
        self.create_cq_with(CqCreate { cqe, channel, cookie, ..CqCreate::default() })
    }

    /// A completion queue with more to it.
    pub fn create_cq_with(self: &Arc<Self>, create: CqCreate) -> Result<Arc<Cq>, Errno> {
        self.adapter.check()?;
        Cq::new(self, create)
    }

    /// Readable when an asynchronous event waits.
    pub fn async_fd(&self) -> RawFd {
        self.events.fd()
    }

    /// Blocks unless the fd is non-blocking (EAGAIN then).
    pub fn get_async_event(&self) -> Result<AsyncEvent, Errno> {
        self.events.take()
    }
}

/// A protection domain.
pub struct Pd {
    pub(crate) context: Arc<Context>,
    pub(crate) number: u32,
    users: AtomicU32,
}

/// Access flags that a region may have today: those of the protocol, and two that ask for nothing more.
const MR_ACCESS: u32 = Access::all().bits() | MW_BIND | RELAXED_ORDERING;
const MW_BIND: u32 = 1 << 4;
const RELAXED_ORDERING: u32 = 1 << 20;

impl Pd {
    /// Registers `len` bytes at `addr`, known to peers as `iova`. EINVAL for remote write or atomic without local
    /// write, EFAULT for memory that is not there, ENOMEM beyond RLIMIT_MEMLOCK under `--memlock strict`, EOPNOTSUPP
    /// for flags that cannot be served.
    pub fn reg_mr(self: &Arc<Self>, addr: u64, len: u64, iova: u64, access: Access) -> Result<Arc<Mr>, Errno> {
        let adapter = &self.context.adapter;
        adapter.check()?;
        if access.bits() & !MR_ACCESS != 0 {
            return Err(Errno(libc::EOPNOTSUPP));
        }
        if access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC) && !access.contains(Access::LOCAL_WRITE) {
            return Err(Errno(libc::EINVAL));
        }
        if len == 0 || addr.checked_add(len).is_none() {
            return Err(Errno(libc::EINVAL));
        }
        let pinned = pin::pin(addr, len, access.contains(Access::LOCAL_WRITE), adapter.config.memlock)?;
        let key = adapter.regions.insert(Region { key: 0, pd: self.number, addr, iova, len, access })?;
        self.attach();
        Ok(Arc::new(Mr { pd: self.clone(), key, pinned: Mutex::new(Some(pinned)) }))
    }

    /// A queue pair in RESET. EINVAL beyond the limits, EOPNOTSUPP for a service that is not there.
    pub fn create_qp(
        self: &Arc<Self>,
        create: &QpCreate,
        send_cq: &Arc<Cq>,
        recv_cq: &Arc<Cq>,
    ) -> Result<Arc<Qp>, Errno> {
        self.context.adapter.check()?;
        Qp::create(self, create, send_cq, recv_cq)
    }

    /// EBUSY while something of it is alive.
    pub fn dealloc(&self) -> Result<(), Errno> {
        if self.users.load(Ordering::Acquire) > 0 { Err(Errno(libc::EBUSY)) } else { Ok(()) }
    }

    pub(crate) fn attach(&self) {
        self.users.fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn detach(&self) {
        self.users.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A memory region.
pub struct Mr {
    pd: Arc<Pd>,
    key: u32,
    pinned: Mutex<Option<Pinned>>,
}

impl Mr {
    /// Local key.
    pub fn lkey(&self) -> u32 {
        self.key
    }

    /// Remote key.
    pub fn rkey(&self) -> u32 {
        self.key
    }

    /// When it returns, nothing is read or written there any more.
    pub fn dereg(&self) -> Result<(), Errno> {
        // Only the first call finds it pinned.
        let pinned = self.pinned.lock().expect("no panic under this lock").take();
        if let Some(pinned) = pinned {
            self.pd.context.adapter.regions.remove(self.key);
            self.pd.context.adapter.quiesce();
            drop(pinned);
            self.pd.detach();
        }
        Ok(())
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        let _ = self.dereg();
    }
}
