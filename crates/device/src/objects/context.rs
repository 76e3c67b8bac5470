//! Opened devices.

use crate::Errno;
use crate::adapter::Adapter;
use crate::events::AsyncEvent;
use crate::limits::{DeviceLimits, LIMITS};
use crate::objects::channel::CompChannel;
use crate::os::clock;
use crate::os::interfaces::{self, DeviceInfo};
use crate::os::netlink::Netlink;
use crate::os::notify::Notify;
use std::fmt;
use std::net::IpAddr;
use std::os::fd::RawFd;
use std::sync::Arc;
use weir_transport::{DeviceAttributes, Mtu, Profile};

/// State of the only port of a device.
#[derive(Clone, Debug)]
pub struct PortInfo {
    pub active: bool,
    /// Largest path MTU that Weir supports.
    pub max_mtu: Mtu,
    /// Largest path MTU that the interface carries.
    pub active_mtu: Mtu,
    pub gid_table_len: u32,
    /// Speed of the interface, Mbit/s; 0 if the interface does not report it.
    pub speed_mbps: u32,
    /// Packets of another partition that arrived at QPs of this process (IBTA 14.2.5.6, P_KeyViolations).
    pub pkey_violations: u64,
}

/// An opened device. Contexts of one device in one process share one engine.
pub struct Context {
    pub(crate) adapter: Arc<Adapter>,
    pub(crate) events: Arc<Notify<AsyncEvent>>,
}

impl Context {
    /// Logs why a control call is refused, with the device's name, and returns its error.
    #[cold]
    pub fn refuse(&self, errno: i32, why: fmt::Arguments<'_>) -> Errno {
        self.adapter.refuse(errno, why)
    }

    /// Opens a device by name. ENODEV if there is no such device, EINVAL if a `WEIR_*` variable is invalid.
    pub fn open(name: &str) -> Result<Arc<Context>, Errno> {
        Self::of(Adapter::open(name, None)?)
    }

    /// The same with this profile; `WEIR_PROFILE` is ignored.
    pub fn open_as(name: &str, profile: &Profile) -> Result<Arc<Context>, Errno> {
        Self::of(Adapter::open(name, Some(profile))?)
    }

    fn of(adapter: Arc<Adapter>) -> Result<Arc<Context>, Errno> {
        let context = Context { adapter, events: Arc::new(Notify::new()?) };
        context.adapter.watch.add_listener(&context.events)?;
        Ok(Arc::new(context))
    }

    /// Returns whether the adapter supports on-demand paging.
    pub fn has_on_demand(&self) -> bool {
        self.adapter.profile.on_demand
    }

    /// What adapters differ in, by the profile.
    pub fn attributes(&self) -> DeviceAttributes {
        self.adapter.profile.device
    }

    /// The limits of every adapter.
    pub fn limits(&self) -> DeviceLimits {
        LIMITS
    }

    /// The port with the current state of the interface, or with its last known state if the query fails.
    pub fn port(&self) -> PortInfo {
        let device = self.device();
        PortInfo {
            active: device.as_ref().is_some_and(|device| device.up),
            max_mtu: Mtu::M4096,
            active_mtu: device.as_ref().map_or(Mtu::M256, DeviceInfo::mtu),
            gid_table_len: device.as_ref().map_or(1, |device| device.gids.len() as u32),
            speed_mbps: device.map_or(0, |device| self.adapter.watch.speed_mbps(&device)),
            pkey_violations: self.adapter.pkey_violations(),
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
        // A forked child has neither the descriptor nor the lock of its parent.
        if !self.adapter.is_ours() {
            return interfaces::device(&mut Netlink::open().ok()?, &self.adapter.device.name).ok().flatten();
        }
        self.adapter.watch.device()
    }

    /// Creates a completion channel.
    pub fn create_channel(self: &Arc<Self>) -> Result<Arc<CompChannel>, Errno> {
        CompChannel::new().map(Arc::new)
    }

    /// The descriptor that is readable while an asynchronous event is pending.
    pub fn async_fd(&self) -> RawFd {
        self.events.fd()
    }

    /// Takes the oldest asynchronous event. Blocks unless the fd is non-blocking (EAGAIN then).
    pub fn get_async_event(&self) -> Result<AsyncEvent, Errno> {
        self.events.take()
    }

    /// The second half of [`Self::get_async_event`], after the caller has read eight bytes from the descriptor.
    /// `None`: the object of the event is gone.
    pub fn pop_async_event(&self) -> Option<AsyncEvent> {
        self.events.pop()
    }
}
