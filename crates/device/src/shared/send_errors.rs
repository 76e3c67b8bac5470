//! Log messages about failed sends: what was lost, why, and what to do. The carrier reports each kind once a minute.
//! The engine's thread writes the log, so that a slow terminal delays no program.

use crate::os::device_info::{DeviceInfo, RDMA_HEADERS};
use crate::os::interfaces::interface_mtu;
use crate::os::locks::LeafMutex;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use weir_link::{DisabledFeatures, SendError, SendErrorKind};

/// Send errors that wait for the log. Those beyond `MAX_ERRORS` are not reported.
#[derive(Default)]
pub struct SendErrorLog(LeafMutex<[Option<SendError>; MAX_ERRORS]>);

const MAX_ERRORS: usize = 8;
/// Longest headers before a UDP payload, for messages: IPv4 or IPv6, and UDP.
const HEADERS: [usize; 2] = [20 + 8, 40 + 8];

impl SendErrorLog {
    /// Keeps an error for the log. Allocates nothing.
    pub fn note(&self, error: SendError) {
        if let Some(entry) = self.0.lock().iter_mut().find(|entry| entry.is_none()) {
            *entry = Some(error);
        }
    }

    /// Writes the noted errors to the log.
    pub fn write_log(&self, device: &DeviceInfo, disabled: DisabledFeatures) {
        let errors = std::mem::take(&mut *self.0.lock());
        for error in errors.iter().flatten() {
            let text = text(error, device, &|error| carried(error, device));
            if error.kind == SendErrorKind::Segments && disabled.contains(DisabledFeatures::UDP_SEGMENT) {
                tracing::info!("{text}");
            } else {
                tracing::warn!("{text}");
            }
        }
    }
}

/// Largest IP packets, in bytes, on the way to a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Carried {
    /// The interface's MTU.
    interface: u32,
    /// The path MTU, which may be smaller.
    path: u32,
}

fn carried(error: &SendError, device: &DeviceInfo) -> Carried {
    // No IP packet is longer, even if the interface's MTU is larger.
    let interface = interface_mtu(&device.ifname).unwrap_or(device.if_mtu).min(65_535);
    Carried { interface, path: path_mtu(error).unwrap_or(interface) }
}

/// The kernel's path MTU.
fn path_mtu(error: &SendError) -> io::Result<u32> {
    let socket = UdpSocket::bind(SocketAddr::new(error.from, 0))?;
    socket.connect(error.to)?;
    let (level, name) = match error.to {
        SocketAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_MTU),
        SocketAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_MTU),
    };
    let (mut mtu, mut len) = (0i32, size_of::<i32>() as libc::socklen_t);
    // SAFETY: fills an int on the stack.
    let done = unsafe { libc::getsockopt(socket.as_raw_fd(), level, name, (&raw mut mtu).cast(), &mut len) };
    if done == 0 { Ok(mtu as u32) } else { Err(io::Error::last_os_error()) }
}

/// The text of a log line.
fn text(error: &SendError, device: &DeviceInfo, carried: &dyn Fn(&SendError) -> Carried) -> String {
    let (name, interface, to) = (&device.name, &device.ifname, error.to.ip());
    let cause = io::Error::from_raw_os_error(error.errno);
    if error.kind == SendErrorKind::Segments {
        return format!(
            "{name}: the kernel refuses UDP_SEGMENT towards {to} ({cause}): packets now leave one at a time, which \
             costs throughput. Before Linux 6.11 it does so for interfaces that compute no checksums (ethtool -K \
             {interface} tx on), and always where IPsec is on the way"
        );
    }
    let advice = match error.errno {
        libc::EMSGSIZE => return too_long(error, device, carried(error)),
        libc::ENETUNREACH | libc::EHOSTUNREACH => format!("there is no route: see `ip route get {to}`"),
        libc::ENETDOWN => format!("the interface is down: see `ip link show {interface}`"),
        libc::EPERM => "a firewall refuses them: UDP ports 4791 and 20480 to 21503 must be open, both ways".to_owned(),
        libc::EACCES => format!("a route forbids them: see `ip route get {to}`"),
        libc::EINVAL | libc::EADDRNOTAVAIL | libc::ENODEV => {
            format!("{interface} may have lost the address {}: see `ip address show {interface}`", error.from)
        }
        libc::EAFNOSUPPORT => "this machine has no sockets of that family: use a GID of the other".to_owned(),
        libc::ENOBUFS | libc::ENOMEM => "the system has no memory for packets".to_owned(),
        _ => "QPs that wait for ACKs will end in IBV_WC_RETRY_EXC_ERR".to_owned(),
    };
    format!("{name}: packets to {to} are lost because the kernel does not send them ({cause}): {advice}")
}

fn too_long(error: &SendError, device: &DeviceInfo, carried: Carried) -> String {
    let (name, interface, to) = (&device.name, &device.ifname, error.to.ip());
    let headers = HEADERS[usize::from(matches!(to, IpAddr::V6(_)))];
    let len = error.len + headers;
    let (narrow, remedy) = if carried.path < carried.interface {
        let limit =
            format!("the path there carries {} (MTU), though {interface} carries {}", carried.path, carried.interface);
        (limit, "Widen it".to_owned())
    } else {
        let limit = format!("interface {interface} has an MTU of {}", carried.interface);
        (limit, format!("Raise that (ip link set dev {interface} mtu {len})"))
    };
    let room = (carried.path.min(carried.interface) as usize).saturating_sub(headers + RDMA_HEADERS);
    let smaller = match [4096, 2048, 1024, 512, 256].into_iter().find(|mtu| *mtu <= room) {
        Some(mtu) => format!(", or connect QPs with a path MTU of {mtu} or less"),
        None => String::new(),
    };
    format!(
        "{name}: packets of {len} bytes to {to} are lost, and their QPs will end in IBV_WC_RETRY_EXC_ERR: {narrow}. \
         {remedy}{smaller}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device() -> DeviceInfo {
        DeviceInfo {
            name: "weir_eth0".into(),
            ifname: "eth0".into(),
            ifindex: 2,
            guid: 1,
            if_mtu: 9000,
            loopback: false,
            has_speed: true,
            mac: None,
            up: true,
            gids: vec![],
            notes: vec![],
            links: Default::default(),
        }
    }

    fn error(kind: SendErrorKind, errno: i32) -> SendError {
        let (to, from) = ("10.0.0.2:20481".parse().unwrap(), "10.0.0.1".parse().unwrap());
        SendError { kind, errno, to, from, ifindex: 0, len: 4136 }
    }

    fn message(error: &SendError, interface: u32, path: u32) -> String {
        text(error, &device(), &|_| Carried { interface, path })
    }

    #[test]
    fn a_packet_too_long_names_interface_size_mtu_and_remedy() {
        let text = message(&error(SendErrorKind::Send, libc::EMSGSIZE), 1500, 1500);
        for part in
            ["weir_eth0", "4164 bytes to 10.0.0.2", "interface eth0 has an MTU of 1500", "mtu 4164", "path MTU of 1024"]
        {
            assert!(text.contains(part), "{part} in {text}");
        }
        let text = message(&error(SendErrorKind::Send, libc::EMSGSIZE), 9000, 1400);
        assert!(text.contains("carries 1400") && text.contains("eth0 carries 9000"), "{text}");
        let text = message(&error(SendErrorKind::Send, libc::EMSGSIZE), 280, 280);
        assert!(!text.contains("path MTU"), "no path MTU is small enough: {text}");
    }

    #[test]
    fn every_error_says_what_to_do() {
        for (errno, part) in [
            (libc::ENETUNREACH, "ip route get 10.0.0.2"),
            (libc::EHOSTUNREACH, "ip route get 10.0.0.2"),
            (libc::ENETDOWN, "the interface is down: see `ip link show eth0`"),
            (libc::EPERM, "firewall"),
            (libc::EACCES, "forbids"),
            (libc::ENOBUFS, "memory"),
            (libc::EINVAL, "the address 10.0.0.1"),
            (libc::EAFNOSUPPORT, "family"),
            (libc::EIO, "IBV_WC_RETRY_EXC_ERR"),
        ] {
            let text = message(&error(SendErrorKind::Send, errno), 9000, 9000);
            assert!(text.contains(part) && text.contains("to 10.0.0.2 are lost"), "{part} in {text}");
        }
        let text = message(&error(SendErrorKind::Segments, libc::EIO), 9000, 9000);
        assert!(text.contains("UDP_SEGMENT towards 10.0.0.2") && !text.contains("lost"), "{text}");
    }

    #[test]
    fn the_path_is_asked_for_its_mtu() {
        let (to, from) = ("127.0.0.1:20481".parse().unwrap(), "127.0.0.1".parse().unwrap());
        let error = SendError { kind: SendErrorKind::Send, errno: libc::EMSGSIZE, to, from, ifindex: 0, len: 70_000 };
        let lo = DeviceInfo { ifname: "lo".into(), ..device() };
        let Carried { interface, path } = carried(&error, &lo);
        assert!(interface == path && path == path_mtu(&error).unwrap(), "{interface}, {path}");
    }
}
