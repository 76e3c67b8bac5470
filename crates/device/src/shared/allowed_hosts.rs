//! The hosts that this process exchanges packets with: those that `--allow` names, and this one.

use crate::config;
use crate::os::interfaces;
use std::net::IpAddr;
use std::time::Duration;
use weir_link::Allowed;
use weir_transport::Instant;

/// A new address of this host counts after this time. The interfaces are not read for each packet of a flood.
const FRESH: Duration = Duration::from_secs(1);

/// Whether a host is of a list, or this one.
pub fn holds(allowed: &Allowed, host: IpAddr) -> bool {
    allowed.permits(host) || interfaces::is_own(host)
}

/// Whether this process may send to an address: of a host that `--allow` names, of this host, or of a multicast group.
pub fn permits(remote: IpAddr) -> bool {
    // A list that is wrong permits nothing. Opening a device reports it.
    remote.is_multicast() || config::allowed().is_ok_and(|allowed| holds(&allowed, remote))
}

/// The senders of packets that another process of this host has received and hands over: its socket filter is not that
/// of this process, so that what `--allow` leaves out is dropped here.
#[derive(Default)]
pub struct Senders {
    allowed: Allowed,
    /// The addresses of this host, when they were read last.
    own: Vec<IpAddr>,
    read: Option<Instant>,
}

impl Senders {
    /// Those of a list, and this host.
    pub fn of(allowed: Allowed) -> Senders {
        Senders { allowed, ..Senders::default() }
    }

    /// Whether a packet from this address is taken.
    #[inline]
    pub fn permits(&mut self, from: IpAddr, now: Instant) -> bool {
        self.allowed.permits(from) || self.is_own(from.to_canonical(), now)
    }

    #[cold]
    fn is_own(&mut self, address: IpAddr, now: Instant) -> bool {
        if self.read.is_none_or(|read| now - read >= FRESH) {
            self.own = interfaces::own_addresses();
            self.read = Some(now);
        }
        address.is_loopback() || self.own.contains(&address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_leaves_out_other_hosts_and_never_this_one() {
        let mut senders = Senders::of("192.0.2.0/24".parse().unwrap());
        let mut permits = |address: IpAddr, second: u64| senders.permits(address, Instant(second * 1_000_000_000));
        assert!(permits("192.0.2.7".parse().unwrap(), 0));
        for second in [0, 5] {
            assert!(!permits("203.0.113.9".parse().unwrap(), second));
            assert!(interfaces::own_addresses().into_iter().all(|own| permits(own, second)));
        }
        assert!(permits("::ffff:127.0.0.1".parse().unwrap(), 5));
        assert!(Senders::default().permits("203.0.113.9".parse().unwrap(), Instant(0)), "without a list");
    }
}
