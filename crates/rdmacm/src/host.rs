//! What the connection manager needs from its surroundings: devices, routes, names, and a way for its MADs.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use weir_cm::Address;
use weir_device::Errno;
use weir_transport::Instant;
use weir_wire::mad::Mad;

/// A device, as connections see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    pub name: String,
    /// Node GUID.
    pub guid: u64,
    /// The number that `ibv_get_device_index` returns.
    pub index: u32,
    /// Index of the interface.
    pub ifindex: u32,
    /// The largest path MTU, as `enum ibv_mtu`.
    pub mtu: u8,
    /// How long it takes for an ACK: `local_ca_ack_delay` of `ibv_query_device`.
    pub ack_delay: u8,
}

/// The surroundings.
pub trait Host: Send {
    /// The device that has an address, and the index of the address in its GID table. Link-local addresses need the
    /// index of their interface, others 0. Errors: EMFILE, ENFILE.
    fn device_of(&mut self, address: IpAddr, scope: u32) -> Result<Option<(Device, u8)>, Errno>;
    /// An address of the first device that has one of this family, for connections of this host to itself. Errors:
    /// EMFILE, ENFILE.
    fn own_address(&mut self, ipv4: bool) -> Result<Option<IpAddr>, Errno>;
    /// The address from which the system sends to a destination. `from`: a source that was chosen already. Errors:
    /// those of the kernel's routes (ENETUNREACH, EHOSTUNREACH …).
    fn source_for(&mut self, destination: SocketAddr, from: Option<SocketAddr>) -> Result<SocketAddr, Errno>;
    /// Makes a device able to send MADs, and some process take those that come. `None`: any device.
    fn use_device(&mut self, name: Option<&str>) -> Result<(), Errno>;
    /// Sends a MAD from the device of an address.
    fn send(&mut self, to: &Address, mad: &Mad);
    /// The packets are processed that have come to a device.
    fn take_packets(&mut self, device: &str);
    /// MADs that have come to this process: to its number, or to this service.
    fn take(&mut self, service: Option<u64>) -> Vec<(Address, Mad)>;
    /// Takes up what waits for this time; returns when to call it next.
    fn resume(&mut self, now: Instant) -> Option<Instant>;
    /// Claims a service. EADDRINUSE if another process has it.
    fn claim(&mut self, service: u64) -> Result<(), Errno>;
    /// Lets requests to a claimed service come.
    fn open(&mut self, service: u64) -> Result<(), Errno>;
    /// Gives a service back.
    fn release(&mut self, service: u64);
    /// Returns whether the process with this number in its communication ids runs at the other end of a route; `None` if
    /// that is another host.
    fn lives(&mut self, route: &Address, process: u32) -> Option<bool>;
    /// The process is about to end: MADs that this process has to hand over to others leave.
    fn settle(&mut self);
    /// The names of the devices that have gone or failed since the last call.
    fn removed(&mut self) -> Vec<String>;
    /// Returns whether a device has failed that `removed` has not returned yet.
    fn has_failed(&self) -> bool;
    /// There is no file any more: devices may be closed.
    fn rest(&mut self);
    /// The ports that the system chooses from.
    fn ports(&self) -> RangeInclusive<u16>;
    /// Returns whether this process may bind a port: EACCES if not.
    fn may_bind(&self, port: u16) -> bool;
    /// Writes a line to the log: something fails. Of many in a second, the first ones are written.
    fn log(&mut self, why: fmt::Arguments<'_>);
    /// A random number.
    fn random(&mut self) -> u32;
}

/// Returns whether the error is that no descriptor is free.
pub fn is_full(error: Errno) -> bool {
    matches!(error.0, libc::EMFILE | libc::ENFILE)
}
