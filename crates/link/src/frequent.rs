//! The destination of nearly all packets. A socket that is connected to it spares the kernel the search for a route at
//! each send: half a round trip of 8 bytes takes about a microsecond less.

use crate::outbox::Group;
use std::net::{IpAddr, SocketAddr};

/// Sends in a row to one destination before it gets a socket of its own.
const SENDS: u32 = 256;
/// After each change, the next one needs this many times as many sends in a row.
const RARER: u32 = 16;
const MOST_SENDS: u32 = 1 << 20;

/// Where groups go: the address of a peer, from an address of this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Destination {
    pub from: IpAddr,
    pub to: SocketAddr,
    /// Outgoing interface, 0 = by route.
    pub ifindex: u32,
}

impl Destination {
    /// Whether a group may leave by a socket that is connected to this destination: it goes there, and no ICRC covers
    /// the number that the kernel gives to the datagrams.
    pub fn fits(&self, group: &Group) -> bool {
        let any_id = group.any_id || group.to.is_ipv6();
        any_id && (group.from, group.to, group.ifindex) == (self.from, self.to, self.ifindex)
    }

    /// The only destination of these groups; `None` if there are several, or not all fit, or if it is an address that
    /// means something else on each interface.
    fn only(groups: &[Group]) -> Option<Destination> {
        let Group { from, to, ifindex, .. } = *groups.first()?;
        let only = Destination { from, to, ifindex };
        (!is_local_to_interface(to.ip()) && groups.iter().all(|group| only.fits(group))).then_some(only)
    }
}

/// Counts sends to the same destination.
#[derive(Debug)]
pub struct Frequent {
    last: Option<Destination>,
    sends: u32,
    needed: u32,
    /// The destination of the last change.
    wanted: Option<Destination>,
}

impl Frequent {
    pub fn new() -> Frequent {
        Frequent { last: None, sends: 0, needed: SENDS, wanted: None }
    }

    /// These groups are about to leave.
    #[inline]
    pub fn note(&mut self, groups: &[Group]) {
        let only = Destination::only(groups);
        if self.last == only {
            self.sends = self.sends.saturating_add(1);
        } else {
            (self.last, self.sends) = (only, 0);
        }
    }

    /// Returns whether there is another destination than the `present` one that is worth a socket of its own. If so,
    /// the next change will need more sends.
    #[inline]
    pub fn takes_change(&mut self, present: Option<Destination>) -> bool {
        let change = self.sends >= self.needed && self.last.is_some() && self.last != present;
        if change {
            (self.sends, self.needed) = (0, MOST_SENDS.min(RARER * self.needed));
            self.wanted = self.last;
        }
        change
    }

    /// The destination of the last change.
    pub fn wanted(&self) -> Option<Destination> {
        self.wanted
    }
}

fn is_local_to_interface(address: IpAddr) -> bool {
    address.is_multicast() || matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    fn destination(port: u16) -> Option<Destination> {
        Some(Destination { from: HERE, to: (HERE, port).into(), ifindex: 0 })
    }

    fn group(port: u16) -> Group {
        Group { any_id: true, ..Group::new((HERE, port).into(), HERE, 0) }
    }

    /// Sends until the destination is worth a socket.
    fn sends_to(frequent: &mut Frequent, port: u16, present: Option<Destination>) -> Option<u32> {
        (1..=MOST_SENDS + 1).find(|_| {
            frequent.note(&[group(port), group(port)]);
            frequent.takes_change(present)
        })
    }

    #[test]
    fn a_change_needs_more_sends_each_time() {
        let mut frequent = Frequent::new();
        assert_eq!(sends_to(&mut frequent, 1, None), Some(SENDS + 1));
        assert_eq!(sends_to(&mut frequent, 1, destination(1)), None, "it has a socket");
        assert_eq!(sends_to(&mut frequent, 2, destination(1)), Some(RARER * SENDS + 1));
        assert_eq!(sends_to(&mut frequent, 1, destination(2)), Some(RARER * RARER * SENDS + 1));
    }

    #[test]
    fn sends_to_others_between_count_from_the_start() {
        let mut frequent = Frequent::new();
        for _ in 0..SENDS {
            frequent.note(&[group(1)]);
        }
        frequent.note(&[group(1), group(2)]);
        assert!(!frequent.takes_change(None));
        assert_eq!(sends_to(&mut frequent, 1, None), Some(SENDS + 1));
    }

    #[test]
    fn groups_that_do_not_fit_do_not_count() {
        let multicast = Group { to: ([239, 0, 0, 1], 1).into(), ..group(1) };
        let [no_id, by_interface] = [Group { any_id: false, ..group(1) }, Group { ifindex: 3, ..group(1) }];
        for groups in [[group(1), no_id], [group(1), by_interface], [multicast; 2]] {
            let mut frequent = Frequent::new();
            for _ in 0..2 * SENDS {
                frequent.note(&groups);
                assert!(!frequent.takes_change(None));
            }
        }
        // IPv6 has no Identification.
        let v6 = Group::new("[::1]:1".parse().unwrap(), "::1".parse().unwrap(), 0);
        assert!(Destination::only(&[v6]).is_some());
    }

    #[test]
    fn a_later_send_to_another_does_not_change_what_is_wanted() {
        let mut frequent = Frequent::new();
        sends_to(&mut frequent, 1, None);
        frequent.note(&[group(2)]);
        assert_eq!(frequent.wanted(), destination(1));
    }
}
