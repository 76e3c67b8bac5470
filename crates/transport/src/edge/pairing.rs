//! Which addresses of two processes are the ends of links.

use std::net::IpAddr;
use weir_wire::edge::{Address, Hello, MAX_LINKS};

/// No interface is faster, Gbit/s. A peer may claim any speed.
const MAX_WEIGHT: u32 = 10_000;

/// The ends of a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pair {
    pub local: Address,
    pub remote: Address,
}

impl Pair {
    /// Bytes of an IP packet on this link, at most.
    pub fn mtu(&self) -> u32 {
        self.local.mtu.min(self.remote.mtu)
    }

    /// The weight of the link: its speed in Gbit/s, 1 at least and [`MAX_WEIGHT`] at most. 1 if the speed is not known.
    pub fn weight(&self) -> u32 {
        let known = [self.local.speed, self.remote.speed].into_iter().filter(|speed| *speed > 0);
        (known.min().unwrap_or(0) / 1000).clamp(1, MAX_WEIGHT)
    }
}

/// The links between the sides of these hellos. Each side finds the same, in the same order: `is_first` is true on one of
/// them.
///
/// An interface is the end of one link. Those with addresses of one network belong together, in the order of their
/// addresses. Others do as they come, unless a side lists all of its interfaces: then they may not lead to the peer.
pub fn pairs(local: &Hello, remote: &Hello, is_first: bool) -> Vec<Pair> {
    let [first, second] = if is_first { [local, remote] } else { [remote, local] };
    // What has no room in a hello, the peer does not know.
    let [of_first, of_second] = [first, second].map(|hello| Address::fitting(&hello.addresses));
    let has = |list: &[Address], address: &Address| list.iter().any(|other| other.address == address.address);
    // Two hosts may have the same addresses in networks of their own, such as those of containers.
    let is_one_host = of_first.iter().all(|address| has(of_second, address)) && of_first.len() == of_second.len();
    let mut found: Vec<[Address; 2]> = vec![];
    let mut add = |fits: fn(&Address, &Address) -> bool| {
        for a in of_first {
            let is_free = |side: usize, address: &Address, found: &[[Address; 2]]| {
                found.len() < MAX_LINKS && !found.iter().any(|pair| pair[side].interface == address.interface)
            };
            let differ = |b: &Address| is_one_host || a.address != b.address;
            let fits = |b: &&Address| is_free(1, b, &found) && differ(b) && fits(a, b);
            if is_free(0, a, &found)
                && let Some(b) = of_second.iter().find(fits)
            {
                found.push([*a, *b]);
            }
        }
    };
    add(share_network);
    if !first.lists_all && !second.lists_all {
        add(|a, b| a.address.is_ipv4() == b.address.is_ipv4());
    }
    let pair = |[a, b]: [Address; 2]| match is_first {
        true => Pair { local: a, remote: b },
        false => Pair { local: b, remote: a },
    };
    found.into_iter().map(pair).collect()
}

fn share_network(a: &Address, b: &Address) -> bool {
    a.prefix == b.prefix && network(a) == network(b)
}

/// The network of an address: its family, and the bits that its addresses have in common.
fn network(address: &Address) -> (bool, u128) {
    match address.address {
        IpAddr::V4(ip) => {
            (true, u128::from(ip.to_bits() & u32::MAX.checked_shl(32 - u32::from(address.prefix)).unwrap_or(0)))
        }
        IpAddr::V6(ip) => (false, ip.to_bits() & u128::MAX.checked_shl(128 - u32::from(address.prefix)).unwrap_or(0)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `addresses`: interface, address, prefix, speed.
    fn hello(lists_all: bool, addresses: &[(u8, &str, u8, u32)]) -> Hello {
        let address = |&(interface, address, prefix, speed): &(u8, &str, u8, u32)| Address {
            interface,
            address: address.parse().unwrap(),
            prefix,
            mtu: 1500 + 100 * u32::from(interface),
            speed,
        };
        let addresses = addresses.iter().map(address).collect();
        Hello { lists_all, addresses, ..Hello::default() }
    }

    /// The links as text, checked from both sides.
    fn links(a: &Hello, b: &Hello) -> Vec<String> {
        let pairs = super::pairs(a, b, true);
        let other = super::pairs(b, a, false);
        assert_eq!(pairs, other.iter().map(|pair| Pair { local: pair.remote, remote: pair.local }).collect::<Vec<_>>());
        pairs.iter().map(|pair| format!("{}-{}", pair.local.address, pair.remote.address)).collect()
    }

    #[test]
    fn addresses_of_one_network_belong_together() {
        let a = hello(false, &[(0, "10.0.1.1", 24, 0), (1, "10.0.2.1", 24, 0), (2, "10.0.3.1", 24, 0)]);
        let b = hello(true, &[(0, "10.0.3.2", 24, 0), (1, "10.0.1.2", 24, 0), (2, "10.0.9.2", 24, 0)]);
        assert_eq!(links(&a, &b), ["10.0.1.1-10.0.1.2", "10.0.3.1-10.0.3.2"]);
        assert_eq!(links(&b, &a), ["10.0.3.2-10.0.3.1", "10.0.1.2-10.0.1.1"]);
    }

    #[test]
    fn others_belong_together_as_they_come_unless_a_side_lists_all() {
        let a = hello(false, &[(0, "10.0.1.1", 24, 0), (1, "10.0.2.1", 24, 0), (2, "fd00::1", 64, 0)]);
        let b = hello(false, &[(0, "10.1.1.1", 24, 0), (1, "fd01::1", 64, 0), (2, "10.1.2.1", 24, 0)]);
        assert_eq!(links(&a, &b), ["10.0.1.1-10.1.1.1", "10.0.2.1-10.1.2.1", "fd00::1-fd01::1"]);
        assert_eq!(links(&a, &Hello { lists_all: true, ..b }), [""; 0]);
    }

    #[test]
    fn an_interface_is_the_end_of_one_link() {
        let a = hello(false, &[(0, "10.0.1.1", 24, 0), (0, "fd00::1", 64, 0), (1, "10.0.1.3", 24, 0)]);
        let b = hello(false, &[(5, "fd00::2", 64, 0), (5, "10.0.1.2", 24, 0), (6, "10.0.1.4", 24, 0)]);
        assert_eq!(links(&a, &b), ["10.0.1.1-10.0.1.2", "10.0.1.3-10.0.1.4"]);
    }

    #[test]
    fn a_prefix_may_be_empty_or_long() {
        let a = hello(false, &[(0, "10.0.1.1", 0, 0), (1, "10.0.2.2", 31, 0)]);
        let b = hello(true, &[(0, "10.0.2.3", 31, 0), (1, "11.0.1.2", 0, 0)]);
        assert_eq!(links(&a, &b), ["10.0.1.1-11.0.1.2", "10.0.2.2-10.0.2.3"]);
    }

    #[test]
    fn the_same_address_on_two_hosts_is_no_link() {
        let a = hello(true, &[(0, "10.0.1.1", 24, 0), (1, "172.17.0.1", 16, 0)]);
        let b = hello(true, &[(0, "10.0.1.2", 24, 0), (1, "172.17.0.1", 16, 0)]);
        assert_eq!(links(&a, &b), ["10.0.1.1-10.0.1.2"]);
        assert_eq!(links(&a, &a), ["10.0.1.1-10.0.1.1", "172.17.0.1-172.17.0.1"], "two processes of one host");
    }

    #[test]
    fn what_has_no_room_in_a_hello_is_no_link() {
        let many = |host: u8| {
            let addresses: Vec<_> = (0..60).map(|n| format!("fd00:{n:x}::{host}")).collect();
            let list: Vec<_> = addresses.iter().enumerate().map(|(n, text)| (n as u8, text.as_str(), 64, 0)).collect();
            hello(false, &list)
        };
        let (a, b) = (many(1), many(2));
        let known = |hello: &Hello| Hello::decode(&hello.encode()).unwrap();
        assert_eq!(pairs(&a, &known(&b), true).len(), Address::fitting(&a.addresses).len());
        assert_eq!(pairs(&known(&a), &b, true), pairs(&a, &known(&b), true));
    }

    #[test]
    fn a_link_is_as_good_as_its_worse_end() {
        let ends = |speeds: [u32; 2]| {
            let side = |n: u8| hello(false, &[(n, "10.0.1.1", 24, speeds[usize::from(n)])]);
            let pair = super::pairs(&side(0), &side(1), true)[0];
            (pair.mtu(), pair.weight())
        };
        assert_eq!(ends([10_000, 2_500]), (1500, 2));
        assert_eq!((ends([0, 10_000]).1, ends([0, 0]).1, ends([100, 100]).1), (10, 1, 1));
        assert_eq!(ends([0, u32::MAX]).1, MAX_WEIGHT, "whatever the peer claims");
    }
}
